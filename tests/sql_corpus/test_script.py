"""The reader of psql scripts sends what psql would send."""

from __future__ import annotations

import pytest

from .script import Script
from .tally import generalised
from .walk import command_of


def read(text: str, **variables: str) -> list[str]:
    return [statement.text for statement in Script(text, variables)]


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("SELECT 1; SELECT 2;", ["SELECT 1", "SELECT 2"]),
        ("SELECT ';', \";\", $$;$$, $a$;$$;$a$;", ["SELECT ';', \";\", $$;$$, $a$;$$;$a$"]),
        ("SELECT 'it''s;'; x;", ["SELECT 'it''s;'", "x"]),
        (r"SELECT E'it\';s'; x;", [r"SELECT E'it\';s'", "x"]),
        (r"SELECT 'a\'; x;", [r"SELECT 'a\'", "x"]),
        ("SELECT 1 -- one; not two\n + 2;", ["SELECT 1 \n + 2"]),
        ("SELECT /* ; /* ; */ ; */ 1;", ["SELECT   1"]),
        ("CREATE RULE r AS ON INSERT TO t DO (SELECT 1; SELECT 2);",
         ["CREATE RULE r AS ON INSERT TO t DO (SELECT 1; SELECT 2)"]),
        ("CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN a THEN 1 END; SELECT 2; END; x;",
         ["CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN a THEN 1 END; SELECT 2; END", "x"]),
        ("BEGIN; COMMIT;", ["BEGIN", "COMMIT"]),
        (r"SELECT 1\; SELECT 2;", ["SELECT 1; SELECT 2"]),
        ("\\d t\nSELECT 1;\n\\echo no\n", ["SELECT 1"]),
        ("SELECT 1\n\\p\n + 2;", ["SELECT 1\n + 2"]),
        ("\\set v 'a b'\nSELECT :'v', :\"v\", a::int, :none;", ["SELECT 'a b', \"a b\", a::int, :none"]),
        ("\\if :yes\nSELECT 1;\n\\else\nSELECT 2;\n\\endif\nSELECT 3;", ["SELECT 1", "SELECT 3"]),
        ("\\if :no\nSELECT 1;\n\\elif true\nSELECT 2;\n\\else\nSELECT 4;\n\\endif", ["SELECT 2"]),
        ("SELECT 1;\n\\q\nSELECT 2;", ["SELECT 1"]),
        ("SELECT 1", ["SELECT 1"]),
    ],
)  # fmt: skip
def test_statements(text: str, statements: list[str]) -> None:
    assert read(text, yes="true", no="false") == statements


def test_data_of_a_copy() -> None:
    _, first, second = Script("SELECT 0;\nCOPY t FROM stdin;\n1\tx;y\n\\.\nSELECT 1;", {})
    assert (first.text, first.data, first.line) == ("COPY t FROM stdin", "1\tx;y\n", 2)
    assert (second.text, second.data, second.line) == ("SELECT 1", None, 5)


def test_endings() -> None:
    [one, two] = Script("SELECT 1 AS a \\gset p_\nSELECT 2\n\\g\n", {})
    assert (one.text, one.ending, one.argument) == ("SELECT 1 AS a", "gset", "p_")
    assert (two.text, two.ending) == ("SELECT 2", "g")


@pytest.mark.parametrize(
    ("statement", "command"),
    [
        ("insert into t values (1)", "INSERT"),
        ("WITH a AS (SELECT 1) SELECT 2", "SELECT"),
        ("with a as (delete from t returning *) select * from a", "DELETE"),
        ("CREATE UNIQUE INDEX i ON t (a)", "CREATE INDEX"),
        ("create temp table t (a int)", "CREATE TABLE"),
        ("(SELECT 1)", "SELECT"),
    ],
)
def test_commands(statement: str, command: str) -> None:
    assert command_of(statement) == command


def test_reasons_are_counted_without_names() -> None:
    assert generalised('table "a" has 5 rows') == generalised('table "b" has 17 rows')
