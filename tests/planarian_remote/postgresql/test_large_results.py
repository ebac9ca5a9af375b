"""Reads whose results memory has no room for: refused, without holding them, and the next call works."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from planarian_core.errors import RemoteError
from planarian_core.testing.postgresql import PrivateCluster
from planarian_core.testing.postgresql_service import SqlWorld, sql_world

pytestmark = pytest.mark.needs("postgresql")

_MOST = 150_000
"""KiB that the process may grow by."""


@pytest.fixture(params=["direct", pytest.param("toolbox", marks=pytest.mark.needs("npm"))])
def world(
    request: pytest.FixtureRequest, tmp_path: Path, postgresql: PrivateCluster, database: str
) -> Iterator[SqlWorld]:
    with sql_world(
        tmp_path, postgresql, database, through=request.param, more={"max_result": "1000000"}
    ) as made:  # fmt: skip
        made.run(
            "CREATE TABLE t (k int, text text)",
            "INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 60000) i",
            "CREATE FUNCTION plus(n int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT n + 1'",
        )
        yield made


@pytest.mark.parametrize("sql", ["SELECT * FROM t", "SELECT plus(k), text FROM t"])
def test_a_read_that_gives_too_much(world: SqlWorld, sql: str) -> None:
    world.call("SELECT count(*) FROM t")
    world.call("SELECT plus(1)")
    before, states = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, world.states()
    with pytest.raises(RemoteError, match="more than") as caught:
        world.call(sql)
    assert (caught.value.code, caught.value.state) == ("result-too-large", "nothing was changed")
    assert "LIMIT" in caught.value.remedy
    assert "max_result" in caught.value.remedy
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < _MOST
    assert len(world.call(f"{sql} ORDER BY k LIMIT 500")["content"]) == 500
    assert world.states() == states


def test_an_endless_read_ends_with_the_limit(tmp_path: Path, postgresql: PrivateCluster, database: str) -> None:
    """A server of its own would have to end first."""
    with sql_world(tmp_path, postgresql, database, more={"max_result": "1000000"}) as world:
        with pytest.raises(RemoteError, match="more than"):
            world.call("SELECT generate_series(1, 100000000000)")
        assert world.call("SELECT 1 AS a")["content"][0]["text"] == '{"a":1}'
        query = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'SELECT generate_series%'"
        with world.connect("postgres") as connection:
            assert connection.execute(query).fetchall() == [(0,)]
