"""kill -9 of the runtime at every point of a SQL call and of a rollback: nothing is lost, nothing undone twice."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from planarian_core.faults import POINTS
from planarian_core.testing.postgresql import PrivateCluster
from planarian_core.testing.postgresql_contents import Dump, differences
from planarian_core.testing.postgresql_service import SqlWorld, sql_world

pytestmark = pytest.mark.needs("postgresql")
OPERATE = Path(__file__).with_name("operate_sql.py")
CALLS = [point for point in POINTS if point.startswith("call.")]
MOVES = [point for point in POINTS if point.startswith(("rollback.", "compensate."))]
SCHEMA = (
    "CREATE TABLE parent (k int PRIMARY KEY, n float8 DEFAULT 0.1)",
    "CREATE TABLE child (k int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, parent int REFERENCES parent, t text)",
    "ALTER TABLE child DROP CONSTRAINT child_parent_fkey, ADD FOREIGN KEY (parent) REFERENCES parent ON DELETE CASCADE",
    "CREATE TABLE log (t text)",
    """CREATE FUNCTION logged() RETURNS trigger LANGUAGE plpgsql
    AS $$ BEGIN INSERT INTO log VALUES (TG_OP); RETURN NULL; END $$""",
    "CREATE TRIGGER logged AFTER INSERT OR UPDATE OR DELETE ON parent FOR EACH ROW EXECUTE FUNCTION logged()",
    "INSERT INTO parent SELECT generate_series(1, 20)",
    "INSERT INTO child (parent, t) SELECT 1 + i % 20, i FROM generate_series(1, 60) i",
)
STATEMENTS = (
    "UPDATE parent SET n = n + 0.2",
    "DELETE FROM parent WHERE k < 5",
    "INSERT INTO parent VALUES (2, 'NaN') ON CONFLICT DO NOTHING",
    "UPDATE child SET t = t || '!' WHERE parent > 10",
    "WITH gone AS (DELETE FROM log RETURNING t) INSERT INTO child (parent, t) SELECT 2, t FROM gone",
    "UPDATE parent SET k = k + 1 WHERE k > 15",
)
"""In this order each changes something; the last one fails on its foreign key, by itself."""


@pytest.fixture(params=["direct", pytest.param("toolbox", marks=pytest.mark.needs("npm"))])
def world(
    request: pytest.FixtureRequest, tmp_path: Path, postgresql: PrivateCluster, database: str
) -> Iterator[SqlWorld]:
    with sql_world(tmp_path, postgresql, database, through=request.param) as made:
        made.run(*SCHEMA)
        yield made


def operate(world: SqlWorld, *arguments: str, fault: str) -> int:
    argv = [sys.executable, str(OPERATE), str(world.home), *arguments]
    env = {**os.environ, "PLANARIAN_FAULT": fault}
    return subprocess.run(argv, env=env, capture_output=True, timeout=120, check=False).returncode


def assert_same(found: Dump, wanted: Dump) -> None:
    assert found == wanted, "\n".join(differences(wanted, found))


@pytest.mark.parametrize("point", CALLS)
def test_killed_in_a_call(world: SqlWorld, point: str) -> None:
    world.done(STATEMENTS[0])
    early, before = world.dump(), world.snapshot()
    assert operate(world, "call", STATEMENTS[1], fault=f"{point}=kill") == -9
    happened = point != "call.begun"
    late = world.dump()
    assert (late != early) is happened
    after = world.snapshot()  # settles it
    assert world.states() == ["applied", "applied" if happened else "void"]
    assert_same(world.dump(), late)
    world.done(STATEMENTS[3])
    world.rollback(before)
    assert_same(world.dump(), early)
    world.rollback(after)
    assert_same(world.dump(), late)


@pytest.mark.parametrize("point", MOVES)
@pytest.mark.parametrize(
    ("world", "action"),
    [("direct", "kill"), ("direct", "fail"), pytest.param("toolbox", "kill", marks=pytest.mark.needs("npm"))],
    indirect=["world"],
)
def test_killed_or_failed_in_a_rollback(world: SqlWorld, point: str, action: str) -> None:
    early, before = world.dump(), world.snapshot()
    for statement in STATEMENTS[:4]:
        world.done(statement)
    late = world.dump()
    code = operate(world, "rollback", before, fault=f"{point}={action}")
    assert code == (-9 if action == "kill" else 1)
    with world.open() as planarian:
        assert all(done.error == "" for done in planarian.recovered)
        safety = planarian.registry.statepoints()[-1]
    assert world.dump() in (early, late), "all of the way, or none of it"
    world.rollback(before)
    assert_same(world.dump(), early)
    assert world.states() == ["undone"] * 4
    if safety.id != before:
        world.rollback(safety.id)  # what the rollback left behind can be had again
        assert_same(world.dump(), late)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_random_kills(world: SqlWorld, seed: int) -> None:
    """Calls and rollbacks, each killed at a random point or not: every statepoint has its rows."""
    chance = random.Random(seed)  # noqa: S311  # no secret
    dumps = {}
    for _ in range(6):
        world.call(chance.choice(STATEMENTS))
        dumps[world.snapshot()] = world.dump()
        target = chance.choice(sorted(dumps))
        if chance.random() < 0.5:
            operate(world, "rollback", target, fault=f"{chance.choice(MOVES)}={chance.choice(['kill', 'fail'])}")
        else:
            operate(world, "call", chance.choice(STATEMENTS), fault=f"{chance.choice(CALLS)}=kill")
        world.rollback(target)
        assert_same(world.dump(), dumps[target])
