"""kill -9 of the runtime at every point of a ``restore``, then reopen: all of its paths are restored, or none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from planarian_core import Planarian
from planarian_core.faults import POINTS
from planarian_core.sandbox import Sandbox
from planarian_core.testing.oracle import Description, assert_same, describe
from planarian_core.testing.workloads import remove_all

PLANARIAN = Path(sys.executable).with_name("planarian")
KINDS = [
    pytest.param("namespace", marks=pytest.mark.needs("namespaces")),
    pytest.param("directory"),
]


class World:
    """A home with one sandbox, a statepoint ``one`` of it, and other files now. A process runs in it."""

    def __init__(self, home: Path, workspace: Path, kind: str) -> None:
        self.home = home
        self.kind = kind
        with Planarian.open(home) as planarian:
            box = planarian.create_sandbox(workspace, name="box", sandbox=kind, filesystem="copy", process="respawn")
            box.run("mkdir -p d/e; echo one | tee d/1 d/2 d/3; ln d/1 d/e/hard; ln -s 1 d/link; echo r > r")
            box.spawn(["sleep", "7654.3"])
            planarian.snapshot(box, name="one")
            self.one = self.tree(box, "d")
            box.run("echo two | tee d/1 d/2; rm -r d/3 d/e; rm d/link; mkdir d/link d/new; echo two > r")
            self.two = self.tree(box, "d")

    @staticmethod
    def tree(box: Sandbox, path: str) -> Description:
        live = box.record.live
        assert live is not None
        root = f"/proc/{live.init_pid}/root" if live.init_pid else ""
        found = {}
        for name, facts in describe(f"{root}{box.workspace}/{path}").items():
            attributes = tuple(one for one in facts[4] if not one[0].startswith("trusted.overlay."))
            found[name] = (*facts[:4], attributes, *facts[5:])
        return found

    def restore(self, fault: str) -> int:
        done = subprocess.run(
            [PLANARIAN, "restore", "d", "--from", "one"],
            env={**os.environ, "PLANARIAN_HOME": str(self.home), "PLANARIAN_FAULT": fault},
            capture_output=True, timeout=300, check=False,
        )  # fmt: skip
        return done.returncode


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path, workspace: Path) -> Iterator[World]:
    world = World(tmp_path / "home", workspace, request.param)
    yield world
    with Planarian.open(world.home) as planarian:
        remove_all(planarian)


def _points() -> list[str]:
    return [point for point in POINTS if point.startswith("restore.")]


@pytest.mark.parametrize("point", _points())
def test_killed_in_a_restore(world: World, point: str) -> None:
    assert world.restore(f"{point}=kill") == -9
    with Planarian.open(world.home) as planarian:
        box = planarian.sandbox("box")
        assert not planarian.registry.operations(), planarian.recovered
        assert all(not done.error for done in planarian.recovered)
        restored = point != "restore.begun"
        assert_same(world.tree(box, "d"), world.one if restored else world.two)
        assert box.run("cat r").stdout == "two\n", "the rest is not touched"
        assert box.run("pgrep -f '7654[.]3'").exit_code == 0, "what ran runs on"
        if restored:
            safety = planarian.registry.statepoints(box.id)[-1]
            planarian.restore_paths(box, safety, ["d"])
            assert_same(world.tree(box, "d"), world.two)
        planarian.restore_paths(box, "one", ["d"])
        assert_same(world.tree(box, "d"), world.one)


@pytest.mark.parametrize("point", ["restore.begun", "restore.safe", "restore.written"])
def test_a_full_disk_in_a_restore(world: World, point: str) -> None:
    assert world.restore(f"{point}=fail") == 1
    with Planarian.open(world.home) as planarian:
        box = planarian.sandbox("box")
        assert not planarian.registry.operations()
        assert_same(world.tree(box, "d"), world.two)


def test_a_sandbox_that_died_meanwhile_is_not_waited_for(world: World) -> None:
    """Killed half-way, and then the sandbox's own processes are gone too: the journal ends, and says what to do."""
    assert world.restore("restore.half=kill") == -9
    with Planarian.open(world.home, recover=False) as planarian:
        box = planarian.sandbox("box")
        backend = planarian.plugins.sandbox(world.kind)
        backend.stop(box.record.spec, box.record.live)
    with Planarian.open(world.home) as planarian:
        box = planarian.sandbox("box")
        assert not planarian.registry.operations()
        assert "planarian rollback" in planarian.recovered[0].result
        planarian.rollback(box, planarian.registry.statepoints(box.id)[-1])
        assert_same(world.tree(box, "d"), world.two)


def test_a_rollback_after_it_is_not_overtaken(world: World) -> None:
    """A restore that could not be finished before a rollback is not finished after it."""
    assert world.restore("restore.half=kill") == -9
    with Planarian.open(world.home, recover=False) as planarian:
        box = planarian.sandbox("box")
        box.run("echo three > d/1")
        planarian.snapshot(box, name="three")
        box.run("echo four > d/1")
    with Planarian.open(world.home) as planarian:
        box = planarian.sandbox("box")
        assert "brought elsewhere" in planarian.recovered[0].result
        assert box.run("cat d/1").stdout == "four\n"
