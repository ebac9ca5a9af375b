"""Statements that a naive undo gets wrong: each is undone exactly and done again exactly."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from planarian_core.testing.sqlite_service import ServedDatabase

MakeDatabase = Callable[..., ServedDatabase]

_TABLE = "CREATE TABLE t (a TEXT PRIMARY KEY, b UNIQUE, c)"
_ROWS = "INSERT INTO t VALUES ('x', 1, 2), ('y', 2, 3), (NULL, 3, 4), (NULL, 4, NULL)"


@pytest.mark.parametrize("wal", [False, True], ids=["rollback-journal", "wal"])
@pytest.mark.parametrize(
    ("schema", "statements"),
    [
        pytest.param(
            f"{_TABLE}; {_ROWS}",
            ["INSERT OR REPLACE INTO t VALUES ('x', 2, 9)", "REPLACE INTO t VALUES (NULL, 1, 1)"],
            id="REPLACE removes two rows and adds one",
        ),
        pytest.param(
            f"{_TABLE}; {_ROWS}; DELETE FROM t WHERE b = 4",  # noqa: S608
            ["DELETE FROM t WHERE b = 3", "INSERT INTO t VALUES ('new', 7, 7)", "UPDATE t SET rowid = 100 WHERE b = 7"],
            id="rowids are used again, and changed",
        ),
        pytest.param(
            f"{_TABLE}; {_ROWS}",
            ["UPDATE t SET c = 5 WHERE a IS NULL", "DELETE FROM t WHERE a IS NULL", "DELETE FROM t"],
            id="NULL in a TEXT primary key",
        ),
        pytest.param(
            "CREATE TABLE t (k UNIQUE, n); INSERT INTO t VALUES (3, 'c'), (2, 'b'), (1, 'a')",
            ["UPDATE t SET k = k + 1", "UPDATE t SET k = CASE k WHEN 2 THEN 40 ELSE k END", "UPDATE t SET k = -k"],
            id="rows trade unique values",
        ),
        pytest.param(
            "CREATE TABLE t (n); INSERT INTO t VALUES (1), (1), (1)",
            ["DELETE FROM t WHERE rowid = 2", "INSERT INTO t VALUES (1)", "UPDATE t SET n = 1.0 WHERE rowid = 1"],
            id="equal rows without a key",
        ),
        pytest.param(
            "CREATE TABLE t (rowid TEXT, _rowid_ TEXT); INSERT INTO t VALUES ('a', 'b')",
            ["INSERT INTO t VALUES ('c', 'd')", "DELETE FROM t WHERE rowid = 'a'"],
            id="columns that hide the rowid's names",
        ),
        pytest.param(
            "CREATE TABLE t (a INTEGER PRIMARY KEY DESC, b); INSERT INTO t VALUES (5, 1), (6, 2)",
            ["UPDATE t SET a = a + 10", "DELETE FROM t"],
            id="INTEGER PRIMARY KEY DESC isn't the rowid",
        ),
        pytest.param(
            "CREATE TABLE w (a INT, b TEXT COLLATE NOCASE, c, PRIMARY KEY (b, a DESC)) WITHOUT ROWID;"
            "INSERT INTO w VALUES (1, 'a', 1), (2, 'b', -0.0)",
            [
                "INSERT OR REPLACE INTO w VALUES (1, 'A', 9e999)",
                "UPDATE w SET b = upper(b)",
                "UPDATE w SET a = 3 - a",
                "DELETE FROM w",
            ],
            id="WITHOUT ROWID, with a collation",
        ),
        pytest.param(
            "CREATE TABLE w (a PRIMARY KEY, n, v AS (n + 1) VIRTUAL UNIQUE) WITHOUT ROWID; INSERT INTO w VALUES (1, 2)",
            ["INSERT INTO w VALUES (2, 3)", "UPDATE w SET n = n + 10", "DELETE FROM w WHERE v = 13"],
            id="WITHOUT ROWID with a virtual column",
        ),
        pytest.param(
            "CREATE TABLE g (a INTEGER PRIMARY KEY, v AS (a + n) VIRTUAL, s AS (n || 'x') STORED UNIQUE, n)",
            ["INSERT INTO g (n) VALUES (1.0), (2)", "UPDATE g SET n = n + 1", "DELETE FROM g WHERE s = '3x'"],
            id="generated columns",
        ),
        pytest.param(
            "CREATE TABLE s (a INTEGER PRIMARY KEY AUTOINCREMENT, b);"
            "CREATE TABLE s2 (a INTEGER PRIMARY KEY AUTOINCREMENT)",
            [
                "INSERT INTO s (b) VALUES (1), (2)",
                "DELETE FROM s",
                "INSERT INTO s (b) VALUES (3)",
                "INSERT INTO s2 VALUES (9223372036854775807)",
                "UPDATE sqlite_sequence SET seq = 70",
                "DELETE FROM sqlite_sequence WHERE name = 's'",
            ],
            id="AUTOINCREMENT and its counter",
        ),
        pytest.param(
            "CREATE TABLE t (a INTEGER, b REAL, c NUMERIC, d TEXT, e BLOB, f)",
            [
                "INSERT INTO t VALUES ('12', '12', '12', 12, 12, 12), (1.0, 1, 1.0, 1.0, 1.0, 1.0)",
                "INSERT INTO t VALUES (-0.0, -0.0, -0.0, -0.0, -0.0, -0.0), (9e999, -9e999, 9e999, 9e999, 0, 9e999)",
                "INSERT INTO t VALUES (9223372036854775807, 9223372036854775807, 9223372036854775807, 0, 0, 0)",
                "INSERT INTO t VALUES (-9223372036854775808, 1e308, 0.1 + 0.2, 4.9e-324, x'', x'00ff00')",
                "INSERT INTO t VALUES ('a', x'61', 'é', 'a' || char(0) || 'b', '', char(0x10ffff)), (0/0,0,0,0,0,0)",
                "UPDATE t SET f = CAST(f AS BLOB)",
                "UPDATE t SET f = CAST(f AS TEXT) WHERE typeof(e) = 'text'",
                "DELETE FROM t",
            ],
            id="types, affinities, infinities, blobs, NUL",
        ),
        pytest.param(
            "CREATE TABLE t (a INT, b INTEGER, c REAL, d TEXT, e BLOB, f ANY) STRICT",
            ["INSERT INTO t VALUES (1, 2, 3, 4, x'05', 6), (1, 2, 3, 4, x'05', '6')", "UPDATE t SET c = a, f = c"],
            id="STRICT",
        ),
        pytest.param(
            "CREATE TABLE t (a); CREATE TABLE log (what, old, new);"
            "CREATE TRIGGER i AFTER INSERT ON t BEGIN INSERT INTO log VALUES ('i', NULL, new.a); END;"
            "CREATE TRIGGER u AFTER UPDATE ON t BEGIN INSERT INTO log VALUES ('u', old.a, new.a); "
            "DELETE FROM log WHERE what = 'i'; END;"
            "CREATE TRIGGER d BEFORE DELETE ON t BEGIN UPDATE log SET what = 'gone' WHERE new = old.a; END",
            ["INSERT INTO t VALUES (1), (2)", "UPDATE t SET a = a + 1", "DELETE FROM t"],
            id="triggers, which don't fire again",
        ),
        pytest.param(
            "CREATE TABLE t (a, n); CREATE VIEW v AS SELECT a FROM t;"
            "CREATE TRIGGER vi INSTEAD OF INSERT ON v BEGIN INSERT INTO t VALUES (new.a, 1); END;"
            "CREATE TRIGGER vd INSTEAD OF DELETE ON v BEGIN UPDATE t SET n = 0 WHERE a = old.a; END",
            ["INSERT INTO v VALUES (1), (2)", "DELETE FROM v WHERE a = 1"],
            id="views with INSTEAD OF triggers",
        ),
        pytest.param(
            "CREATE TABLE t (a INTEGER PRIMARY KEY, b DEFAULT 5); INSERT INTO t VALUES (1, 1);"
            "ALTER TABLE t ADD COLUMN c DEFAULT 'dd'",
            ["UPDATE t SET b = b + 1", "UPDATE t SET c = 'other'", "DELETE FROM t"],
            id="a column that old rows don't store",
        ),
        pytest.param(
            "CREATE TABLE t (a COLLATE NOCASE UNIQUE, b COLLATE RTRIM); INSERT INTO t VALUES ('a', 'b')",
            ["UPDATE t SET a = 'A'", "UPDATE t SET b = 'b  '", "INSERT OR REPLACE INTO t VALUES ('a', 'c')"],
            id="collations",
        ),
        pytest.param(
            "CREATE TABLE t (a, b); CREATE UNIQUE INDEX i ON t (lower(a)) WHERE b > 0; INSERT INTO t VALUES ('A', 1)",
            ["INSERT OR REPLACE INTO t VALUES ('a', 2)", "UPDATE t SET b = 0", "INSERT INTO t VALUES ('a', 1)"],
            id="a partial unique index on an expression",
        ),
        pytest.param(
            "CREATE TABLE t (a INTEGER PRIMARY KEY, n UNIQUE); INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)",
            [
                "INSERT INTO t VALUES (9, 3) ON CONFLICT (n) DO UPDATE SET n = n * 10 RETURNING *",
                "WITH x (i) AS (VALUES (5), (6)) INSERT INTO t SELECT i, i FROM x",
                "UPDATE t SET n = q.m FROM (SELECT 70 AS m) AS q WHERE a = 5",
                "DELETE FROM t WHERE random() % 2 = 0 OR a = 1",
                "INSERT INTO t (n) VALUES (random()), (randomblob(3))",
            ],
            id="upsert, CTE, UPDATE FROM, volatile functions",
        ),
    ],
)
def test_statement(make_database: MakeDatabase, schema: str, statements: list[str], wal: bool) -> None:
    database = make_database()
    database.script(f"PRAGMA journal_mode = {'WAL' if wal else 'DELETE'}")
    database.script(schema)
    database.there_and_back(*statements)


@pytest.mark.parametrize(
    "statements",
    [
        pytest.param(["UPDATE p SET a = a + 10", "UPDATE p SET k = k + 1 WHERE a = 11"], id="cascading updates"),
        pytest.param(["DELETE FROM p WHERE a = 1", "DELETE FROM p"], id="cascading deletes, SET NULL"),
        pytest.param(["DELETE FROM leaf", "DELETE FROM c", "DELETE FROM p", "DROP TABLE p"], id="DROP of a parent"),
        pytest.param(["INSERT OR REPLACE INTO p VALUES (1, 99)"], id="a REPLACE that cascades"),
        pytest.param(["UPDATE tree SET up = 2 WHERE id = 1", "DELETE FROM tree WHERE id = 1"], id="self-reference"),
    ],
)
def test_foreign_keys(make_database: MakeDatabase, statements: list[str]) -> None:
    database = make_database(foreign_keys=True)
    database.script(
        "CREATE TABLE p (a INTEGER PRIMARY KEY, k UNIQUE);"
        "CREATE TABLE c (id INTEGER PRIMARY KEY, x REFERENCES p (a) ON DELETE CASCADE ON UPDATE CASCADE,"
        " y REFERENCES p (k) ON DELETE SET NULL ON UPDATE SET NULL DEFERRABLE INITIALLY DEFERRED);"
        "CREATE TABLE leaf (z REFERENCES c (id) ON DELETE SET DEFAULT DEFAULT NULL);"
        "CREATE TABLE tree (id INTEGER PRIMARY KEY, up REFERENCES tree (id) ON DELETE CASCADE);"
        "INSERT INTO p VALUES (1, 10), (2, 20); INSERT INTO c VALUES (1, 1, 20), (2, 2, 10), (3, NULL, NULL);"
        "INSERT INTO leaf VALUES (1), (2), (3); INSERT INTO tree VALUES (1, NULL), (2, 1), (3, 2)"
    )
    database.there_and_back(*statements)


def test_a_deferred_foreign_key_that_is_not_kept(make_database: MakeDatabase) -> None:
    database = make_database(foreign_keys=True)
    database.script("CREATE TABLE p (a PRIMARY KEY); CREATE TABLE c (x REFERENCES p DEFERRABLE INITIALLY DEFERRED)")
    before = database.contents()
    assert database.call("INSERT INTO c VALUES (1)")["isError"]
    assert database.contents() == before


def test_recursive_triggers(make_database: MakeDatabase) -> None:
    database = make_database(recursive_triggers=True)
    database.script(
        "CREATE TABLE n (a INTEGER PRIMARY KEY);"
        "CREATE TRIGGER down AFTER INSERT ON n WHEN new.a > 0 BEGIN INSERT INTO n VALUES (new.a - 1); END;"
        "CREATE TRIGGER gone AFTER DELETE ON n BEGIN DELETE FROM n WHERE a = old.a - 1; END"
    )
    database.there_and_back("INSERT INTO n VALUES (20)", "REPLACE INTO n VALUES (-5)", "DELETE FROM n WHERE a = 10")
    assert database.script("SELECT count(*) FROM n") == [(11,)]


@pytest.mark.parametrize("module", ["fts5(x)", "fts5(x, content='')", "fts4(x)", "fts3(x)"])
def test_full_text_indexes(database: ServedDatabase, module: str) -> None:
    database.script(f"CREATE VIRTUAL TABLE f USING {module}; CREATE TABLE t (a)")
    database.there_and_back(
        "INSERT INTO f (rowid, x) VALUES (1, 'hello world'), (2, 'hello there')",
        "CREATE TRIGGER ti AFTER INSERT ON t BEGIN INSERT INTO f (x) VALUES (new.a); END",
        "INSERT INTO t VALUES ('through a trigger')",
    )
    database.there_and_back("INSERT INTO f (f) VALUES ('optimize')")
    if "content" not in module:
        database.there_and_back("UPDATE f SET x = 'bye world' WHERE rowid = 1", "DELETE FROM f WHERE f MATCH 'hello'")
    # the connection that undid it sees the index as it is
    found = database.call("SELECT rowid FROM f WHERE f MATCH 'through'")
    assert found["structuredContent"]["rows"] == [[3]]


def test_full_text_of_another_table(database: ServedDatabase) -> None:
    database.script(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, a); "
        "CREATE VIRTUAL TABLE f USING fts5(a, content='t', content_rowid='id');"
        "CREATE TRIGGER ti AFTER INSERT ON t BEGIN INSERT INTO f (rowid, a) VALUES (new.id, new.a); END;"
        "CREATE TRIGGER td AFTER DELETE ON t BEGIN INSERT INTO f (f, rowid, a) VALUES ('delete', old.id, old.a); END"
    )
    database.there_and_back("INSERT INTO t (a) VALUES ('one two'), ('two three')", "DELETE FROM t WHERE id = 1")


@pytest.mark.parametrize("module", ["rtree(id, a, b)", "rtree_i32(id, a, b)", "geopoly(n)"])
def test_spatial_indexes(database: ServedDatabase, module: str) -> None:
    database.script(f"CREATE VIRTUAL TABLE r USING {module}")
    if module.startswith("geopoly"):
        database.there_and_back(
            "INSERT INTO r (_shape, n) VALUES ('[[0,0],[1,0],[0.5,1],[0,0]]', 'a')",
            "UPDATE r SET n = 'b'",
            "DELETE FROM r",
        )
        return
    many = (
        "WITH n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 200) INSERT INTO r SELECT i, i, i + 1 FROM n"
    )
    database.there_and_back(many, "UPDATE r SET b = b + 5 WHERE id < 9", "DELETE FROM r WHERE id % 2", "DELETE FROM r")


def test_a_hundred_thousand_rows(database: ServedDatabase) -> None:
    database.script(
        "CREATE TABLE t (a INTEGER PRIMARY KEY, b UNIQUE, c);"
        "WITH n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 100000) "
        "INSERT INTO t SELECT i, i, 'row' FROM n"
    )
    before, position = database.contents(), database.position()
    database.change("UPDATE t SET c = c || a, b = -b")
    database.go(position)
    assert database.contents() == before
