"""kill -9 in calls of a SQLite service, and in rollbacks that undo them and do them again: the file is always exact.

The file holds the truth: a call that was killed after its commit is found, one that was killed before never happened.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from planarian_core import Planarian
from planarian_core.faults import POINTS
from planarian_core.model import EffectState
from planarian_core.sandbox import Sandbox
from planarian_core.testing.sqlite_contents import Contents, contents
from planarian_core.testing.workloads import remove_all

apsw = pytest.importorskip("apsw")
pytestmark = pytest.mark.thorough

OPERATE = Path(__file__).with_name("operate_sqlite.py")
CALLS = [point for point in POINTS if point.startswith(("call.", "sqlite."))]
MOVES = [point for point in POINTS if point.startswith(("rollback.", "compensate.", "sqlite."))]
STATEMENTS = [
    "INSERT OR REPLACE INTO t VALUES (2, 'one', 0)",
    "UPDATE t SET n = n + 1",
    "CREATE TABLE m (a INTEGER PRIMARY KEY AUTOINCREMENT, b)",
    "INSERT INTO t SELECT a + 10, b || 'x', n FROM t",
    "ALTER TABLE t RENAME COLUMN n TO nn",
    "DROP TABLE t",
]


class World:
    def __init__(self, tmp_path: Path, journal: str) -> None:
        self.home, self.workspace, self.database = tmp_path / "home", tmp_path / "workspace", tmp_path / "notes.db"
        self.workspace.mkdir()
        self.home.mkdir()
        table = f'[services.notes]\nkind = "sql"\ndialect = "sqlite"\npath = "{self.database}"\n'
        (self.home / "planarian.toml").write_text(table)
        connection = apsw.Connection(str(self.database))
        connection.execute(f"PRAGMA journal_mode = {journal}")
        connection.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b UNIQUE, n)")
        connection.execute("INSERT INTO t VALUES (1, 'one', 1), (2, 'two', 2), (3, 'three', -0.0)")
        connection.close()

    def contents(self) -> Contents:
        return contents(self.database)

    def call(self, planarian: Planarian, sandbox: Sandbox, sql: str) -> None:
        session = planarian.remote_session(sandbox, "notes")
        session.call("execute_sql", {"sql": sql}, session.kind.connect())

    def operate(self, what: str, argument: str, *, fault: str) -> int:
        return subprocess.run(
            [sys.executable, str(OPERATE), str(self.home), what, argument],
            env={**os.environ, "PLANARIAN_FAULT": fault}, capture_output=True, timeout=120, check=False,
        ).returncode  # fmt: skip


@pytest.fixture(params=["DELETE", "WAL"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(tmp_path, request.param)
    with Planarian.open(made.home) as planarian:
        planarian.create_sandbox(made.workspace, sandbox="directory", filesystem="copy", process="none")
    yield made
    with Planarian.open(made.home) as planarian:
        remove_all(planarian)


@pytest.mark.parametrize("point", CALLS)
@pytest.mark.parametrize("statement", [STATEMENTS[0], STATEMENTS[-1]])
def test_killed_in_a_call(world: World, statement: str, point: str) -> None:
    with Planarian.open(world.home) as planarian:
        start, before = planarian.snapshot(planarian.sandbox()), world.contents()
    assert world.operate("call", statement, fault=f"{point}=kill") == -9
    happened = point not in ("call.begun", "sqlite.written")
    after = world.contents()
    assert (after != before) is happened
    with Planarian.open(world.home) as planarian:
        sandbox = planarian.sandbox()
        end = planarian.snapshot(sandbox)
        assert planarian.effects(sandbox)[-1].state is (EffectState.APPLIED if happened else EffectState.VOID)
        planarian.rollback(sandbox, start)
        assert world.contents() == before
        planarian.rollback(sandbox, end)
        assert world.contents() == after


@pytest.mark.parametrize("point", MOVES)
def test_killed_in_a_rollback_and_in_its_undoing(world: World, point: str) -> None:
    with Planarian.open(world.home) as planarian:
        sandbox = planarian.sandbox()
        start, before = planarian.snapshot(sandbox).id, world.contents()
        for statement in STATEMENTS:
            world.call(planarian, sandbox, statement)
        end, after = planarian.snapshot(sandbox).id, world.contents()
    for there, state, other in ((start, before, after), (end, after, before)):
        assert world.operate("rollback", there, fault=f"{point}=kill") == -9
        assert world.contents() in (state, other)
        with Planarian.open(world.home) as planarian:
            assert all(done.error == "" for done in planarian.recovered)
            sandbox = planarian.sandbox()
            planarian.rollback(sandbox, there)
            assert world.contents() == state
            states = {effect.state for effect in planarian.effects(sandbox)}
            assert states == {EffectState.UNDONE if there == start else EffectState.APPLIED}


@pytest.mark.parametrize("seed", range(3))
def test_random_kills(world: World, seed: int) -> None:
    """Calls and rollbacks, each killed somewhere; every statepoint can be had back exactly."""
    chance = random.Random(seed)  # noqa: S311  # no secret
    known: dict[str, Contents] = {}
    for step in range(8):
        with Planarian.open(world.home) as planarian:
            sandbox = planarian.sandbox()
            row = f"({step % 4}, 'b{step % 3}', {step})"
            world.call(planarian, sandbox, f"INSERT OR REPLACE INTO t VALUES {row}")  # noqa: S608
            known[planarian.snapshot(sandbox).id] = world.contents()
        target = chance.choice(sorted(known))
        if chance.random() < 0.5:
            world.operate("rollback", target, fault=f"{chance.choice(MOVES)}=kill")
        else:
            statement = "UPDATE t SET n = n + 100"
            assert world.operate("call", statement, fault=f"{chance.choice(CALLS)}=kill") == -9
        with Planarian.open(world.home) as planarian:
            planarian.rollback(planarian.sandbox(), target)
            assert world.contents() == known[target]


def test_killed_at_any_moment(world: World) -> None:
    """Not only at named points: the process dies somewhere in a statement of many rows."""
    with Planarian.open(world.home) as planarian:
        sandbox = planarian.sandbox()
        numbers = "WITH n (i) AS (VALUES (100) UNION ALL SELECT i + 1 FROM n WHERE i < 20000)"
        world.call(planarian, sandbox, f"{numbers} INSERT INTO t SELECT i, i, i FROM n")  # noqa: S608
        start, before = planarian.snapshot(sandbox), world.contents()
    for seconds in (0.3, 0.5, 0.7, 1.0, 1.5):
        process = subprocess.Popen(
            [sys.executable, str(OPERATE), str(world.home), "call", "UPDATE t SET n = -n, b = 'x' || b"]
        )
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with Planarian.open(world.home) as planarian:
            planarian.rollback(planarian.sandbox(), start)
        assert world.contents() == before
