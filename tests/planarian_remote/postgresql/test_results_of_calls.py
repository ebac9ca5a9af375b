"""What the agent gets is what the server gives for the bare statement."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from planarian_core.testing import mcp_servers
from planarian_core.testing.postgresql import PrivateCluster
from tests.planarian_remote.postgresql.conftest import Agent, Observer

pytestmark = pytest.mark.needs("postgresql")

TYPES = (
    "int", "bigint", "smallint", "bool", "text", "varchar(20)", "char(4)", "name", "numeric", "numeric(20,5)", "float8",
    "float4", "uuid", "date", "timestamp", "timestamptz", "time", "interval", "bytea", "json", "jsonb", "int[]",
    "text[]", "point", "inet", "int4range", "bit(3)", "money", "xml", "oid", "tsvector",
)  # fmt: skip
VALUES = {
    "int": ("-1", "0"), "bigint": ("9223372036854775807",), "smallint": ("7",), "bool": ("true", "false"),
    "text": ("", "a<b>&\u2028é\"\\\n\t\x01\x7f", "0.3"), "varchar(20)": ("x",), "char(4)": ("a",), "name": ("n",),
    "numeric": ("1.50", "123456789012345678901234567890.123", "0.00001", "NaN", "-0.0"), "numeric(20,5)": ("7",),
    "float8": ("0.1", "1e20", "1e21", "1e-6", "1e-7", "-0", "123456789.125", "5e-324", "1e300", "100"),
    "float4": ("0.1", "1e6", "16777216", "1e-10"), "uuid": ("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",),
    "date": ("2024-02-29", "0001-01-01"), "timestamp": ("2024-02-29 01:02:03.1", "2024-02-29"),
    "timestamptz": ("2024-02-29 01:02:03.123456+05",), "time": ("10:00",), "interval": ("1 day 2 hours",),
    "bytea": ("\\x0102",), "json": ('{"b": 1, "a": [1.0, null]}', "null"), "jsonb": ('{"b": 1, "a": "<"}',),
    "int[]": ("{1,NULL,3}",), "text[]": ('{a,"b c"}',), "point": ("(1,2)",), "inet": ("10.0.0.1",),
    "int4range": ("[1,3)",), "bit(3)": ("101",), "money": ("12.5",), "xml": ("<a/>",), "oid": ("12",),
    "tsvector": ("a b",),
}  # fmt: skip


@pytest.fixture(params=["direct", pytest.param("toolbox", marks=pytest.mark.needs("npm"))])
def through(
    request: pytest.FixtureRequest, tmp_path: Path, postgresql: PrivateCluster, database: str
) -> Iterator[Agent]:
    if request.param == "direct":
        agent = Agent(postgresql.dsn(database, "agent"))
    else:
        config = tmp_path / "tools.yaml"
        config.write_text(
            f"kind: source\nname: db\ntype: postgres\nhost: 127.0.0.1\nport: {postgresql.port}\ndatabase: {database}\n"
            f"user: agent\npassword: {postgresql.password}\n---\nkind: tool\nname: execute_sql\n"
            "type: postgres-execute-sql\nsource: db\ndescription: Run one SQL statement.\n"
        )
        agent = Agent("", command=mcp_servers.toolbox(config), tool="execute_sql")
    yield agent
    agent.target.close()


def twin(agent: Agent, statement: str) -> None:
    """The statement on the table ``mine`` through us, and on ``bare`` past us: equal results."""
    ours = agent.result(statement.replace("TABLE", "mine"))
    bare = agent.target.call("execute_sql", {"sql": statement.replace("TABLE", "bare")})
    assert dict(ours) == {
        **bare, "content": [{**item, "text": item["text"].replace("bare", "mine")} for item in bare["content"]]
    }  # fmt: skip


@pytest.mark.parametrize("type_", TYPES)
def test_every_type_looks_the_same(through: Agent, other: Observer, type_: str) -> None:
    other.run(*(f"CREATE TABLE {name} (id serial, v {type_})" for name in ("mine", "bare")))
    quoted = [value.replace("'", "''") for value in VALUES[type_]]
    for value in quoted:
        twin(through, f"INSERT INTO TABLE (v) VALUES ('{value}') RETURNING *")  # noqa: S608  # a test's
    twin(through, "INSERT INTO TABLE (v) VALUES (NULL) RETURNING v, v AS v, id AS v")
    twin(through, 'UPDATE TABLE SET id = id + 10 RETURNING v, id, now() IS NULL AS "a""b"')
    twin(through, "SELECT * FROM TABLE ORDER BY id")


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO TABLE VALUES (1)",
        "INSERT INTO TABLE VALUES (1) RETURNING id",
        "UPDATE TABLE SET id = 2 WHERE false RETURNING *",
        "DELETE FROM TABLE",
        "INSERT INTO TABLE VALUES (0), (0)",
        "INSERT INTO TABLE VALUES (1 / 0)",
        "INSERT INTO TABLE VALUES ('x')",
        "UPDATE TABLE SET nothing = 1",
        "UPDATE TABLE SET",
        "DELETE FROM nowhere",
        "INSERT INTO TABLE VALUES (-1)",
        "WITH new AS (INSERT INTO TABLE VALUES (5) RETURNING *) SELECT id, id * 2 AS double FROM new",
        "SELECT FROM TABLE",
        "SELECT 1 / 0",
        "SHOW server_version",
        "EXPLAIN (COSTS off) DELETE FROM TABLE",
        "VALUES (1, 'a'), (2, 'b')",
    ],
)
def test_every_statement_answers_the_same(through: Agent, other: Observer, statement: str) -> None:
    for name in ("mine", "bare"):
        other.run(f"CREATE TABLE {name} (id int PRIMARY KEY CHECK (id >= 0))", f"INSERT INTO {name} VALUES (0), (9)")  # noqa: S608
    if statement in ("INSERT INTO TABLE VALUES (0), (0)", "INSERT INTO TABLE VALUES (1)"):
        twin(through, "UPDATE TABLE SET id = 3 WHERE id = 0")
    twin(through, statement)


def test_rows_within_rows_are_given_although_their_type_has_no_name(through: Agent) -> None:
    (read,) = through("SELECT x, 1 AS n FROM (VALUES (ROW(1, 'a'))) AS v (x)")
    assert '"n":1' in read
    assert "a" in read
    through("CREATE TABLE t (n int)")
    (made,) = through("INSERT INTO t VALUES (7) RETURNING n, ROW(n, 'a') AS x")
    assert '"n":7' in made
    assert through("SELECT n FROM t") == ['{"n":7}']
