"""The promises of every service kind, on a real PostgreSQL; a second connection looks at the rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from planarian_core.model import RemoteCall
from planarian_core.testing.postgresql import PrivateCluster
from planarian_core.testing.remote import SANDBOX, RemoteSubject, ServiceKindConformance
from planarian_remote.configuration import Table
from planarian_remote.postgresql.kind import make

pytestmark = pytest.mark.needs("postgresql")


def _call(statement: str) -> RemoteCall:
    return RemoteCall("execute_sql", {"sql": statement})


class TestPostgresql(ServiceKindConformance):
    @pytest.fixture
    def remote(self, postgresql: PrivateCluster, database: str) -> Iterator[RemoteSubject]:
        with psycopg.connect(postgresql.dsn(database, "agent"), autocommit=True) as other:
            other.execute("CREATE TABLE item (id int PRIMARY KEY, name text UNIQUE, n numeric)")
            other.execute("CREATE TABLE part (id int PRIMARY KEY, item int REFERENCES item ON DELETE CASCADE)")
            other.execute("INSERT INTO item VALUES (1, 'a', 0.10), (2, 'b', 'NaN'); INSERT INTO part VALUES (1, 1)")

            def state() -> Any:
                items = "SELECT item::text, (SELECT array_agg(part::text ORDER BY id) FROM part WHERE item = item.id)"
                return other.execute(f"{items} FROM item ORDER BY id").fetchall()

            def meddle() -> None:
                other.execute("UPDATE item SET n = 77 WHERE id = 4")

            table = {"kind": "sql", "dialect": "postgresql", "dsn": postgresql.dsn(database, "agent")}
            yield RemoteSubject(
                make(Table("db", table), SANDBOX),
                [
                    _call("INSERT INTO item VALUES (3, 'c', 1)"),
                    _call("DELETE FROM item WHERE id = 1"),
                    _call(
                        "INSERT INTO item VALUES (2, 'bb', 5) ON CONFLICT (id) DO UPDATE SET name = 'bb' RETURNING id"
                    ),
                    _call("UPDATE item SET id = id + 1, n = n + 1"),
                    _call("UPDATE item SET n = n * 2 WHERE id = 4"),
                ],
                _call("SELECT * FROM item"),
                _call("COPY item TO '/tmp/stolen'"),
                state,
                meddle,
            )
