"""What is refused, before or without any effect; reads that can't write; our table, which nobody reaches."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from planarian_core.errors import ConfigurationError, RemoteError
from planarian_core.model import EffectState
from planarian_core.testing.sqlite_service import ServedDatabase
from planarian_remote.configuration import Table
from planarian_remote.sqlite.kind import make

_SCHEMA = "CREATE TABLE t (a INTEGER PRIMARY KEY, b UNIQUE); INSERT INTO t VALUES (1, 'one'), (2, 'two')"


@pytest.fixture
def served(database: ServedDatabase) -> ServedDatabase:
    database.script(_SCHEMA)
    return database


@pytest.mark.parametrize(
    "statement",
    [
        "ATTACH 'other.db' AS other",
        "DETACH main",
        "VACUUM",
        "VACUUM INTO 'copy.db'",
        "/* a comment */ ; -- another\n VACUUM INTO 'copy.db'",
        "BEGIN",
        "COMMIT",
        "END",
        "ROLLBACK",
        "SAVEPOINT s",
        "RELEASE s",
        "ANALYZE",
        "REINDEX",
        "PRAGMA user_version = 5",
        "PRAGMA writable_schema = ON",
        "PRAGMA foreign_keys = OFF",
        "PRAGMA journal_mode = WAL",
        "PRAGMA wal_checkpoint",
        "PRAGMA optimize",
        "PRAGMA incremental_vacuum",
        "CREATE TEMP TABLE x (a)",
        "CREATE TEMP VIEW x AS SELECT 1",
        "CREATE TEMP TRIGGER x AFTER INSERT ON t BEGIN SELECT 1; END",
        "CREATE VIRTUAL TABLE x USING dbstat",
        "INSERT INTO t VALUES (3, 'c'); DELETE FROM t",
        "SELECT 1; DELETE FROM t",
        "DELETE FROM t; -- and\n SELECT 1",
        "EXPLAIN SELECT 1; DELETE FROM t",
        "SELECT load_extension('x')",
        "INSERT INTO t VALUES (3, 'c')\0; DELETE FROM t",
        "INSERT INTO t VALUES (3, CAST(x'ff' AS TEXT))",
        "INSERT OR FAIL INTO t VALUES (3, 'c'), (4, 'one')",
        "CREATE TABLE planarian_mine (a)",
        "CREATE VIEW Planarian_View AS SELECT 1",
        "CREATE VIEW x AS SELECT * FROM Planarian_Effects",
        "INSERT INTO t VALUES (3, '\ud800')",
        "CREATE TRIGGER x AFTER INSERT ON t BEGIN UPDATE \"planarian_effects\" SET state = 'undone'; END",
        "CREATE TABLE x (a REFERENCES planarian_effects (id) ON DELETE CASCADE)",
        "CREATE VIRTUAL TABLE x USING fts5(images, content='planarian_effects')",
        "ALTER TABLE t RENAME TO planarian_t",
        "CREATE INDEX planarian_i ON t (a)",
    ],
)
def test_refused_without_an_effect(served: ServedDatabase, statement: str) -> None:
    before = served.contents()
    with pytest.raises(RemoteError) as caught:
        served.call(statement)
    assert (caught.value.code, bool(caught.value.message)) == ("call-refused", True)
    assert served.contents() == before
    assert not list(served.path.parent.glob("copy.db"))
    assert all(effect.state is EffectState.VOID for effect in served.effects())
    served.there_and_back("INSERT INTO t VALUES (3, 'c')")  # and the service goes on


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM planarian_effects",
        'SELECT images FROM main."PLANARIAN_effects"',
        "DELETE FROM planarian_effects",
        "UPDATE planarian_effects SET state = 'undone'",
        "INSERT INTO planarian_effects (sandbox, service, number, state, summary) VALUES ('a', 'b', 1, 'void', '')",
        "DROP TABLE planarian_effects",
        "ALTER TABLE planarian_effects ADD COLUMN x",
        "ALTER TABLE planarian_effects RENAME TO x",
        "CREATE INDEX x ON planarian_effects (state)",
        "CREATE TRIGGER x AFTER INSERT ON planarian_effects BEGIN DELETE FROM t; END",
        "CREATE TABLE x AS SELECT * FROM planarian_effects",
        "WITH x AS (SELECT * FROM planarian_effects) DELETE FROM t WHERE a IN (SELECT number FROM x)",
        "INSERT INTO fires VALUES (1)",
        "SELECT * FROM looks",
        "PRAGMA table_info(planarian_effects)",
        "SELECT * FROM pragma_table_info('planarian_effects')",
        "UPDATE sqlite_schema SET sql = ''",
    ],
)
def test_our_table_is_out_of_reach(served: ServedDatabase, statement: str) -> None:
    served.change("INSERT INTO t VALUES (9, 'nine')")
    served.script(
        "CREATE TABLE fires (a); CREATE VIEW looks AS SELECT * FROM planarian_effects;"
        "CREATE TRIGGER fire AFTER INSERT ON fires BEGIN DELETE FROM planarian_effects; END"
    )
    before, ours = served.contents(), served.script("SELECT * FROM planarian_effects")
    try:
        assert served.call(statement)["isError"]
    except RemoteError as error:
        assert error.code == "call-refused"  # noqa: PT017  # an error of SQLite's does as well
    assert served.contents() == before
    assert served.script("SELECT * FROM planarian_effects WHERE state <> 'void'") == ours


def test_our_table_is_not_listed_and_goes_with_the_sandbox(served: ServedDatabase) -> None:
    served.change("INSERT INTO t VALUES (9, 'nine')")
    for query in ("SELECT name FROM sqlite_master", "SELECT * FROM sqlite_schema ORDER BY rowid", "PRAGMA table_list"):
        assert "planarian" not in str(served.call(query))
    assert served.script("SELECT count(*) FROM planarian_effects") == [(1,)]
    served.service.forget("sb-test")
    assert served.script("SELECT name FROM sqlite_schema") == [("t",), ("sqlite_autoindex_t_1",)]


# --- reads ---


@pytest.mark.parametrize(
    ("statement", "rows"),
    [
        ("SELECT a, b FROM t ORDER BY a", [[1, "one"], [2, "two"]]),
        (" -- first\n VALUES (1, 2)", [[1, 2]]),
        ("WITH x AS (SELECT 5 AS five) SELECT * FROM x", [[5]]),
        ("SELECT 'a' || char(0) || 'b', x'00', 9e999, -0.0", [["a\0b", {"base64": "AA=="}, "inf", -0.0]]),
        ("PRAGMA table_info(t)", [[0, "a", "INTEGER", 0, None, 1], [1, "b", "", 0, None, 0]]),
        ("PRAGMA user_version", [[1]]),
        ("SELECT name FROM pragma_table_info('t')", [["a"], ["b"]]),
        ("SELECT 1 AS x, 2 AS x", [[1, 2]]),
        ("SELECT 1 WHERE 0", []),
    ],
)
def test_reads(served: ServedDatabase, statement: str, rows: list[object]) -> None:
    assert served.call(statement)["structuredContent"]["rows"] == rows
    assert served.effects() == []


@pytest.mark.parametrize("statement", ["EXPLAIN DELETE FROM t", "EXPLAIN QUERY PLAN UPDATE t SET b = 7"])
def test_explaining_a_change_makes_none(served: ServedDatabase, statement: str) -> None:
    before = served.contents()
    assert served.call(statement)["structuredContent"]["rows"]
    assert (served.contents(), served.effects()) == (before, [])


def test_what_looks_like_a_read_and_writes_is_a_change(served: ServedDatabase) -> None:
    served.there_and_back("WITH x (i) AS (VALUES (7)) INSERT INTO t SELECT i, i FROM x RETURNING *")
    assert served.script("SELECT count(*) FROM t") == [(3,)]


@pytest.mark.parametrize(
    "statement", ["DELETE FROM t WHERE a > 5", "UPDATE t SET b = b", "CREATE TABLE IF NOT EXISTS t (x)"]
)
def test_a_change_that_changes_nothing_is_no_effect(served: ServedDatabase, statement: str) -> None:
    before, position = served.contents(), served.position()
    assert not served.call(statement)["isError"]
    assert (served.contents(), served.position()) == (before, position)
    assert [effect.state for effect in served.effects()] == [EffectState.VOID]
    assert served.script("SELECT name FROM sqlite_schema WHERE name LIKE 'planarian%'") == []


def test_errors_of_sqlite_are_results(served: ServedDatabase) -> None:
    statements = ("INSERT INTO t VALUES (1, 'x')", "SELEC", "SELECT * FROM nowhere", "DELETE FROM nowhere", "")
    for statement in (*statements, "SELECT writefile(1, 2)"):
        result = served.call(statement)
        assert result["isError"], result
        assert result["content"][0]["text"]
    assert all(effect.state is EffectState.VOID for effect in served.effects())


def test_a_statement_that_takes_too_long(make_database: Callable[..., ServedDatabase]) -> None:
    served = make_database(statement_timeout=0.3)
    served.script(_SCHEMA)
    before = served.contents()
    endless = "WITH n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n)"
    for statement in ("SELECT count(*) FROM n", "INSERT INTO t SELECT -count(*), 1 FROM n"):
        with pytest.raises(RemoteError, match=r"more than 0\.3 s") as caught:
            served.call(f"{endless} {statement}")
        assert (caught.value.code, caught.value.remedy) == ("call-refused", "raise statement_timeout")
    assert served.contents() == before


def test_too_much_undo_data(make_database: Callable[..., ServedDatabase]) -> None:
    served = make_database(max_bytes=1000)
    served.script(_SCHEMA)
    before = served.contents()
    with pytest.raises(RemoteError, match="larger than 1000 bytes"):
        served.call("INSERT INTO t VALUES (5, hex(zeroblob(1000)))")
    assert served.contents() == before


def test_a_database_in_utf_16(make_database: Callable[..., ServedDatabase]) -> None:
    served = make_database()
    served.script("PRAGMA user_version = 0")
    served.other.close(True)
    served.path.unlink()
    import apsw

    served.other = apsw.Connection(str(served.path))
    served.script("PRAGMA encoding = 'UTF-16'; CREATE TABLE t (a)")
    with pytest.raises(RemoteError, match="only UTF-8"):
        served.call("INSERT INTO t VALUES ('é')")
    assert served.call("SELECT count(*) FROM t")["structuredContent"]["rows"] == [[0]]


# --- the configuration ---


def test_arguments_that_are_no_text(served: ServedDatabase) -> None:
    from planarian_core.model import CallClass, RemoteCall

    for arguments in ({}, {"sql": 5}, {"sql": None}, {"other": "SELECT 1"}):
        verdict = served.kind.classify(RemoteCall("execute_sql", arguments))
        assert (verdict.call_class, verdict.reason) == (CallClass.REFUSED, "the argument 'sql' must be text")
    assert served.kind.classify(RemoteCall("other", {})).call_class is CallClass.REFUSED


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"path": 5},
        {"path": "relative"},
        {"path": "/x", "results": "other"},
        {"path": "/x", "on_conflict": "overwrite"},
        {"path": "/x", "unknown": 1},
        {"path": "/x", "max_rows": 0},
        {"path": "/x", "tools": {"other": {"class": "read-only"}}},
        {"path": "/x", "command": ["server"], "results": "json", "tools": {"other": {"clas": "pivot"}}},
    ],
)
def test_configurations_that_cant_be_meant(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        make(Table("notes", wrong), "sb")
