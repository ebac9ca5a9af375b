"""The service's name is pointed at another database: noticed before anything is done there."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planarian_core.errors import CompensationError
from planarian_core.testing.postgresql import PrivateCluster
from planarian_core.testing.postgresql_service import sql_world

pytestmark = pytest.mark.needs("postgresql")


def _elsewhere(postgresql: PrivateCluster) -> str:
    """Another database, in which a table of the same name is."""
    other = f"other_{secrets.token_hex(4)}"
    with postgresql.connect("postgres", "postgres") as connection:
        connection.execute(f'CREATE DATABASE "{other}" OWNER agent'.encode())
    with postgresql.connect(other, "agent") as connection:
        connection.execute("CREATE TABLE t (k int PRIMARY KEY, n int)")
        connection.execute("INSERT INTO t VALUES (1, 1)")
    return other


@pytest.mark.parametrize("through", ["direct", pytest.param("toolbox", marks=pytest.mark.needs("npm"))])
@pytest.mark.parametrize("known", [True, False])
def test_another_database_under_the_same_name_is_not_touched(
    tmp_path: Path, postgresql: PrivateCluster, database: str, through: str, known: bool
) -> None:
    """``known``: Planarian's functions are in the other one, too."""
    elsewhere = _elsewhere(postgresql)

    def there() -> tuple[Any, ...]:
        with postgresql.connect(elsewhere, "postgres") as connection:
            schemas = connection.execute("SELECT nspname FROM pg_namespace ORDER BY 1").fetchall()
            entries = connection.execute("SELECT count(*) FROM planarian.effect").fetchall() if known else []
            return schemas, entries, connection.execute("SELECT * FROM t").fetchall()

    with sql_world(tmp_path, postgresql, database, through=through) as world:
        if known:
            world.database = elsewhere
            world.prepare()
            world.call("SELECT inet_server_port()")  # installs them
            world.database = database
            world.prepare()
        before = there()
        world.run("CREATE TABLE t (k int PRIMARY KEY, n int)", "INSERT INTO t VALUES (1, 1)")
        early = world.snapshot()
        world.done("UPDATE t SET n = 2")
        world.database = elsewhere
        world.prepare()
        doings: list[Callable[[], object]] = [lambda: world.call("UPDATE t SET n = 3"), lambda: world.rollback(early)]
        for doing in doings:
            with pytest.raises(CompensationError) as caught:
                doing()
            assert (caught.value.code, caught.value.state) == ("service-changed", "nothing was called or changed")
        assert there() == before
        assert world.states() == ["applied"]
        world.database = database
        world.prepare()
        world.rollback(early)
        with world.connect() as connection:
            assert connection.execute("SELECT n FROM t").fetchall() == [(1,)]
        world.database = elsewhere
        world.prepare()
        world.remove()
        assert there() == before
