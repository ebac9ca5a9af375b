"""What a statement is taken for, from its text alone."""

from __future__ import annotations

import pytest

from planarian_remote.postgresql.lexer import literal, tokens
from planarian_remote.postgresql.plain import plain_change
from planarian_remote.postgresql.schema_change import NotUndoable, schema_change
from planarian_remote.postgresql.statements import What, judge


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("select 1", ["select", "1"]),
        ('SELECT "A""b".c', ["select", 'A"b', ".", "c"]),
        ("a.b(1.5, .5, 1e9)", ["a", ".", "b", "(", "1.5", ",", ".5", ",", "1e9", ")"]),
        ("'it''s' E'a\\'b' $$x;y$$ $t$ $$ $t$", ["'it''s'", "E'a\\'b'", "x;y", " $$ "]),
        ("a--b;\nc/* ; /* ; */ */d", ["a", "c", "d"]),
        ("x = $1", ["x", "=", "$", "1"]),
    ],
)
def test_tokens(statement: str, words: list[str]) -> None:
    assert [token.text for token in tokens(statement)] == words


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("SELECT 1", What.READ),
        ("(SELECT 1) UNION (SELECT 2);", What.READ),
        ("with a as (select 1) table a", What.READ),
        ("WITH d AS (DELETE FROM t RETURNING *) SELECT * FROM d", What.ROWS),
        ("SELECT nextval('s')", What.READ),
        ("SELECT pg_catalog.set_config('a', 'b', false)", What.ROWS),
        ("SELECT a INTO b FROM c", What.SCHEMA),
        ("MERGE INTO t USING u ON true WHEN MATCHED THEN DELETE", What.ROWS),
        ("truncate t", What.TRUNCATE),
        ("EXPLAIN ANALYZE DELETE FROM t", What.REFUSED),
        ("EXPLAIN (ANALYZE) CREATE TABLE s AS SELECT 1", What.REFUSED),
        ("EXPLAIN (ANALYZE, COSTS off) SELECT 1 INTO s", What.REFUSED),
        ("EXPLAIN ANALYZE EXECUTE x", What.REFUSED),
        ("EXPLAIN (ANALYZE) SELECT 1", What.READ),
        ("EXPLAIN DELETE FROM t", What.READ),
        ("INSERT INTO t VALUES ('a;b')", What.ROWS),
        ("SELECT 1;;", What.READ),
        ("SELECT 1; SELECT 2", What.REFUSED),
        ("SELECT * FROM x.planarian_y", What.REFUSED),
        ("COMMIT", What.REFUSED),
        ("42", What.REFUSED),
        (42, What.REFUSED),
        ("x" * 5_000_000, What.REFUSED),
    ],
)
def test_what_a_statement_is(statement: object, what: What) -> None:
    judged = judge(statement)
    assert judged.what is what
    assert bool(judged.reason) == (what is What.REFUSED)


@pytest.mark.parametrize(
    ("statement", "target", "functions"),
    [
        ("UPDATE t SET a = a + 1 WHERE b IN (1, 2)", "t", []),
        ("INSERT INTO s.\"T\" (a, b) VALUES (lower('x'), now()) RETURNING *", 's."T"', ["lower", "now"]),
        ("DELETE FROM t", "t", []),
        ("UPDATE t SET a = f(b)", None, None),
        ('UPDATE t SET a = "now"()', None, None),
        ("UPDATE t SET a = s.now()", "t", ["now"]),
        ("UPDATE t SET a = u.a FROM u", None, None),
        ("DELETE FROM t USING u", None, None),
        ("INSERT INTO t SELECT * FROM u", None, None),
        ("INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING", None, None),
        ("UPDATE t SET a = (SELECT 1)", None, None),
        ("WITH x AS (SELECT 1) UPDATE t SET a = 1", None, None),
        ("UPDATE ONLY t SET a = 1", None, None),
        ("DELETE FROM t WHERE CURRENT OF c", None, None),
    ],
)
def test_plain_changes(statement: str, target: str | None, functions: list[str] | None) -> None:
    plain = plain_change(judge(statement))
    assert plain.target == target
    if functions is not None:
        assert list(plain.functions) == functions


@pytest.mark.parametrize(
    ("statement", "columns"),
    [
        ('UPDATE t SET a = 1, "B" = f(2, 3), c = (SELECT x, y FROM z WHERE w = 1) WHERE d = 4', ["a", "B", "c"]),
        ("UPDATE t SET (a, b) = (1, 2)", None),
        ("UPDATE t SET a[1] = 2", None),
        ("UPDATE t x SET a = 1 FROM u WHERE true", ["a"]),
    ],
)
def test_assigned_columns(statement: str, columns: list[str] | None) -> None:
    assert plain_change(judge(statement)).columns == columns


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE a, b",
        "DROP TABLE a CASCADE",
        "DROP DATABASE a",
        "ALTER TABLE a ADD b int, ADD c int",
        "ALTER TABLE a DROP COLUMN b",
        "ALTER TABLE a OWNER TO b",
        "ALTER ROLE a SUPERUSER",
        "ALTER DATABASE a SET b = c",
        "CREATE ROLE a",
        "CREATE EXTENSION a",
        "CREATE OR REPLACE VIEW a AS SELECT 1",
        "CREATE FUNCTION a() RETURNS int LANGUAGE c AS 'x', 'y'",
        "COMMENT ON TABLE a IS 'b'",
        "ALTER TABLE a",
        "CREATE",
        "DROP TABLE",
    ],
)
def test_changes_of_the_schema_that_are_not_undone(statement: str) -> None:
    with pytest.raises(NotUndoable):
        schema_change(judge(statement))


def test_literals() -> None:
    assert literal("a'b\\c") == "E'a''b\\\\c'"
