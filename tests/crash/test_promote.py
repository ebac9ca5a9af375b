"""kill -9 of ``planarian promote`` at its named points: the source is as before or promoted, and nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from planarian_core import Planarian
from planarian_core.faults import POINTS
from planarian_core.model import Status
from planarian_core.sandbox import Sandbox

COMMAND = [sys.executable, "-c", "from planarian_core.cli.main import main; main()"]
PROMOTED = ("rollback.stopped", "rollback.switched", "rollback.restored", "rollback.committed")
BEFORE = (
    "snapshot.begun",
    "snapshot.durable",
    "snapshot.committed",
    "promote.begun",
    "promote.shared",
    "rollback.begun",
)


def _promote(home: Path, point: str = "") -> int:
    env = {**os.environ, "PLANARIAN_HOME": str(home), "PLANARIAN_FAULT": f"{point}=kill" if point else ""}
    arguments = ["promote", "attempt", "--force"]
    done = subprocess.run([*COMMAND, *arguments], env=env, capture_output=True, timeout=120, check=False)
    assert done.returncode == (-signal.SIGKILL if point else 0), done.stderr.decode()
    return done.returncode


def _prepare(planarian: Planarian, source: Sandbox) -> Sandbox:
    """The source went on to ``unsaved`` since its fork, which went on to ``attempted``."""
    source.run("echo base > f")
    source.spawn(["sleep", "1000"])
    planarian.snapshot(source, name="base")
    fork = planarian.fork("base", of=source, name="attempt")
    fork.run("echo attempted > f; echo new > new")
    source.run("echo unsaved > f")
    return fork


def _committed_files(planarian: Planarian, sandbox: Sandbox) -> set[str]:
    """What the file ``f`` holds at each committed statepoint of a sandbox."""
    found = set()
    for statepoint in planarian.registry.statepoints(sandbox.id):
        if statepoint.status is Status.COMMITTED:
            planarian.rollback(sandbox, statepoint, safety=False)
            found.add(sandbox.run("cat f").stdout.strip())
    return found


def test_the_points_are_named() -> None:
    assert set(PROMOTED + BEFORE) <= set(POINTS)
    assert {point for point in POINTS if point.startswith("promote.")} <= set(BEFORE)


@pytest.mark.parametrize("point", [*BEFORE, *PROMOTED])
def test_killed_in_a_promotion(planarian: Planarian, sandbox: Sandbox, point: str) -> None:
    source, fork = sandbox, _prepare(planarian, sandbox)
    _promote(planarian.home, point)
    assert not [done.error for done in planarian.recover() if done.error]
    assert planarian.registry.operations() == []
    assert source.run("cat f").stdout == ("attempted\n" if point in PROMOTED else "unsaved\n")
    assert source.run("pgrep -x sleep").exit_code == 0
    assert fork.run("cat f new").stdout == "attempted\nnew\n", "the fork was only captured"
    if point in BEFORE:
        assert planarian.resolve(source, "@head").name == "base"
        _promote(planarian.home)
        assert source.run("cat f new").stdout == "attempted\nnew\n"
    planarian.remove_sandbox(fork)
    assert _committed_files(planarian, source) == {"base", "attempted", "unsaved"}, "all of it can be had"
