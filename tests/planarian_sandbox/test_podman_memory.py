"""The podman process backend keeps the promises of one, with containers of Podman's as its hosts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from planarian_core import Planarian, Sandbox
from planarian_core.errors import CaptureError
from planarian_core.testing.process import ProcessConformance
from planarian_core.testing.workloads import ask_counter, remove_all, start_counter
from tests.planarian_sandbox.isolated import PodmanMemoryFixtures

pytestmark = pytest.mark.needs("root", "namespaces", "podman", "criu")

SOCKET = "counter.sock"


class TestPodmanMemory(PodmanMemoryFixtures, ProcessConformance):
    """With a home on the host's own file system."""


@pytest.fixture
def planarian(tmp_path: Path) -> Iterator[Planarian]:
    with Planarian.open(tmp_path / "home") as planarian:
        yield planarian
        remove_all(planarian)


def make(planarian: Planarian, workspace: Path) -> Sandbox:
    sandbox = planarian.create_sandbox(workspace, sandbox="podman")
    assert sandbox.record.process == "podman"
    start_counter(sandbox, SOCKET)
    return sandbox


def podman_says(sandbox: Sandbox) -> str:
    """Podman's own account of the sandbox's container: status and pid."""
    command = ["podman", "inspect", f"planarian-{sandbox.id}", "--format={{.State.Status}} {{.State.Pid}}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_rollback_and_fork_bring_memory_and_sessions_back(planarian: Planarian, workspace: Path) -> None:
    sandbox = make(planarian, workspace)
    for wanted in (1, 2):
        assert ask_counter(sandbox, SOCKET, "add") == wanted
    sandbox.run("x=kept; cd /usr", session="shell")
    sandbox.run("echo good > f")
    good = planarian.snapshot(sandbox, name="good")
    assert ask_counter(sandbox, SOCKET, "add") == 3
    sandbox.run("x=lost; cd /", session="shell")
    sandbox.run("echo bad > f")
    sandbox.rollback(good)
    fork = planarian.fork(good)
    for one in (sandbox, fork):
        assert one.run("cat f").stdout == "good\n"
        assert ask_counter(one, SOCKET, "get") == 2
        assert one.run("echo $x $PWD", session="shell").stdout == "kept /usr\n"
        live = one.record.live
        assert live is not None
        assert podman_says(one) == f"running {live.init_pid}"
    assert ask_counter(fork, SOCKET, "add") == 3
    assert ask_counter(sandbox, SOCKET, "get") == 2


def test_what_has_not_moved_takes_no_checkpoint(planarian: Planarian, workspace: Path) -> None:
    sandbox = make(planarian, workspace)
    one = planarian.snapshot(sandbox)
    assert ask_counter(sandbox, SOCKET, "add") == 1
    two, same = planarian.snapshot(sandbox), planarian.snapshot(sandbox)
    assert one.processes is not None
    assert two.processes is not None
    assert same.processes is not None
    assert one.processes.details["manifest"] != two.processes.details["manifest"]
    assert same.processes.details["manifest"] == two.processes.details["manifest"]
    assert f"unmoved since {two.id}" in "; ".join(same.coverage.captured)
    planarian.rollback(sandbox, same)
    assert ask_counter(sandbox, SOCKET, "get") == 1


def test_a_snapshot_that_a_call_asks_for(planarian: Planarian, workspace: Path) -> None:
    """The call's own processes are in the image, and die in a restore before they run."""
    sandbox = make(planarian, workspace)
    done = sandbox.run("echo begun > f; planarian snapshot here && echo more >> f")
    assert done.exit_code == 0, done
    sandbox.rollback("here")
    assert sandbox.run("sleep 0.3; cat f").stdout == "begun\n"
    assert ask_counter(sandbox, SOCKET, "get") == 0


@pytest.mark.parametrize("fault", ["snapshot.files", "snapshot.captured", "rollback.stopped", "rollback.restored"])
def test_a_runtime_killed_at_a_fault_point(planarian: Planarian, workspace: Path, fault: str) -> None:
    sandbox = make(planarian, workspace)
    assert ask_counter(sandbox, SOCKET, "add") == 1
    planarian.snapshot(sandbox, name="good")
    assert ask_counter(sandbox, SOCKET, "add") == 2
    kind = fault.partition(".")[0]
    operate = Path(__file__).parents[1] / "crash" / "operate.py"
    done = subprocess.run(
        [sys.executable, str(operate), str(planarian.home), kind, sandbox.id, "good" if kind == "rollback" else "two"],
        env={**os.environ, "PLANARIAN_FAULT": f"{fault}=kill"}, capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    with Planarian.open(planarian.home) as again:
        survivor = again.sandbox(sandbox.id)
        assert ask_counter(survivor, SOCKET, "get", tries=200) == (1 if kind == "rollback" else 2)
        again.snapshot(survivor, name="three")
        again.rollback(survivor, "good")
        assert ask_counter(survivor, SOCKET, "get") == 1


def test_a_runtime_that_fails_its_checkpoint_says_why(planarian: Planarian, workspace: Path) -> None:
    sandbox = make(planarian, workspace)
    good = planarian.snapshot(sandbox, name="good")
    assert ask_counter(sandbox, SOCKET, "add") == 1
    (planarian.home / "mounts" / f"{sandbox.id}.criu" / "hook").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(CaptureError, match="could not be captured: what CRIU asks") as caught:
        planarian.snapshot(sandbox, name="two")
    assert "runs on" in caught.value.state
    assert ask_counter(sandbox, SOCKET, "add") == 2
    planarian.rollback(sandbox, good, safety=False)
    assert ask_counter(sandbox, SOCKET, "get") == 0
