"""Statements that try to get at the undo data, at other roles and settings, or past what they seem to be."""

from __future__ import annotations

from contextlib import suppress

import pytest

from planarian_core.errors import RemoteError
from tests.planarian_remote.postgresql.conftest import Agent, Observer

pytestmark = pytest.mark.needs("postgresql")


@pytest.fixture
def world(other: Observer, agent: Agent) -> Observer:
    other.run("CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    agent("UPDATE t SET n = 10 WHERE id = 1")
    return other


_FORGET = "'SELECT planar' || 'ian.forget(1, ''sb-1/db'', ''{1}'', ''1s'')'"
"""A text that drops undo data where something runs it."""


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM planarian.effect",
        "DELETE FROM planarian.image",
        'DELETE FROM "planarian".image',
        "TABLE PLANARIAN.effect",
        "UPDATE t SET n = (SELECT count(*) FROM planarian.image)",
        "SELECT planarian.move(1, 'sb-1/db', '{1}', '{}', false, false, '1s')",
        "INSERT INTO t SELECT 5, nextval('planarian.effect_id')",
        "SELECT 'planarian.effect'::regclass",
        "DROP SCHEMA planarian CASCADE",
        "CREATE VIEW v AS SELECT * FROM planarian.effect",
        "ALTER TABLE t DISABLE TRIGGER planarian_capture",
        "ALTER TABLE t DISABLE TRIGGER ALL",
        "ALTER TABLE t DISABLE TRIGGER USER",
        "DROP TRIGGER planarian_capture ON t",
        "DROP FUNCTION planarian.capture() CASCADE",
        "SELECT U&\"set\\005fconfig\"('a.b', 'c', false)",
        "UPDATE t SET n = 3; DELETE FROM t",
        "UPDATE t SET n = 3; COMMIT; DELETE FROM t",
        "UPDATE t SET n = 3 WHERE id = 1 /* ; */; SELECT 1",
        "SELECT 1; UPDATE t SET n = 3",
        "SET ROLE postgres",
        "SET LOCAL planarian.effect = ''",
        "SET SESSION AUTHORIZATION postgres",
        "RESET ALL",
        "SET search_path = planarian",
        "SELECT set_config('planarian.effect', '', false)",
        "SELECT pg_catalog.set_config('default_transaction_read_only', 'off', false)",
        "SELECT \"set_config\"('a.b', 'c', false)",
        "UPDATE t SET n = length(set_config('planarian.effect', '', true))",
        "INSERT INTO t SELECT 7, length(set_config('planarian.effect', '', true))",
        "SELECT query_to_xml('select planar' || 'ian.forget(1,''sb-1/db'',''{1}'',''1s'')', true, true, '')",
        "SELECT ts_stat('select 1')",
        "SELECT lo_create(0)",
        "SELECT pg_notify('a', 'b')",
        "SELECT pg_advisory_lock(1)",
        "SELECT pg_terminate_backend(pg_backend_pid())",
        "SELECT setval('planarian.effect_id', 1)",
        "DO $$ BEGIN DELETE FROM t; END $$",
        "CALL nothing()",
        "COPY t FROM STDIN",
        "COPY t TO PROGRAM 'true'",
        "COPY (DELETE FROM t RETURNING *) TO STDOUT",
        "PREPARE p AS DELETE FROM t",
        "EXECUTE p",
        "DECLARE c CURSOR FOR SELECT 1",
        "BEGIN",
        "COMMIT AND CHAIN",
        "LOCK t",
        "LISTEN x",
        "NOTIFY x",
        "GRANT ALL ON t TO PUBLIC",
        "VACUUM t",
        "CREATE TEMP TABLE x (a int)",
        "CREATE TABLE pg_temp.t (a int)",
        "CREATE INDEX CONCURRENTLY ON t (n)",
        "CREATE EXTENSION hstore",
        "CREATE OPERATOR === (LEFTARG = int, RIGHTARG = int, FUNCTION = int4eq)",
        "CREATE CAST (int AS text) WITH INOUT",
        "CREATE FUNCTION f() RETURNS void LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'delete from t'; END $$",
        "CREATE FUNCTION f() RETURNS void LANGUAGE sql AS $$ SELECT planarian.lock() $$",
        f"CREATE TABLE x AS SELECT query_to_xml({_FORGET}, true, true, '')::text AS a",
        f"CREATE TABLE x (a int CHECK (query_to_xml({_FORGET}, true, true, '') IS NOT NULL))",
        f"ALTER TABLE t ADD COLUMN a text DEFAULT query_to_xml({_FORGET}, true, true, '')::text",
        "SELECT table_to_xml(('plan' || 'arian.effect')::regclass, true, true, '')::text",
        "CREATE VIEW v AS SELECT set_config('default_transaction_' || 'read_only', 'off', false) AS a",
        "CREATE DOMAIN d AS text CHECK (set_config('default_transaction_' || 'read_only', 'off', false) = '')",
        "CREATE FUNCTION f() RETURNS text RETURN set_config('default_transaction_' || 'read_only', 'off', false)",
        "CREATE TABLE x AS SELECT lo_create(0) AS a",
        "CREATE FUNCTION f() RETURNS void LANGUAGE sql AS 'SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE'",
        "CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS $$ <<a>> BEGIN SET search_path = b; RETURN 1; END $$",
        "CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS $$ BEGIN NOTIFY x; RETURN 1; END $$",
        "CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS $$ BEGIN PERFORM setval('s', 7); RETURN 1; END $$",
        "CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS 'BEGIN DELETE FROM plan'\n'arian.image; RETURN 1; END'",
        "CREATE FUNCTION f() RETURNS void LANGUAGE sql AS 'DELETE FROM U&\"plan\\0061rian\".image'",
        "CREATE RULE view AS ON DELETE TO t DO INSTEAD NOTHING",
        "CREATE STATISTICS type ON id, n FROM t",
        'CREATE COLLATION type FROM "C"',
        "CREATE CAST (type AS text) WITH INOUT",
        "CREATE EVENT TRIGGER x ON ddl_command_end EXECUTE FUNCTION f()",
        "",
        ";",
        "-- only a comment",
        "'unterminated",
        "$a$ unterminated",
        "UPDATE t SET n = 1 /* unterminated",
        "\0",
        "select '\ud800'",
    ],
)
def test_it_is_refused_and_nothing_happens(agent: Agent, world: Observer, statement: str) -> None:
    before = [*world.text("t"), *world.text("planarian.effect"), *world.text("planarian.image")]
    assert agent.refused(statement)
    assert [*world.text("t"), *world.text("planarian.effect"), *world.text("planarian.image")] == before
    agent.undo()
    assert world.text("t") == ["(1,1)", "(2,2)"]


@pytest.mark.parametrize(
    ("name", "body", "statement"),
    [
        ("f()", "PERFORM set_config('planarian.effect', '', true); DELETE FROM t WHERE id = 2", "SELECT f()"),
        (
            "f()",
            "INSERT INTO planarian.image VALUES (current_setting('planarian.effect')::bigint, 't'::regclass, '(9,9)')",
            "UPDATE t SET n = f() WHERE id = 1",
        ),
        ("f()", "DELETE FROM planarian.image", "UPDATE t SET n = f() WHERE id = 1"),
        ("f()", "DELETE FROM planarian.effect", "SELECT f()"),
        ("f()", "TRUNCATE t", "SELECT f()"),
        ("f()", "CREATE TABLE made (a int)", "SELECT f()"),
        ("f()", "PERFORM lo_create(0)", "SELECT f()"),
        ("f()", "ALTER TABLE t DISABLE TRIGGER planarian_capture; DELETE FROM t", "SELECT f()"),
        ("abs(text)", "CREATE TABLE made (a int)", "UPDATE t SET n = abs('x'::text) WHERE id = 1"),
    ],
)
def test_code_of_others_is_watched(agent: Agent, world: Observer, name: str, body: str, statement: str) -> None:
    world.run(f"CREATE FUNCTION {name} RETURNS int LANGUAGE plpgsql AS $$ BEGIN {body}; RETURN 1; END $$")
    before = [*world.text("t"), *world.text("planarian.image")]
    agent.refused(statement)
    assert [*world.text("t"), *world.text("planarian.image")] == before
    agent.undo()
    assert world.text("t") == ["(1,1)", "(2,2)"]


@pytest.mark.parametrize(
    "body",
    [
        "DELETE FROM planarian.image",
        "UPDATE planarian.effect SET state = 'undone'",
        "TRUNCATE planarian.image",
        "DROP TABLE planarian.image",
        "DROP FUNCTION planarian.transform(bigint[], bigint[])",
        "PERFORM lo_create(0)",
        'CREATE COLLATION made FROM "C"',
        "PERFORM planarian.forget(planarian.version(), 'sb-1/db', '{1}', '1s')",
    ],
)
def test_code_that_a_definition_runs_is_watched(agent: Agent, world: Observer, body: str) -> None:
    world.run(f"CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS $$ BEGIN {body}; RETURN 1; END $$")
    with suppress(RemoteError):
        assert agent.result("CREATE TABLE made_by_it AS SELECT f() AS a").get("isError")
    assert len(agent.effects) == 1
    agent.undo()
    assert world.text("t") == ["(1,1)", "(2,2)"]


def test_functions_that_only_change_rows_can_be_made(agent: Agent, world: Observer) -> None:
    agent("CREATE FUNCTION f(a int) RETURNS int LANGUAGE plpgsql AS 'BEGIN UPDATE t SET n = a; RETURN 1; END'")
    agent("CREATE FUNCTION g() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN NEW.n = 5; RETURN NEW; END$$")
    agent("SELECT f(7)")
    assert world.text("t") == ["(1,7)", "(2,7)"]
    agent.undo()
    assert world.text("t") == ["(1,1)", "(2,2)"]


def test_the_text_of_a_value_may_be_anything(agent: Agent, world: Observer) -> None:
    for text in ("'; DROP TABLE t; --", "\\'; x", "$$", "$planarian_script$", "%s %I", "planarian", "é\n\\"):
        quoted = text.replace("'", "''")
        world.run("CREATE TABLE IF NOT EXISTS words (w text)")
        agent(f"INSERT INTO words VALUES ('{quoted}')")  # noqa: S608  # a test's
        assert (text,) in world.rows("SELECT w FROM words")


def test_explain_analyze_does_not_run(agent: Agent, world: Observer) -> None:
    result = agent.result("EXPLAIN SELECT 1")
    assert not result.get("isError")
    agent.refused("EXPLAIN ANALYZE DELETE FROM t")
    assert world.text("t") == ["(1,10)", "(2,2)"]


def test_reads_can_not_write(agent: Agent, world: Observer) -> None:
    world.run(
        "CREATE SEQUENCE s", "CREATE FUNCTION count_up() RETURNS bigint LANGUAGE sql AS $$ SELECT nextval('s') $$"
    )
    world.run("CREATE FUNCTION remove() RETURNS int LANGUAGE sql AS $$ DELETE FROM t RETURNING 1 $$")
    agent("SELECT remove()")  # found to write, and captured
    assert world.text("t") == []
    agent.undo()
    assert world.text("t") == ["(1,1)", "(2,2)"]
