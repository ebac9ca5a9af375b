"""CREATE, DROP and ALTER are undone exactly: definitions, their order, rows and counters."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from planarian_core.errors import CompensationConflict, RemoteError
from planarian_core.testing.sqlite_service import ServedDatabase

_SCHEMA = (
    "CREATE TABLE k (a INTEGER PRIMARY KEY AUTOINCREMENT, b UNIQUE, c DEFAULT 7);"
    "CREATE INDEX kc ON k (c DESC) WHERE c > 1; CREATE VIEW v AS SELECT a, c FROM k;"
    "CREATE TABLE log (n);"
    "CREATE TRIGGER g AFTER INSERT ON k BEGIN INSERT INTO log VALUES (new.a); END;"
    "CREATE TRIGGER vi INSTEAD OF INSERT ON v BEGIN INSERT INTO k (c) VALUES (new.c); END;"
    "INSERT INTO k (b, c) VALUES (1, 2), (3, -0.0); DELETE FROM k WHERE a = 1"
)


_CASES = {
    "CREATE TABLE": ["CREATE TABLE n (x)", "INSERT INTO n VALUES (1)", "DROP TABLE n"],
    "options": ["CREATE TABLE IF NOT EXISTS n (x TEXT PRIMARY KEY, y ANY) WITHOUT ROWID, STRICT", "DROP TABLE n"],
    "AS SELECT": ["CREATE TABLE n AS SELECT a, b AS 'b b', c, 'x' AS d FROM k", "DROP TABLE n"],
    "indexes": ["CREATE UNIQUE INDEX i ON k (b, c)", "DROP INDEX i", "DROP INDEX kc"],
    "views, with their triggers": ["CREATE VIEW w AS SELECT * FROM v", "DROP VIEW v", "DROP VIEW w"],
    "triggers": ["CREATE TRIGGER h BEFORE DELETE ON k BEGIN SELECT 1; END", "DROP TRIGGER g"],
    "a table with all that hangs on it": ["DROP TABLE k"],
    "a name used again": ["DROP TABLE k", "CREATE TABLE k (o)", "INSERT INTO k VALUES (5)", "DROP TABLE k"],
    "RENAME TO": ["ALTER TABLE k RENAME TO kk", "INSERT INTO kk (b) VALUES (9)", "ALTER TABLE kk RENAME TO k"],
    "RENAME COLUMN": [
        "ALTER TABLE k RENAME COLUMN b TO bb",
        "UPDATE k SET bb = 5 WHERE a = 2",
        "INSERT INTO v VALUES (1, 2)",
    ],
    "ADD COLUMN": [
        "ALTER TABLE k ADD COLUMN d DEFAULT 'new'",
        "UPDATE k SET d = 'set'",
        "ALTER TABLE k ADD COLUMN e NOT NULL DEFAULT 1",
    ],
    "ADD a generated COLUMN": ["ALTER TABLE k ADD COLUMN d AS (a + 1)", "INSERT INTO k (b) VALUES (8)"],
    "DROP COLUMN": ["DROP VIEW v", "DROP INDEX kc", "ALTER TABLE k DROP COLUMN c", "UPDATE k SET b = b + 1"],
    "full text": ["CREATE VIRTUAL TABLE f USING fts5(x)", "INSERT INTO f VALUES ('one')", "DROP TABLE f"],
    "R-Tree": ["CREATE VIRTUAL TABLE r USING rtree(i, a, b)", "INSERT INTO r VALUES (1, 2, 3)", "DROP TABLE r"],
    "counters": ["INSERT INTO k (b) VALUES (70)", "DELETE FROM k", "DROP TABLE k", "DROP TABLE log"],
}


@pytest.mark.parametrize("statements", _CASES.values(), ids=_CASES.keys())
def test_definition(database: ServedDatabase, statements: list[str]) -> None:
    database.script(_SCHEMA)
    database.there_and_back(*statements)


def test_the_table_of_counters_goes_with_the_first_that_needed_it(database: ServedDatabase) -> None:
    before, position = database.contents(), database.position()
    database.change("CREATE TABLE n (a INTEGER PRIMARY KEY AUTOINCREMENT)")
    database.change("INSERT INTO n VALUES (5)")
    database.go(position)
    assert database.contents() == before == {"definitions": []}


def test_statistics_of_a_dropped_table(database: ServedDatabase) -> None:
    database.script(f"{_SCHEMA}; ANALYZE")
    database.there_and_back("DROP TABLE log", "ALTER TABLE k ADD COLUMN d", "DROP TABLE k")


def test_a_counter_that_is_ahead_of_its_rows(database: ServedDatabase) -> None:
    database.script(_SCHEMA)
    database.script("DELETE FROM k; INSERT INTO k (b) VALUES (5), (6); DELETE FROM k WHERE b = 6")
    database.there_and_back("ALTER TABLE k ADD COLUMN d", "ALTER TABLE k DROP COLUMN d", "DROP TABLE k")


def test_auto_vacuum_moves_pages(database: ServedDatabase) -> None:
    database.script("PRAGMA auto_vacuum = FULL; VACUUM")
    database.script(_SCHEMA)
    database.there_and_back("DROP TRIGGER g", "DROP TABLE log", "ALTER TABLE k RENAME TO kk", "DROP TABLE kk")


@pytest.mark.parametrize(
    ("statement", "meddling", "what"),
    [
        ("CREATE TABLE n (x)", "INSERT INTO n VALUES (1)", "rows of the table n"),
        ("CREATE TABLE n (x)", "CREATE INDEX ni ON n (x)", "index ni was made on n"),
        ("CREATE TABLE n (x)", "DROP TABLE n", "the definition of table n"),
        ("DROP TABLE k", "CREATE TABLE k (other)", "table k is there already"),
        ("ALTER TABLE k RENAME TO kk", "CREATE INDEX ki ON kk (b)", "index ki was made on kk"),
        ("INSERT INTO k (b) VALUES (50)", "ALTER TABLE k ADD COLUMN z", "the definition of the table k"),
        ("INSERT INTO k (b) VALUES (50)", "DROP VIEW v; DROP TABLE k", "the definition of the table k"),
    ],
)
def test_another_writers_definitions_are_a_conflict(
    database: ServedDatabase, statement: str, meddling: str, what: str
) -> None:
    database.script(_SCHEMA)
    position = database.position()
    database.change(statement)
    database.script(meddling)
    state = database.contents()
    with pytest.raises(CompensationConflict, match=what):
        database.go(position)
    assert database.contents() == state


def test_a_table_that_is_too_large_to_keep(make_database: Callable[..., ServedDatabase]) -> None:
    database = make_database(max_rows=10)
    database.script("CREATE TABLE t (a); INSERT INTO t SELECT value FROM json_each('[1,2,3,4,5,6,7,8,9,10,11]')")
    before = database.contents()
    for statement in ("DROP TABLE t", "CREATE TABLE n AS SELECT * FROM t", "DELETE FROM t"):
        with pytest.raises(RemoteError, match="more than 10 rows"):
            database.call(statement)
        assert database.contents() == before
    database.there_and_back("ALTER TABLE t RENAME TO tt")  # its rows stay where they are
