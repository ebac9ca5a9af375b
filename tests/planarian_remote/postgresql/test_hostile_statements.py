"""Statements that try to get at the undo data, at other roles and settings, or past what they seem to be."""

from __future__ import annotations

import pytest

from tests.planarian_remote.postgresql.conftest import Agent, Observer

pytestmark = pytest.mark.needs("postgresql")


@pytest.fixture
def world(other: Observer, agent: Agent) -> Observer:
    other.run("CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    agent("UPDATE t SET n = 10 WHERE id = 1")
    return other


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
