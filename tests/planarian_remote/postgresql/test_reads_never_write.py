"""Reads on the connection that is for reads: nothing on the database's side makes it write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from planarian_core.errors import RemoteError
from planarian_core.testing.postgresql import PrivateCluster
from planarian_core.testing.postgresql_service import SqlWorld, sql_world
from planarian_remote.postgresql.statements import What, judge

pytestmark = pytest.mark.needs("postgresql")


@pytest.fixture(params=["direct", pytest.param("toolbox", marks=pytest.mark.needs("npm"))])
def world(
    request: pytest.FixtureRequest, tmp_path: Path, postgresql: PrivateCluster, database: str
) -> Iterator[SqlWorld]:
    with sql_world(tmp_path, postgresql, database, through=request.param) as made:
        made.run(
            "CREATE TABLE t (k int PRIMARY KEY, n int)",
            "INSERT INTO t VALUES (1, 1), (2, 2)",
            "CREATE FUNCTION sneak() RETURNS int LANGUAGE plpgsql AS "
            "'BEGIN INSERT INTO t SELECT max(k) + 1, 0 FROM t; RETURN 1; END'",
            "CREATE VIEW writes AS SELECT sneak() AS n",
            "CREATE VIEW opens AS SELECT set_config('default_transaction_read_only', 'off', false) AS n",
            "CREATE VIEW opens_at_once AS SELECT set_config('transaction_read_only', 'off', false) AS n",
        )
        yield made


_WRITES = [
    "SELECT * FROM writes",
    "SELECT n FROM writes ORDER BY n LIMIT 1;",
    "WITH w AS (SELECT * FROM writes) SELECT max(n) FROM w -- the end",
    "SELECT (SELECT n FROM writes) AS n",
    "SELECT count(*) FROM t, writes WHERE t.n = writes.n",
    "TABLE writes",
    "VALUES ((SELECT n FROM writes))",
    "(SELECT * FROM writes) UNION ALL (SELECT 1)",
    "EXPLAIN ANALYZE SELECT * FROM writes",
]


def test_a_view_that_makes_the_connection_writable_gains_nothing(world: SqlWorld) -> None:
    before = world.dump()
    with world.opened() as (planarian, sandbox):
        session = planarian.remote_session(sandbox, "db")
        target = session.kind.connect()
        try:
            session.call("execute_sql", {"sql": "SELECT * FROM opens_at_once"}, target)
            assert not session.call("execute_sql", {"sql": "SELECT * FROM opens"}, target).get("isError")
            for statement in _WRITES:
                effects = len(planarian.effects(sandbox))
                with suppress(RemoteError):  # refused is right, too
                    session.call("execute_sql", {"sql": statement}, target)
                if len(planarian.effects(sandbox)) == effects:
                    assert world.dump() == before, statement
                before = world.dump()
            assert session.call("execute_sql", {"sql": "SELECT 1 AS a"}, target)["content"][0]["text"] == '{"a":1}'
        finally:
            target.close()


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT k, n FROM t ORDER BY n DESC",
        "SELECT t.*, t.* FROM t ORDER BY k",
        "SELECT 'a', 1, NULL, 2 AS \"A b\", ROW(1, 'x'), ARRAY[1, 2]",
        "TABLE t ;",
        "VALUES (1, 'a'), (2, 'b')",
        "WITH x AS (SELECT 1 AS a) SELECT * FROM x -- comment",
        "SELECT count(*) FROM t GROUP BY n > 1 HAVING count(*) > 0 ORDER BY 1",
        "(SELECT 1 AS a) UNION ALL (SELECT 2) ORDER BY a DESC",
        "SELECT FROM t",
        "SELECT * FROM t WHERE k = 9",
        "SHOW server_version",
        "EXPLAIN (COSTS off) SELECT 1",
        "SELECT * FROM nowhere",
        "SELECT 1 +",
        "SELECT 1/0",
        "SELECT generate_series(1, 3), now() IS NULL",
        "SELECT pg_sleep(0)",
        "SELECT q.k FROM t q ORDER BY 1",
    ],
)
def test_reads_give_what_they_gave(world: SqlWorld, statement: str) -> None:
    with world.opened() as (planarian, sandbox):
        session = planarian.remote_session(sandbox, "db")
        target = session.kind.connect()
        try:
            bare = target.call("read_sql", {"sql": statement})
            found = session.call("execute_sql", {"sql": statement}, target)
        finally:
            target.close()
    assert (found["content"], bool(found.get("isError"))) == (bare["content"], bool(bare.get("isError")))


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1) q WHERE true UNION ALL SELECT * FROM (SELECT n FROM writes",
        "SELECT 1) x, (SELECT 2",
        "SELECT (1",
        "EXPLAIN ANALYZE SELECT 1",
    ],
)
def test_what_can_not_be_put_so_does_not_go_there(statement: str) -> None:
    judged = judge(statement)
    assert judged.what is What.READ
    assert judged.read_only == ""
