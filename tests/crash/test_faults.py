"""What breaks on real hosts, on the real backends: each gives a clear error, and nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from planarian_core import Planarian
from planarian_core.errors import CaptureError, LineageError, PlanarianError, RestoreError, SandboxError
from planarian_core.model import Domain, Status
from planarian_core.sandbox import Sandbox
from planarian_core.testing.fakes import FakePlugin, FakeService
from planarian_core.testing.workloads import remove_all


def _damage(path: Path) -> None:
    """Flip one byte in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.chmod(0o600)
    path.write_bytes(data)


def test_a_damaged_blob_is_found_before_anything_is_touched(planarian: Planarian, sandbox: Sandbox) -> None:
    sandbox.run("printf 'precious content' > f")
    planarian.snapshot(sandbox, name="one")
    sandbox.run("printf 'later' > f")
    blobs = [p for p in (planarian.home / "store").rglob("*") if p.is_file() and p.read_bytes() == b"precious content"]
    assert len(blobs) == 1
    _damage(blobs[0])
    with pytest.raises(RestoreError, match=r"blob") as caught:
        planarian.rollback(sandbox, "one")
    assert caught.value.remedy
    assert sandbox.run("cat f").stdout == "later"


def test_a_deleted_blob_is_found_before_anything_is_touched(planarian: Planarian, sandbox: Sandbox) -> None:
    sandbox.run("printf 'precious content' > f")
    planarian.snapshot(sandbox, name="one")
    sandbox.run("printf 'later' > f")
    for path in (planarian.home / "store").rglob("*"):
        if path.is_file() and path.read_bytes() == b"precious content":
            path.unlink()
    with pytest.raises(RestoreError):
        planarian.rollback(sandbox, "one")
    assert sandbox.run("cat f").stdout == "later"


@pytest.mark.needs("root", "criu", "namespaces")
@pytest.mark.parametrize("how", ["damaged", "deleted", "truncated"])
def test_a_bad_image_is_refused_and_the_files_alone_can_be_had(planarian: Planarian, workspace: Path, how: str) -> None:
    sandbox = planarian.create_sandbox(workspace, sandbox="namespace", process="criu")
    sandbox.spawn(["sleep", "1000"])
    sandbox.run("echo one > f")
    point = planarian.snapshot(sandbox, name="one")
    sandbox.run("echo two > f")
    images = planarian.home / "statepoints" / point.id / "images"
    pages = max(images.rglob("pages-*.img"), key=lambda p: p.stat().st_size)
    if how == "damaged":
        _damage(pages)
    elif how == "deleted":
        pages.unlink()
    else:
        os.truncate(pages, pages.stat().st_size - 4096)
    with pytest.raises(RestoreError):
        planarian.rollback(sandbox, "one")
    assert sandbox.run("cat f").stdout == "two\n"
    assert sandbox.run("pgrep sleep").exit_code == 0, "what ran runs on"
    planarian.rollback(sandbox, "one", files_only=True)
    assert sandbox.run("cat f").stdout == "one\n"


def test_a_sandbox_whose_processes_were_killed_comes_back(planarian: Planarian, sandbox: Sandbox) -> None:
    sandbox.run("echo one > f")
    planarian.snapshot(sandbox, name="one")
    record = sandbox.record
    assert record.live is not None
    if record.live.init_pid:
        os.kill(record.live.init_pid, signal.SIGKILL)
        while planarian.sandboxes.running(record):
            time.sleep(0.01)
        with pytest.raises(SandboxError) as caught:
            sandbox.run(["true"])
        assert "planarian attach" in caught.value.remedy
    else:
        sandbox.stop()
    planarian.rollback(sandbox, "@head")
    assert sandbox.run("cat f").stdout == "one\n"


def test_a_stopped_sandbox_comes_back_by_a_rollback(planarian: Planarian, sandbox: Sandbox) -> None:
    sandbox.run("echo one > f")
    planarian.snapshot(sandbox, name="one")
    sandbox.run("echo two > f")
    sandbox.stop()
    with pytest.raises(SandboxError, match="closed"):
        sandbox.run(["true"])
    restored = planarian.rollback(sandbox, "one")
    assert sandbox.run("cat f").stdout == "one\n"
    assert restored.safety_id is not None
    planarian.rollback(sandbox, restored.safety_id)
    assert sandbox.run("cat f").stdout == "two\n", "even the state of a stopped sandbox is kept"


def test_a_snapshot_in_the_background_overlaps_and_the_next_call_waits(planarian: Planarian, sandbox: Sandbox) -> None:
    sandbox.run("for i in $(seq 200); do echo $i > file$i; done")
    future = planarian.snapshot(sandbox, name="background", wait=False)
    sandbox.run("rm file1")
    assert future.result(60).status is Status.COMMITTED
    planarian.rollback(sandbox, "background")
    assert sandbox.run("cat file1").stdout == "1\n"


def test_a_snapshot_waits_for_calls_and_is_of_a_boundary_between_them(planarian: Planarian, sandbox: Sandbox) -> None:
    import threading

    call = threading.Thread(target=lambda: sandbox.run("echo begun > f; sleep 0.5; echo ended > f"))
    call.start()
    while sandbox.run("cat f").stdout != "begun\n":
        time.sleep(0.01)
    planarian.snapshot(sandbox, name="after")
    call.join()
    sandbox.run("rm f")
    planarian.rollback(sandbox, "after")
    assert sandbox.run("cat f").stdout == "ended\n"


@pytest.mark.needs("root", "criu", "namespaces")
def test_a_host_upgrade_under_a_sandbox_is_named(planarian: Planarian, workspace: Path) -> None:
    sandbox = planarian.create_sandbox(workspace, sandbox="namespace", process="criu")
    planarian.snapshot(sandbox, name="one")
    planarian.registry.update_sandbox(replace(sandbox.record, base="another host"))
    with pytest.raises(CaptureError) as caught:
        planarian.snapshot(sandbox, name="two")
    assert caught.value.code == "base-changed"
    assert "--files-only" in caught.value.remedy
    assert sandbox.run(["true"]).exit_code == 0
    two = planarian.snapshot(sandbox, name="two", files_only=True)
    assert any(gap.domain is Domain.PROCESSES for gap in two.coverage.missing)
    planarian.registry.commit(replace(planarian.resolve(sandbox, "one"), base="another host"), move_head=False)
    with pytest.raises(RestoreError) as refused:
        planarian.fork("one", of=sandbox)
    assert refused.value.code == "base-changed"
    assert planarian.fork("one", of=sandbox, files_only=True).run(["true"]).exit_code == 0
    by_policy = planarian.snapshot(sandbox, automatic=True)
    assert any("packages changed" in gap.reason for gap in by_policy.coverage.missing), "files alone, and it says why"


@pytest.fixture
def small_home(tmp_path: Path) -> Iterator[Planarian]:
    """A home on a file system of 24 MB."""
    home = tmp_path / "small"
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "small", str(home)], check=True)
    try:
        with Planarian.open(home) as planarian:
            yield planarian
            remove_all(planarian)
    finally:
        subprocess.run(["umount", "-l", str(home)], check=True)


@pytest.mark.needs("root", "namespaces")
@pytest.mark.parametrize("kind", ["namespace", "directory"])
def test_a_full_disk_loses_nothing(small_home: Planarian, workspace: Path, kind: str) -> None:
    planarian = small_home
    sandbox = planarian.create_sandbox(workspace, sandbox=kind)
    sandbox.run("echo one > f")
    planarian.snapshot(sandbox, name="one")
    sandbox.run("head -c 13M /dev/urandom > big" if kind == "namespace" else "head -c 40M /dev/urandom > big")
    with pytest.raises(PlanarianError) as caught:
        planarian.snapshot(sandbox, name="two")
    assert "space" in caught.value.remedy + caught.value.message
    assert "runs on" in caught.value.state or "running" in caught.value.state
    assert sandbox.run("cat f; stat -c %s big").exit_code == 0
    with pytest.raises(LineageError):
        planarian.resolve(sandbox, "two")
    sandbox.run("rm big")
    planarian.snapshot(sandbox, name="two")
    planarian.rollback(sandbox, "one")
    assert sandbox.run("cat f").stdout == "one\n"


@pytest.mark.parametrize("asked", ["from outside", "by the agent"])
def test_a_workspace_that_was_deleted_altogether_comes_back(planarian: Planarian, sandbox: Sandbox, asked: str) -> None:
    sandbox.run("mkdir src; echo one > src/f")
    planarian.snapshot(sandbox, name="one")
    delete = f"cd / && rm -rf {sandbox.workspace}"
    if asked == "by the agent":
        text = sandbox.run(f"{delete}; planarian rollback one; echo never").stdout
        assert "was rolled back to" in text
        assert "never" not in text
    else:
        sandbox.run(delete)
        planarian.rollback(sandbox, "one")
    assert sandbox.run("cat src/f").stdout == "one\n"


def test_a_rollback_that_would_be_refused_does_not_end_the_agent_s_call(
    tmp_path: Path, workspace: Path, backends: tuple[str, str]
) -> None:
    service = FakeService()
    with Planarian.open(tmp_path / "home", plugins=[FakePlugin([service])]) as planarian:
        sandbox = planarian.create_sandbox(workspace, sandbox=backends[0], process=backends[1])
        planarian.snapshot(sandbox, name="one")
        service.put("mail", "sent", pivot=True)
        result = sandbox.run("planarian rollback one || echo refused; planarian rollback nothing || echo unknown")
        assert result.stdout == "refused\nunknown\n"
        assert "can't be undone" in result.stderr
        remove_all(planarian)


def test_a_snapshot_from_inside_is_of_that_moment_and_its_call_does_not_go_on_after_a_rollback(
    planarian: Planarian, sandbox: Sandbox
) -> None:
    script = "echo before > f; sleep 1000 & planarian snapshot middle && echo after > f && echo again >> ran"
    result = sandbox.run(script)
    assert result.exit_code == 0, result.stderr
    assert sandbox.run("cat f ran").stdout == "after\nagain\n"
    point = planarian.resolve(sandbox, "middle")
    assert [p.argv for p in point.process_list] == [("sleep", "1000")], "the call itself is no part of it"
    assert not any("planarian" in gap.subject for gap in point.coverage.missing)
    planarian.rollback(sandbox, "middle")
    time.sleep(0.3)
    assert sandbox.run("cat f; ls").stdout == "before\nf\nhello.txt\n"
    assert sandbox.run("pgrep -x sleep | wc -l").stdout != "0\n"


def test_files_are_named_as_the_agent_sees_them(planarian: Planarian, sandbox: Sandbox) -> None:
    planarian.snapshot(sandbox, name="one")
    sandbox.run("echo two > hello.txt; mkdir src; echo new > src/f")
    named = planarian.rollback(sandbox, "one").files_sample
    if sandbox.record.spec.backend == "namespace":
        assert f"{sandbox.workspace}/hello.txt" in named
        assert all(path.startswith("/") and "planarian/calls" not in path for path in named)
    else:
        assert "hello.txt" in named


def test_what_the_user_does_in_the_workspace_meanwhile_is_in_no_statepoint(
    planarian: Planarian, sandbox: Sandbox, workspace: Path
) -> None:
    """An isolated sandbox stands on the workspace as it was; a directory sandbox works in it, so there it is undone."""
    (workspace / "link").symlink_to("hello.txt")
    planarian.snapshot(sandbox, name="one")
    (workspace / "hello.txt").write_text("changed on the host\n")
    (workspace / "later.txt").write_text("new on the host\n")
    planarian.rollback(sandbox, "one")
    assert sandbox.run("cat hello.txt; ls later.txt").stdout == "hello\n"
    fork = planarian.fork("one", of=sandbox)
    assert fork.run("cat hello.txt; ls later.txt").stdout == "hello\n"
    if sandbox.record.spec.backend == "namespace":
        assert (workspace / "hello.txt").read_text() == "changed on the host\n", "the user's files are the user's"
        planarian.remove_sandbox(fork)
        assert sandbox.run("cat hello.txt").stdout == "hello\n", "what forks share outlives a fork"


@pytest.mark.needs("root", "criu", "namespaces")
def test_a_rollback_stuck_on_processes_is_finished_without_them(planarian: Planarian, workspace: Path) -> None:
    sandbox = planarian.create_sandbox(workspace, sandbox="namespace", process="criu")
    sandbox.run("echo one > f")
    planarian.snapshot(sandbox, name="one")
    sandbox.run("echo two > f")
    # Both images become impossible to restore after the checks have passed: a device below that the images need.
    engine = planarian.plugins.process("criu")
    restore = engine.restore  # type: ignore[attr-defined]  # RestoresTree

    def fail(*_: object, **__: object) -> int:
        raise RestoreError("the processes could not be restored: a test says so")

    engine.restore = fail  # type: ignore[attr-defined]
    try:
        with pytest.raises(RestoreError) as caught:
            planarian.rollback(sandbox, "one")
        assert caught.value.code == "rollback-unfinished"
        assert "recover --files-only" in caught.value.remedy
        (left,) = planarian.recover()
        assert left.error
    finally:
        engine.restore = restore  # type: ignore[attr-defined]
    (done,) = planarian.recover(files_only=True)
    assert not done.error
    assert sandbox.run("cat f").stdout == "one\n"


@pytest.mark.needs("root", "namespaces")
def test_a_sandbox_that_fills_the_disk_can_be_taken_back_and_removed(small_home: Planarian, workspace: Path) -> None:
    planarian = small_home
    sandbox = planarian.create_sandbox(workspace, sandbox="namespace")
    sandbox.run("echo one > f")
    planarian.snapshot(sandbox, name="one")
    with suppress(SandboxError):  # the command's own output may find no room any more
        sandbox.run("cat /dev/urandom > full; sync")
    assert os.statvfs(planarian.home).f_bavail * os.statvfs(planarian.home).f_frsize < 1024 * 1024
    planarian.close()
    with Planarian.open(planarian.home) as again:
        sandbox = again.sandbox(sandbox.id)
        with pytest.raises(PlanarianError) as caught:
            again.rollback(sandbox, "one")
        assert "--no-safety" in caught.value.remedy
        again.rollback(sandbox, "one", safety=False)
        assert sandbox.run("cat f; ls full").stdout == "one\n"
        again.remove_sandbox(sandbox)


def test_rm_leaves_nothing_and_a_directory_s_workspace_alone(
    planarian: Planarian, sandbox: Sandbox, workspace: Path
) -> None:
    sandbox.run("echo secret > f")
    planarian.snapshot(sandbox, name="one")
    kind = sandbox.record.spec.backend
    planarian.remove_sandbox(sandbox)
    store = planarian.home / "store"
    assert not [p for p in store.rglob("*") if p.is_file() and b"secret" in p.read_bytes()]
    assert list((planarian.home / "sandboxes").iterdir()) == []
    assert list((planarian.home / "statepoints").iterdir()) == []
    assert (workspace / "f").exists() == (kind == "directory")


def test_an_agent_s_forks_are_limited_its_forks_agents_included(planarian: Planarian, sandbox: Sandbox) -> None:
    planarian.with_config(agent_forks=2)
    planarian.snapshot(sandbox, name="one")
    first = sandbox.run("planarian fork one -n first")
    assert first.exit_code == 0, first.stderr
    fork = planarian.sandbox("first")
    assert fork.record.made_by == sandbox.id
    assert fork.run("planarian fork one").exit_code == 0, "a fork's agent may fork from where it came from"
    for asking in (sandbox, fork):
        refused = asking.run("planarian fork one")
        assert refused.exit_code != 0
        assert "no more than 2" in refused.stderr
    assert len(planarian.registry.sandboxes()) == 3
    planarian.fork("one", of=sandbox)  # the user is not limited


def test_a_fork_s_agent_speaks_under_its_own_name(planarian: Planarian, sandbox: Sandbox) -> None:
    planarian.snapshot(sandbox, name="one")
    fork = planarian.fork("one", of=sandbox)
    assert fork.run("planarian outcome one it went well --status succeeded").exit_code == 0
    assert f"agent of {fork.id}" in planarian.ledger(sandbox).to_markdown()
