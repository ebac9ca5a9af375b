"""kill -9 of ``planarian prune`` at every named point: the pruned stay pruned, the rest can be had, all is freed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from planarian_core import Planarian, quota
from planarian_core.errors import CaptureError, LineageError
from planarian_core.faults import POINTS
from planarian_core.model import Status
from planarian_core.prune_choice import PrunePolicy
from planarian_core.sandbox import Sandbox
from planarian_core.testing.workloads import remove_all

COMMAND = [sys.executable, "-c", "from planarian_core.cli.main import main; main()"]
PRUNE = ["prune", "--keep-last", "2"]
PRUNING = [point for point in POINTS if point.startswith("prune.")]


def _killed(home: Path, arguments: list[str], point: str) -> None:
    env = {**os.environ, "PLANARIAN_HOME": str(home), "PLANARIAN_FAULT": f"{point}=kill"}
    done = subprocess.run([*COMMAND, *arguments], env=env, capture_output=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


def _prepare(planarian: Planarian, sandbox: Sandbox) -> None:
    """Statepoints ``one`` to ``four`` with content of their own beside a shared file and a process."""
    sandbox.run("echo shared > shared")
    sandbox.spawn(["sleep", "1000"])
    for text in ("one", "two", "three", "four"):
        sandbox.run(f"echo 'only in {text}' > f")
        planarian.snapshot(sandbox, description=text)


def _contents(home: Path) -> bytes:
    return b"".join(p.read_bytes() for p in sorted((home / "store" / "objects").rglob("*")) if p.is_file())


def _check(planarian: Planarian, sandbox: Sandbox) -> None:
    """All is as after a pruning that nothing disturbed."""
    points = planarian.registry.statepoints(sandbox.id)
    assert [s.status for s in points] == [Status.PRUNED] * 2 + [Status.COMMITTED] * 2
    assert planarian.registry.operations() == []
    stored = _contents(planarian.home)
    for text, there in (("one", False), ("two", False), ("three", True), ("four", True)):
        assert (f"only in {text}".encode() in stored) == there, text
    kept = {s.owner(s.processes) for s in points[2:] if s.processes}
    assert {folder.name for folder in (planarian.home / "statepoints").iterdir()} == kept
    for pruned in points[:2]:
        assert pruned.description in ("one", "two"), "its evidence is left"
        with pytest.raises(LineageError, match="was pruned"):
            planarian.rollback(sandbox, pruned.id)
    assert sandbox.run("cat f").stdout == "only in four\n"
    for kept_point, text in zip(points[2:], ("three", "four"), strict=True):
        planarian.rollback(sandbox, kept_point, safety=False)
        assert sandbox.run("cat f shared").stdout == f"only in {text}\nshared\n"
        assert sandbox.run("pgrep -x sleep").exit_code == 0
    assert quota.stored(planarian.registry) >= 0
    planarian.snapshot(sandbox, name="goes on")


@pytest.mark.parametrize("point", PRUNING)
def test_killed_in_a_pruning(planarian: Planarian, sandbox: Sandbox, point: str) -> None:
    _prepare(planarian, sandbox)
    _killed(planarian.home, PRUNE, point)
    (done,) = planarian.recover()
    assert (done.operation, done.error) == ("prune", "")
    _check(planarian, sandbox)


@pytest.mark.parametrize("point", PRUNING)
def test_killed_again_while_it_is_finished(planarian: Planarian, workspace: Path, point: str) -> None:
    sandbox = planarian.create_sandbox(workspace, sandbox="directory", process="respawn")
    _prepare(planarian, sandbox)
    _killed(planarian.home, PRUNE, "prune.marked")
    _killed(planarian.home, ["recover"], point)
    planarian.recover()
    _check(planarian, sandbox)


@pytest.mark.needs("root")
def test_a_full_disk_is_pruned_free(tmp_path: Path, workspace: Path) -> None:
    home = tmp_path / "small"
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "small", str(home)], check=True)
    try:
        with Planarian.open(home) as planarian:
            sandbox = planarian.create_sandbox(workspace, sandbox="directory", process="respawn")
            for text in ("one", "two", "three"):
                sandbox.run(f"head -c 1M /dev/urandom > big; echo {text} > f")
                planarian.snapshot(sandbox, name=text)
            with suppress(OSError), open(home / "full", "wb") as file:
                while True:
                    file.write(bytes(65536))
                    file.flush()
            with pytest.raises(CaptureError) as caught:
                planarian.snapshot(sandbox)
            assert caught.value.code == "disk-low"
            pruned = planarian.prune(PrunePolicy(keep_last=1, keep_named=False))
            assert len(pruned.statepoints) == 2
            assert pruned.freed >= 2 * 1024**2
            planarian.snapshot(sandbox, name="four")
            planarian.rollback(sandbox, "three")
            assert sandbox.run("cat f").stdout == "three\n"
            remove_all(planarian)
    finally:
        subprocess.run(["umount", "-l", str(home)], check=True)


def test_between_the_kill_and_the_recovery_nothing_is_half_visible(planarian: Planarian, sandbox: Sandbox) -> None:
    """Marked, but not yet dropped: it can't be chosen, although everything of it is there still."""
    _prepare(planarian, sandbox)
    _killed(planarian.home, PRUNE, "prune.marked")
    first = planarian.registry.statepoints(sandbox.id)[0]
    assert first.status is Status.PRUNED
    for attempt in (planarian.rollback, planarian.preview_rollback):
        with pytest.raises(LineageError, match="was pruned"):
            attempt(sandbox, first.id)
    assert sandbox.run("echo runs on").stdout == "runs on\n"
    planarian.snapshot(sandbox, name="meanwhile")
    planarian.recover()
    planarian.rollback(sandbox, "meanwhile")
    assert sandbox.run("cat f").stdout == "only in four\n"
