"""kill -9 in a call of a remote service and in a rollback that compensates: nothing is lost, nothing undone twice."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from planarian_core import Planarian
from planarian_core.faults import POINTS
from planarian_core.model import EffectState
from planarian_core.sandbox import Sandbox
from planarian_core.testing.key_value import KeyValuePlugin, KeyValueTarget
from planarian_core.testing.workloads import remove_all

OPERATE = Path(__file__).with_name("operate_remote.py")
CALLS = [point for point in POINTS if point.startswith("call.")]
MOVES = [point for point in POINTS if point.startswith(("rollback.", "compensate."))]


class World:
    """A sandbox whose file ``report`` says what the store holds."""

    def __init__(self, tmp_path: Path) -> None:
        self.home, self.store = tmp_path / "home", tmp_path / "store.sqlite"
        self.workspace = tmp_path / "workspace"
        self.workspace.mkdir()

    def open(self) -> Planarian:
        return Planarian.open(self.home, plugins=[KeyValuePlugin(self.store)])

    def put(self, planarian: Planarian, sandbox: Sandbox, key: str, value: str) -> None:
        session = planarian.remote_session(sandbox, "store")
        session.call("put", {"key": key, "value": value}, KeyValueTarget(self.store))
        (self.workspace / "report").write_text(repr(sorted(self.items().items())))

    def items(self) -> dict[str, str]:
        with closing(sqlite3.connect(self.store)) as connection:
            return dict(connection.execute("SELECT key, value FROM items"))

    def report(self) -> str:
        return (self.workspace / "report").read_text()

    def agrees(self) -> bool:
        return self.report() == repr(sorted(self.items().items()))

    def operate(self, *arguments: str, fault: str) -> int:
        argv = [sys.executable, str(OPERATE), str(self.home), str(self.store), *arguments]
        env = {**os.environ, "PLANARIAN_FAULT": fault}
        return subprocess.run(argv, env=env, capture_output=True, timeout=120, check=False).returncode


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    with made.open() as planarian:
        planarian.create_sandbox(made.workspace, sandbox="directory", filesystem="copy", process="respawn")
    yield made
    with made.open() as planarian:
        remove_all(planarian)


@pytest.mark.parametrize("point", CALLS)
def test_killed_in_a_call(world: World, point: str) -> None:
    with world.open() as planarian:
        sandbox = planarian.sandbox()
        world.put(planarian, sandbox, "a", "1")
        before = planarian.snapshot(sandbox)
    assert world.operate("put", "a", "2", fault=f"{point}=kill") == -9
    happened = point != "call.begun"
    assert world.items() == {"a": "2" if happened else "1"}
    with world.open() as planarian:
        sandbox = planarian.sandbox()
        after = planarian.snapshot(sandbox)
        assert planarian.effects(sandbox)[-1].state is (EffectState.APPLIED if happened else EffectState.VOID)
        assert (after.remote != before.remote) is happened
        world.put(planarian, sandbox, "b", "3")
        planarian.rollback(sandbox, before)
        assert (world.items(), world.agrees()) == ({"a": "1"}, True)
        planarian.rollback(sandbox, after)
        assert world.items() == {"a": "2" if happened else "1"}


@pytest.mark.parametrize("point", MOVES)
@pytest.mark.parametrize("action", ["kill", "fail"])
def test_killed_or_failed_in_a_rollback(world: World, point: str, action: str) -> None:
    with world.open() as planarian:
        sandbox = planarian.sandbox()
        world.put(planarian, sandbox, "a", "1")
        point_id = planarian.snapshot(sandbox).id
        early = world.report()
        for key in "abc":
            world.put(planarian, sandbox, key, "2")
        late = world.report()
    code = world.operate("rollback", point_id, fault=f"{point}={action}")
    assert code == (-9 if action == "kill" else 1)
    with world.open() as planarian:
        assert all(done.error == "" for done in planarian.recovered)
        assert world.agrees()
        assert world.report() in (early, late)
        sandbox = planarian.sandbox()
        planarian.rollback(sandbox, point_id)
        assert (world.report(), world.agrees()) == (early, True)
        assert [e.state for e in planarian.effects(sandbox)] == [EffectState.APPLIED, *[EffectState.UNDONE] * 3]


@pytest.mark.parametrize("seed", [0, 1, pytest.param(2, marks=pytest.mark.thorough)])
def test_random_kills(world: World, seed: int) -> None:
    """Calls, snapshots and rollbacks, each killed at a random point or not; the report agrees at every statepoint."""
    chance = random.Random(seed)  # noqa: S311  # no secret
    reports: dict[str, str] = {}
    with world.open() as planarian:
        world.put(planarian, planarian.sandbox(), "a", "0")
    for step in range(12):
        with world.open() as planarian:
            sandbox = planarian.sandbox()
            world.put(planarian, sandbox, chance.choice("abc"), str(step))
            reports[planarian.snapshot(sandbox).id] = world.report()
        target = chance.choice(sorted(reports))
        if chance.random() < 0.5:
            world.operate("rollback", target, fault=f"{chance.choice(MOVES)}={chance.choice(['kill', 'fail'])}")
        else:
            world.operate("put", chance.choice("abc"), "lost", fault=f"{chance.choice(CALLS)}=kill")
        with world.open() as planarian:
            planarian.rollback(planarian.sandbox(), target)
            assert (world.report(), world.agrees()) == (reports[target], True)
