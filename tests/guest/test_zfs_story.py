"""The paper's stack: a sandbox on ZFS whose processes CRIU brings back, by itself and as a container of Podman's."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from planarian_core import Planarian
from planarian_core.sandbox import Sandbox
from planarian_core.testing.workloads import ask_counter, remove_all, start_counter
from planarian_core.testing.zfs import file_pool, listed
from planarian_filesystem import zfs_making
from planarian_filesystem.zfs_pool import ZfsPool

pytestmark = pytest.mark.needs("root", "criu", "namespaces", "zfs")

SOCKET = "counter.sock"


@pytest.fixture
def planarian(tmp_path: Path) -> Iterator[Planarian]:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    with file_pool(tmp_path) as tank:
        zfs_making.create_below(ZfsPool(home), tank)
        with Planarian.open(home) as planarian:
            yield planarian
            remove_all(planarian)
        below = f"{ZfsPool(home).where().base}/layers"
        assert not [*listed(below), *listed(below, "snapshot")], "nothing of a sandbox that was removed is left"
        zfs_making.destroy(ZfsPool(home), force=False)


def groups_of(sandbox: Sandbox) -> list[str]:
    """The control groups of its init and what that started, as the host sees them."""
    live = sandbox.record.live
    assert live is not None
    children = Path(f"/proc/{live.init_pid}/task/{live.init_pid}/children").read_text().split()
    assert children
    return [Path(f"/proc/{pid}/cgroup").read_text() for pid in (live.init_pid, *children)]


@pytest.mark.parametrize(
    ("kind", "process"), [("", "criu"), pytest.param("podman", "podman", marks=pytest.mark.needs("podman"))]
)
def test_a_live_process_goes_back_and_is_forked(planarian: Planarian, workspace: Path, kind: str, process: str) -> None:
    sandbox = planarian.create_sandbox(workspace, sandbox=kind)
    assert sandbox.record.spec.backend == (kind or "namespace")
    assert (sandbox.record.filesystem, sandbox.record.process) == ("zfs", process)
    start_counter(sandbox, SOCKET)
    assert ask_counter(sandbox, SOCKET, "add") == 1
    sandbox.run("echo one > file")
    one = planarian.snapshot(sandbox, name="one")
    assert one.coverage.complete, one.coverage
    assert ask_counter(sandbox, SOCKET, "add") == 2
    sandbox.run("echo two > file; echo new > new")
    two = planarian.snapshot(sandbox, name="two")

    planarian.rollback(sandbox, one)
    assert ask_counter(sandbox, SOCKET, "add") == 2
    assert sandbox.run("cat file; ls new").stdout == "one\n"
    fork = planarian.fork(two)
    assert ask_counter(fork, SOCKET, "add") == 3
    if kind == "podman":
        for restored in (sandbox, fork):
            assert restored.run("cat /proc/1/cgroup").stdout == "0::/\n", "a control group namespace of its own"
            assert all(f"/planarian/{restored.id}/libpod-" in group for group in groups_of(restored))
    assert fork.run("cat file new").stdout == "two\nnew\n"
    fork.run("echo fork > file")
    assert ask_counter(sandbox, SOCKET, "get") == 2
    assert sandbox.run("cat file").stdout == "one\n"

    planarian.rollback(sandbox, two)
    assert ask_counter(sandbox, SOCKET, "get") == 2
    assert sandbox.run("cat file new").stdout == "two\nnew\n"
    planarian.promote(fork, force=True)
    assert ask_counter(sandbox, SOCKET, "get") == 3
    assert sandbox.run("cat file").stdout == "fork\n"
    base = ZfsPool(planarian.home).where().base
    done = subprocess.run(["zfs", "list", "-H", "-r", "-o", "origin", base], capture_output=True, text=True, check=True)
    assert f"@{two.id}" in done.stdout, "a rollback and a fork are clones"
