"""kill -9 of the runtime at every point of an ``apply``, then reopen: the workspace is as it was, or as it is to be."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planarian_core import Planarian
from planarian_core.faults import POINTS
from planarian_core.sandbox import Sandbox
from planarian_core.testing.oracle import assert_same, describe
from planarian_core.testing.workloads import remove_all

PLANARIAN = Path(sys.executable).with_name("planarian")
KINDS = [
    pytest.param("namespace", marks=pytest.mark.needs("namespaces")),
    pytest.param("directory"),
]
UNDOING = ("apply.undoing", "apply.undone")
POINTS_OF_APPLY = [point for point in POINTS if point.startswith("apply.") and point not in UNDOING]


class World:
    """A sandbox (or a fork of one that works in place) with changes of every kind to apply to ``workspace``."""

    def __init__(self, home: Path, workspace: Path, kind: str) -> None:
        self.home, self.workspace = home, workspace
        for name in ("a", "b", "d/one", "d/two", "e/f"):
            (workspace / name).parent.mkdir(exist_ok=True)
            (workspace / name).write_text(f"{name} of the host\n")
            os.utime(workspace / name, ns=(5, 1_000_000_000))
        (workspace / "b").chmod(0o640)
        (workspace / "link").symlink_to("a")
        with Planarian.open(home) as planarian:
            box = planarian.create_sandbox(workspace, name="box", sandbox=kind, filesystem="copy", process="none")
            if kind == "directory":
                box = planarian.fork(planarian.snapshot(box))
            self.sandbox_id = box.id
            box.run(
                "echo sandbox > a; rm b; rm -r d; echo file > d; rm -r e; ln -s /etc e; rm link; mkdir link; "
                "echo new > link/new; mkdir -p n/n; echo n > n/n/n; chmod 700 n"
            )
        self.before = self.tree()

    def tree(self) -> dict[bytes, Any]:
        """All of the workspace; of directories without the time, which moves with what comes and goes in them."""
        found = describe(self.workspace)
        return {p: (*f[:3], *f[4:]) if stat.S_ISDIR(f[0]) else f for p, f in found.items()}

    def is_applied(self) -> bool:
        seen = self.workspace
        return (
            (seen / "a").read_text() == "sandbox\n"
            and not (seen / "b").exists()
            and (seen / "d").is_file()
            and (seen / "e").is_symlink()
            and (seen / "link" / "new").read_text() == "new\n"
            and (seen / "n" / "n" / "n").read_text() == "n\n"
            and stat.S_IMODE((seen / "n").stat().st_mode) == 0o700
            and not any(name.startswith(".planarian") for name in os.listdir(seen))
        )

    def run(self, *arguments: str, fault: str = "") -> int:
        done = subprocess.run(
            [PLANARIAN, "apply", "-s", self.sandbox_id, *arguments],
            env={**os.environ, "PLANARIAN_HOME": str(self.home), "PLANARIAN_FAULT": fault},
            capture_output=True, timeout=300, check=False,
        )  # fmt: skip
        return done.returncode

    def kept(self) -> list[Path]:
        """What is kept of applications."""
        return list((self.home / "applied").glob("*"))

    def box(self, planarian: Planarian) -> Sandbox:
        assert not planarian.registry.operations(), planarian.recovered
        assert all(not done.error for done in planarian.recovered), planarian.recovered
        return planarian.sandbox(self.sandbox_id)


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path, workspace: Path) -> Iterator[World]:
    world = World(tmp_path / "home", workspace, request.param)
    yield world
    with Planarian.open(world.home) as planarian:
        remove_all(planarian)


@pytest.mark.parametrize("point", POINTS_OF_APPLY)
def test_killed_in_an_application(world: World, point: str) -> None:
    assert world.run(fault=f"{point}=kill") == -9
    with Planarian.open(world.home) as planarian:
        box = world.box(planarian)
        if point in ("apply.recorded", "apply.committed"):
            assert world.is_applied()
            planarian.undo_application(box)
        assert_same(world.tree(), world.before)
        assert planarian.registry.applications.all() == {}
        assert world.kept() == [], "nothing is left behind"
        planarian.apply(box)
        assert world.is_applied()
        planarian.undo_application(box)
        assert_same(world.tree(), world.before)


@pytest.mark.parametrize("point", UNDOING)
def test_killed_while_it_is_taken_back(world: World, point: str) -> None:
    assert world.run() == 0
    assert world.is_applied()
    assert world.run("--undo", "last", fault=f"{point}=kill") == -9
    with Planarian.open(world.home) as planarian:
        world.box(planarian)
        assert_same(world.tree(), world.before)
        assert planarian.registry.applications.all() == {}


@pytest.mark.parametrize("point", ["apply.begun", "apply.saved", "apply.half", "apply.written"])
def test_a_full_disk_in_an_application(world: World, point: str) -> None:
    assert world.run(fault=f"{point}=fail") == 1
    assert_same(world.tree(), world.before)
    with Planarian.open(world.home) as planarian:
        world.box(planarian)
        assert world.kept() == []


def test_what_the_user_did_after_the_crash_is_not_lost(world: World) -> None:
    """Between the crash and the recovery the user works on: that stays, and where the rest is, is said."""
    assert world.run(fault="apply.written=kill") == -9
    (world.workspace / "a").write_text("the user's\n")
    (world.workspace / "link" / "mine").write_text("the user's\n")
    with Planarian.open(world.home) as planarian:
        world.box(planarian)
        result = planarian.recovered[0].result
        assert "somebody changed meanwhile" in result
        assert (world.workspace / "a").read_text() == "the user's\n"
        assert (world.workspace / "link" / "mine").read_text() == "the user's\n"
        assert (world.workspace / "b").read_text() == "b of the host\n"
        kept = [path for path in (world.home / "applied").rglob("*") if path.is_file()]
        assert any(path.read_text() == "a of the host\n" for path in kept if path.name.isdigit())


def test_two_crashes_in_a_row(world: World) -> None:
    """The recovery itself is killed, and the next one finishes."""
    assert world.run(fault="apply.written=kill") == -9
    recovery = [sys.executable, "-c", "import sys; from planarian_core import Planarian; Planarian.open(sys.argv[1])"]
    code = (
        "import os, sys\nfrom planarian_core import writing\nput = writing.Writer.put\ncalls = []\n"
        "def dying(self, *arguments, **options):\n    put(self, *arguments, **options)\n    calls.append(1)\n"
        "    if len(calls) == 2:\n        os.kill(os.getpid(), 9)\nwriting.Writer.put = dying\n"
    )
    done = subprocess.run([*recovery[:2], code + recovery[2], str(world.home)], capture_output=True, check=False)
    assert done.returncode == -9, done.stderr
    with Planarian.open(world.home) as planarian:
        world.box(planarian)
        assert_same(world.tree(), world.before)
