# ruff: noqa: S608  # odd statements are the purpose
"""Statements that time out, wait for others, are malformed or huge: a clear answer, and nothing half done."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from planarian_core.errors import CompensationError, PlanarianError, RemoteError
from planarian_core.testing.postgresql import PrivateCluster
from planarian_core.testing.postgresql_service import SqlWorld, sql_world

pytestmark = pytest.mark.needs("postgresql")


@pytest.fixture(
    params=[pytest.param("direct", marks=pytest.mark.thorough), pytest.param("toolbox", marks=pytest.mark.needs("npm"))]
)
def world(
    request: pytest.FixtureRequest, tmp_path: Path, postgresql: PrivateCluster, database: str
) -> Iterator[SqlWorld]:
    more = {"lock_timeout": "0.5"}
    with sql_world(tmp_path, postgresql, database, through=request.param, more=more) as made:
        made.run(
            "CREATE TABLE t (k int PRIMARY KEY, n int)",
            "INSERT INTO t SELECT i, i FROM generate_series(1, 100) i",
        )
        made.done("UPDATE t SET n = n + 1 WHERE k < 50")
        yield made


def refusal(world: SqlWorld, statement: object) -> str:
    """Why a statement has no effect: the proxy refuses it, or the server's error."""
    try:
        result = world.call(statement)
    except RemoteError as error:
        return error.message if error.code in ("call-refused", "service-error") else ""
    return str(result["content"][0]["text"]) if result.get("isError") else ""


def test_a_statement_that_takes_too_long(world: SqlWorld) -> None:
    early, before = world.dump(), world.snapshot()
    if world.through == "direct":
        world.more = {"timeout": "1"}
        world.prepare()
    world.run(f"ALTER ROLE agent IN DATABASE {world.database} SET statement_timeout = '1s'")
    result = world.call(
        "UPDATE t SET n = (SELECT count(*) FROM generate_series(1, 100000000) i WHERE i % 7 = t.k) WHERE k < 9"
    )
    world.run(f"ALTER ROLE agent IN DATABASE {world.database} RESET statement_timeout")
    world.more = {}
    world.prepare()
    assert result["isError"]
    assert "timeout" in result["content"][0]["text"]
    assert world.dump() == early
    world.done("UPDATE t SET n = 5")
    assert world.states()[-2:] == ["void", "applied"]
    world.rollback(before)
    assert world.dump() == early


def test_a_row_that_another_session_has(world: SqlWorld) -> None:
    before = world.snapshot()
    world.done("UPDATE t SET n = n * 2 WHERE k BETWEEN 30 AND 60")
    late = world.dump()
    with world.connect() as other:
        other.execute("BEGIN")
        other.execute("SELECT FROM t WHERE k = 40 FOR UPDATE")
        assert "lock" in refusal(world, "DELETE FROM t WHERE k = 40")
        with pytest.raises(CompensationError, match="lock") as going:
            world.rollback(before)
        assert going.value.remedy
        other.execute("ROLLBACK")
    assert world.dump() == late
    world.rollback(before)
    assert world.states()[:2] == ["applied", "undone"]


def test_a_table_that_another_session_has(world: SqlWorld) -> None:
    world.run("CREATE TABLE fresh (n int)")
    early = world.dump()
    with world.connect() as other:
        other.execute("BEGIN")
        other.execute("LOCK TABLE fresh IN ROW EXCLUSIVE MODE")  # a trigger can't be put on it
        assert "lock" in refusal(world, "INSERT INTO fresh VALUES (1)")
        other.execute("ROLLBACK")
    assert world.dump() == early
    world.done("INSERT INTO fresh VALUES (1)")


MALFORMED = (
    None, 5, "", " ", ";", ";;", "--", "/*", "'", '"', "$$", "(", ")", "\\", "UPDATE", "UPDATE t SET",
    "UPDATE t SET n = 1; DELETE FROM t", "DELETE FROM t -- \n; SELECT 1", "DELETE FROM t WHERE k = $1",
    "DELETE FROM t\0", "DELETE FROM t WHERE k = '\ud800'", "DELETE FROM t WHERE k = '\x01'", ["DELETE FROM t"],
    "(" * 20_000, "DELETE FROM t WHERE k = " + "(" * 50_000 + "1" + ")" * 50_000,
    "DELETE FROM t WHERE " + "NOT " * 60_000 + "true", "DELETE FROM t WHERE k IN (" + "1," * 100_000, "é" * 100_000,
    "COPY t FROM STDIN", "BEGIN", "COMMIT", "EXECUTE x", "DELETE FROM nowhere", "DELETE FROM t WHERE k = 'x'",
)  # fmt: skip


def test_malformed(world: SqlWorld) -> None:
    early, before = world.dump(), world.snapshot()
    with world.opened() as (planarian, sandbox):
        session = planarian.remote_session(sandbox, "db")
        target = session.kind.connect()
        for statement in MALFORMED:
            try:
                result = session.call("execute_sql", {"sql": statement}, target)
                assert result.get("isError"), (statement, result)
            except RemoteError as error:
                if error.code not in ("call-refused", "service-error"):
                    raise
            assert world.dump() == early, statement
        target.close()
    world.done("UPDATE t SET n = 0 WHERE k = 1")
    world.rollback(before)
    assert world.dump() == early


def test_the_argument_is_missing(world: SqlWorld) -> None:
    with world.opened() as (planarian, sandbox):
        session = planarian.remote_session(sandbox, "db")
        target = session.kind.connect()
        for arguments in ({}, {"query": "DELETE FROM t"}):
            with pytest.raises(PlanarianError, match="refused"):
                session.call("execute_sql", arguments, target)
        target.close()


def test_a_huge_statement(world: SqlWorld) -> None:
    """Megabytes, of which most is one value; what is longer still is refused."""
    early, before = world.dump(), world.snapshot()
    world.run("CREATE TABLE texts (t text)")
    world.done(f"INSERT INTO texts VALUES ('{'é☃x' * 1_000_000}')")
    with world.connect() as connection:
        assert connection.execute("SELECT length(t) FROM texts").fetchone() == (3_000_000,)
    assert "send it in parts" in refusal(world, f"INSERT INTO texts VALUES ('{'x' * 20_000_000}')")
    world.rollback(before)
    with world.connect() as connection:
        assert connection.execute("SELECT count(*) FROM texts").fetchone() == (0,)
        connection.execute("DROP TABLE texts")
    assert world.dump() == early


def test_many_rows(world: SqlWorld) -> None:
    """100,000 rows there and back; they don't pass through this process."""
    world.more = {"timeout": "300"}  # however busy the machine is
    world.prepare()
    world.run("CREATE TABLE many (k int PRIMARY KEY, t text)", "INSERT INTO many SELECT i, repeat('x', 100) FROM"
              " generate_series(1, 100000) i")  # fmt: skip
    early, before = world.dump(), world.snapshot()
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    world.done("UPDATE many SET t = t || k")
    late, after = world.dump(), world.snapshot()
    assert late != early
    world.rollback(before)
    assert world.dump() == early
    world.rollback(after)
    assert world.dump() == late
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held < 30_000, "kB: the rows alone are more"
