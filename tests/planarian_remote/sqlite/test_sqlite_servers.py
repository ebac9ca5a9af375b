"""Two real MCP servers for SQLite: what the service answers is what they answer, and their files are undone exactly."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from planarian_core.errors import RemoteError
from planarian_core.interfaces import ToolTarget
from planarian_core.model import CallClass, EffectState, RemoteCall
from planarian_core.testing import mcp_servers, pypi_servers
from planarian_core.testing.remote import RemoteSubject, ServiceKindConformance
from planarian_core.testing.sqlite_service import ServedDatabase
from planarian_remote.configuration import Table
from planarian_remote.sqlite.kind import make

pytestmark = pytest.mark.needs("npm", "pypi")

MakeDatabase = Callable[..., ServedDatabase]

_SCHEMA = """
CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT UNIQUE, b REAL, c BLOB, d DATETIME, e BOOLEAN, f DATE, g JSON);
INSERT INTO t VALUES
 (1, 'x<&>é' || char(8232), 1.0, x'00ff', '2024-01-02 03:04:05.50', 1, '2024-01-02', '{"b": 1, "a": [1.5]}'),
 (2, 'y', 1e300, NULL, 'no time', 0, '2024-01-02T03:04:05+02:00', 'no json'),
 (3, 'z"\\', 1.5e-9, x'', '2024-01-02 03:04', 2, 'x', NULL),
 (4, char(1) || 'q', 123456.789, 'text', 5, NULL, '2024-02-30', '7'),
 (5, '', -0.0, x'61', '2024-01-02 03:04:05 +0000 UTC', 1, NULL, 'null');
CREATE TABLE inf (a, b); INSERT INTO inf VALUES (9e999, 'x');
CREATE VIEW v AS SELECT a FROM t;
CREATE TABLE strict (a INT, CHECK (a > 0)) STRICT;
"""

_READS = [
    "SELECT * FROM t",
    "SELECT 1 WHERE 0",
    "SELECT 1 AS a, 2 AS b;",
    "select -0.0, 1e21, 1e20, 1e-6, 1e-7, 100000.0, 0.1 + 0.2, 5e-324, 123456789012345678, -9223372036854775808",
    "SELECT a AS x, max(d) FROM t",
    "SELECT d FROM (SELECT d FROM t ORDER BY id) LIMIT 3",
    "SELECT count(*) FROM v",
    "SELECT * FROM nowhere",
    "SELECT nofunction(1)",
    "SELECT * FROM",
    "SELECT abs(-9223372036854775808)",
    "SELECT NULL, '', x'00', zeroblob(3)",
]
_CHANGES = [
    "INSERT INTO t (a) VALUES ('n')",
    "INSERT INTO t (a) VALUES ('n')",
    "INSERT INTO t (a, b) VALUES ('m', 2), ('o', 3)",
    "UPDATE t SET e = e + 1",
    "UPDATE t SET id = 'text' WHERE id = 1",
    "INSERT INTO t VALUES (1, 2)",
    "INSERT INTO v VALUES (1)",
    "INSERT INTO strict VALUES ('x')",
    "INSERT INTO strict VALUES (-1)",
    "DELETE FROM t WHERE id = 77",
    "DELETE FROM t WHERE id > 4",
    "INSERT OR IGNORE INTO t (a) VALUES ('y')",
    "DROP TABLE nowhere",
    "ALTER TABLE t ADD COLUMN id",
    "ALTER TABLE t ADD COLUMN h",
    "CREATE INDEX i ON t (b)",
    "DROP TABLE strict",
]


class Pair:
    """Equal databases: one behind the bare server, one behind the service that has the same server."""

    def __init__(self, bare: ToolTarget, served: ServedDatabase) -> None:
        self.bare = bare
        self.served = served

    def compare(self, tool: str, argument: str, value: str) -> None:
        expected = dict(self.bare.call(tool, {argument: value}))
        found = dict(self.served.call(value, tool))
        assert _shown(found) == _shown(expected), value


def _shown(result: dict[str, Any]) -> tuple[object, object]:
    return result["content"], bool(result.get("isError", False))


def _toolbox(path: Path) -> list[str]:
    config = path.parent.with_suffix(".yaml")
    config.write_text(
        f"kind: source\nname: db\ntype: sqlite\ndatabase: {path}\n---\n"
        "kind: tool\nname: execute_sql\ntype: sqlite-execute-sql\nsource: db\ndescription: Run SQL\n"
    )
    return mcp_servers.toolbox(config)


def _reference(path: Path) -> list[str]:
    return [str(pypi_servers.pypi_command("mcp-server-sqlite", pypi_servers.SQLITE)), "--db-path", str(path)]


_SERVERS: dict[str, Callable[[Path], list[str]]] = {
    "toolbox": _toolbox,
    "mcp-server-sqlite": _reference,
}


@pytest.fixture(params=list(_SERVERS))
def pair(request: pytest.FixtureRequest, make_database: MakeDatabase, tmp_path: Path) -> Iterator[Pair]:
    style = request.param
    bare_path = tmp_path / "bare.db"
    connection = apsw.Connection(str(bare_path))
    connection.execute(f"PRAGMA user_version = 1; {_SCHEMA}")
    connection.close()
    command = _SERVERS[style](bare_path)
    bare = make(Table("bare", {"path": str(bare_path), "command": command, "results": style}), "sb").connect()
    served = make_database(command=_SERVERS[style](tmp_path / "database-0" / "data.db"), results=style)
    served.script(_SCHEMA)
    yield Pair(bare, served)
    bare.close()


def test_answers_are_those_of_the_server(pair: Pair) -> None:
    tools = {str(tool["name"]) for tool in pair.bare.tools()}
    if "execute_sql" in tools:
        for sql in (*_READS, "", "-- nothing", *_CHANGES, *_READS, "SELECT * FROM inf"):
            pair.compare("execute_sql", "sql", sql)
        for sql in ("INSERT INTO t (a, d) VALUES ('r', '2024-01-02') RETURNING *", "PRAGMA table_info(t)"):
            pair.compare("execute_sql", "sql", sql)
        return
    for sql in (*_READS, "DELETE FROM t", "SELECT 1 AS a, 2 AS a"):
        pair.compare("read_query", "query", sql)
    for sql in (*_CHANGES, "SELECT 1", "", "PRAGMA user_version"):
        pair.compare("write_query", "query", sql)
    for sql in ("CREATE TABLE n (a)", "CREATE TABLE n (a)", "DROP TABLE n"):
        pair.compare("create_table", "query", sql)
    pair.compare("list_tables", "", "")
    pair.compare("describe_table", "table_name", "t")
    pair.compare("read_query", "query", "SELECT * FROM t")


def test_the_server_sees_what_was_done_and_undone(pair: Pair) -> None:
    """Whatever it keeps of the file, it reads it again."""
    served, before, position = pair.served, pair.served.contents(), pair.served.position()
    tools = {str(tool["name"]) for tool in served.target.tools()}
    write, read, argument = (
        ("execute_sql", "execute_sql", "sql") if "execute_sql" in tools else ("write_query", "read_query", "query")
    )

    def seen() -> str:
        return json.dumps(served.target.call(read, {argument: "SELECT count(*) AS n, max(id) AS m FROM t"})["content"])

    first = seen()
    served.change("INSERT INTO t (a) VALUES ('new')", write)
    served.change("ALTER TABLE t RENAME COLUMN b TO bb", write)
    assert seen() != first
    served.go(position)
    assert (seen(), served.contents()) == (first, before)


def test_other_tools_are_refused_unless_they_are_declared(make_database: MakeDatabase, tmp_path: Path) -> None:
    command = _reference(tmp_path / "database-0" / "data.db")
    insight = RemoteCall("append_insight", {"insight": "x"})
    plain = make_database(command=command, results="mcp-server-sqlite").kind
    assert plain.classify(insight).call_class is CallClass.REFUSED
    tools = {"append_insight": {"class": "pivot", "reason": "a memo in memory"}}
    declared = make_database(command=command, results="mcp-server-sqlite", tools=tools)
    verdict = declared.kind.classify(insight)
    assert (verdict.call_class, verdict.reason) == (CallClass.PIVOT, "a memo in memory")
    effect = declared.log.begin("sb-test", "notes", insight, verdict, "")
    outcome = declared.kind.run(insight, effect, declared.target)
    assert outcome.result["content"][0]["text"] == "Insight added to memo"


def test_what_the_reference_server_would_not_commit_is_refused(make_database: MakeDatabase, tmp_path: Path) -> None:
    path = tmp_path / "database-0" / "data.db"
    served = make_database(command=_reference(path), results="mcp-server-sqlite")
    served.script(_SCHEMA)
    before = served.contents()
    for sql in ("REPLACE INTO t (id) VALUES (1)", "WITH x AS (SELECT 7 AS n) INSERT INTO t (a) SELECT n FROM x"):
        with pytest.raises(RemoteError, match="commits only what begins with"):
            served.call(sql, "write_query")
    assert served.contents() == before
    assert all(effect.state is EffectState.VOID for effect in served.effects())


# --- the promises of a service kind ---


class _Conformance(ServiceKindConformance):
    tool = "execute_sql"
    argument = "sql"

    def command(self, path: Path) -> dict[str, object]:
        raise NotImplementedError

    @pytest.fixture
    def remote(self, tmp_path: Path, make_database: MakeDatabase) -> RemoteSubject:
        served = make_database(**self.command(tmp_path / "database-0" / "data.db"))
        served.script("CREATE TABLE t (a INTEGER PRIMARY KEY, b UNIQUE); INSERT INTO t VALUES (1, 1)")
        changes = [
            "INSERT INTO t VALUES (2, 2)",
            "CREATE TABLE n (x)",
            "INSERT INTO n VALUES (5)",
        ]
        return RemoteSubject(
            served.kind,
            [self.call(sql) for sql in [*changes, "UPDATE t SET b = -b", "DELETE FROM t WHERE b = -2"]],
            read=self.call("SELECT * FROM t", "read_query"),
            refused=self.call("VACUUM"),
            state=served.contents,
            meddle=lambda: self.meddle(served),
        )

    def meddle(self, served: ServedDatabase) -> None:
        served.script("INSERT INTO t VALUES (2, 'theirs')")

    def call(self, sql: str, tool: str = "") -> RemoteCall:
        return RemoteCall(tool if tool and self.argument == "query" else self.tool, {self.argument: sql})


class TestDirect(_Conformance):
    def command(self, path: Path) -> dict[str, object]:
        return {}


class TestThroughToolbox(_Conformance):
    def command(self, path: Path) -> dict[str, object]:
        return {"command": _toolbox(path), "results": "toolbox"}


class TestThroughTheReferenceServer(_Conformance):
    tool = "write_query"
    argument = "query"

    def command(self, path: Path) -> dict[str, object]:
        return {"command": _reference(path), "results": "mcp-server-sqlite"}

    def call(self, sql: str, tool: str = "") -> RemoteCall:
        return RemoteCall("create_table" if sql.startswith("CREATE") else tool or self.tool, {"query": sql})
