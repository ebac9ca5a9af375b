"""Other writers, repeated and unsettled calls, installation, forgetting."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

from planarian_core.errors import CompensationConflict, CompensationError, ConfigurationError, RemoteError
from planarian_core.model import Effect, EffectState, RemoteCall
from planarian_core.testing.postgresql import PrivateCluster
from planarian_remote.configuration import Table
from planarian_remote.postgresql import installation
from planarian_remote.postgresql.kind import make
from tests.planarian_remote.postgresql.conftest import Agent, Observer

pytestmark = pytest.mark.needs("postgresql")

Make = Callable[..., Agent]


@pytest.fixture
def world(other: Observer) -> Observer:
    other.run("CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t SELECT i, i FROM generate_series(1, 5) i")
    return other


def test_a_conflict_names_the_rows_and_changes_nothing(agent: Agent, world: Observer) -> None:
    agent("UPDATE t SET n = n * 10 WHERE id <= 3")
    agent("DELETE FROM t WHERE id = 5")
    world.run("UPDATE t SET n = 99 WHERE id = 2")
    before = world.text("t")
    with pytest.raises(CompensationConflict) as caught:
        agent.undo()
    assert "(2,20)" in caught.value.message
    assert "(2,99)" in caught.value.message
    assert world.text("t") == before
    world.run("UPDATE t SET n = 20 WHERE id = 2")
    agent.undo()
    assert world.text("t") == ["(1,1)", "(2,2)", "(3,3)", "(4,4)", "(5,5)"]


def test_conflicting_rows_can_be_left_alone(make_agent: Make, world: Observer) -> None:
    agent = make_agent(on_conflict="skip")
    agent("UPDATE t SET n = n * 10 WHERE id <= 3")
    agent("UPDATE t SET n = n + 1 WHERE id = 2")
    agent("DELETE FROM t WHERE id >= 4")
    agent("INSERT INTO t VALUES (7, 7), (8, 8)")
    world.run("UPDATE t SET n = 99 WHERE id = 2", "INSERT INTO t VALUES (5, 55)", "UPDATE t SET n = 0 WHERE id = 8")
    moved = agent.undo()
    assert world.text("t") == ["(1,1)", "(2,99)", "(3,3)", "(4,4)", "(5,55)", "(8,0)"]
    skipped = moved[0][0].details["left to another writer"]
    assert {row["left"] for row in skipped} >= {"(2,21)", "(8,8)", "(5,5)"}
    assert all(state is EffectState.UNDONE for _, state in moved)


def test_moves_are_idempotent(agent: Agent, world: Observer) -> None:
    agent("UPDATE t SET n = 0")
    agent.undo()
    agent.undo()
    assert world.text("t")[0] == "(1,1)"
    agent.redo()
    agent.redo()
    assert world.text("t")[0] == "(1,0)"


def test_a_call_is_made_once(agent: Agent, world: Observer) -> None:
    call = RemoteCall("execute_sql", {"sql": "UPDATE t SET n = n + 1 RETURNING id, n"})
    first = agent.kind.run(call, agent.effect(call, 1), agent.target)
    again = agent.kind.run(call, agent.effect(call, 1), agent.target)
    assert first.result == again.result
    assert world.text("t")[0] == "(1,2)"


def test_settling(agent: Agent, world: Observer) -> None:
    call = RemoteCall("execute_sql", {"sql": "UPDATE t SET n = n + 1"})
    agent.kind.run(call, agent.effect(call, 1), agent.target)
    assert agent.kind.settle(agent.effect(call, 1), agent.target).state is EffectState.APPLIED
    assert agent.kind.settle(agent.effect(call, 2), agent.target).state is EffectState.VOID
    with pytest.raises(RemoteError) as late:  # it can't happen any more
        agent.kind.run(call, agent.effect(call, 2), agent.target)
    assert late.value.code == "call-refused"
    assert world.text("t")[0] == "(1,2)"


def test_columns_that_another_changed(agent: Agent, world: Observer) -> None:
    agent("UPDATE t SET n = 0")
    world.run("ALTER TABLE t ADD COLUMN more int")
    with pytest.raises(CompensationConflict, match="columns"):
        agent.undo()
    world.run("ALTER TABLE t DROP COLUMN more")
    agent.undo()
    assert world.text("t")[0] == "(1,1)"


def test_a_proof_ends_with_the_shape_it_was_made_for(agent: Agent, world: Observer) -> None:
    for number in range(3):
        agent(f"UPDATE t SET n = -{number} WHERE id = 1")  # noqa: S608  # a test's
    world.run("ALTER TABLE t ADD CHECK (n > 0) NOT VALID")
    assert "could not be undone" in agent.refused("UPDATE t SET n = 5 WHERE id = 1")


def test_undo_data_is_dropped(agent: Agent, world: Observer) -> None:
    agent("UPDATE t SET n = 0")
    agent("CREATE TABLE more (a int)")
    agent("DROP TABLE more")
    agent.kind.forget(agent.effects, agent.target)
    assert world.text("planarian.effect") == world.text("planarian.image") == world.text("planarian.aside") == []
    assert world.rows("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'planarian%'") == [("planarian",)]
    with pytest.raises(CompensationError, match="no undo data"):
        agent.undo()


def test_a_changed_schema_has_another_version() -> None:
    """A database keeps the functions of the version that it has: raise VERSION, and note the new digest here."""
    digest = hashlib.sha256(installation.script().encode()).hexdigest()
    assert (installation.VERSION, digest[:16]) == (3, "516036842a4a3d13")


def test_older_functions_are_replaced_and_newer_ones_refused(make_agent: Make, world: Observer) -> None:
    one = make_agent()
    one("UPDATE t SET n = 0")
    world.run("UPDATE planarian.installed SET version = 0", "DROP FUNCTION planarian.check_version CASCADE")
    world.run(
        "CREATE OR REPLACE FUNCTION planarian.begin_effect(p_version integer, p_lock_timeout text, p_target oid,"
        " p_inserts boolean, p_functions text[], OUT id bigint, OUT reach oid[], OUT sequences oid[])"
        " LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION '0' USING ERRCODE = 'PLN04'; END $$"
    )
    one("UPDATE t SET n = 1")
    one.undo()
    assert world.text("t")[0] == "(1,1)"
    world.run(
        "UPDATE planarian.installed SET version = 99",
        "CREATE OR REPLACE FUNCTION planarian.check_version(p_version integer) RETURNS void LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION '99' USING ERRCODE = 'PLN04'; END $$",
    )
    with pytest.raises(RemoteError) as caught:
        one.redo()
    assert caught.value.code == "schema-newer"


def test_undo_data_of_another_role(
    make_agent: Make, postgresql: PrivateCluster, database: str, world: Observer
) -> None:
    role = f"user_{database}"
    postgresql.create_role(role)
    world.run(f"GRANT ALL ON t TO {role}")
    agent = make_agent(role=role, setup_dsn=postgresql.dsn(database, "agent"))
    agent("UPDATE t SET n = 0 RETURNING *")
    agent("INSERT INTO t VALUES (9, 9)")
    assert "another role" in agent.verdict("DROP TABLE t").reason
    result = agent.target.call("execute_sql", {"sql": "DELETE FROM planarian.image"})
    assert "permission denied" in result["content"][0]["text"]
    agent.undo()
    assert world.text("t") == ["(1,1)", "(2,2)", "(3,3)", "(4,4)", "(5,5)"]


def test_a_role_that_may_not_install(
    make_agent: Make, postgresql: PrivateCluster, database: str, world: Observer
) -> None:
    role = f"guest_{database}"
    postgresql.create_role(role)
    world.run(f"GRANT ALL ON t TO {role}")
    with pytest.raises(RemoteError) as caught:
        make_agent(role=role)("UPDATE t SET n = 0")
    assert caught.value.code == "service-setup"
    assert "setup_dsn" in caught.value.remedy


@pytest.mark.parametrize(
    "raw",
    [{}, {"dsn": "x", "command": ["y"]}, {"dsn": "x", "nonsense": 1}, {"command": ["y"]}, {"dsn": "x", "max_rows": 0}],
)
def test_configurations_that_can_not_be_meant(raw: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        make(Table("db", {"kind": "sql", "dialect": "postgresql", **raw}), "sb-1")


def test_no_secret_is_shown() -> None:
    for dsn in (
        "postgresql://u:secret@h:5/d",
        "host=h password=secret dbname=d",
        "host=h password = 'secret' dbname=d",
    ):
        kind = make(Table("db", {"kind": "sql", "dialect": "postgresql", "dsn": dsn}), "sb-1")
        assert "secret" not in kind.endpoint


SCHEMA_CHANGES = (
    "CREATE TABLE made (id serial PRIMARY KEY, t int REFERENCES t, v text DEFAULT 'a')",
    "INSERT INTO made (t) SELECT id FROM t",
    "CREATE TABLE copied AS SELECT *, random() AS r FROM t",
    "CREATE UNIQUE INDEX ON t (n)",
    "CREATE VIEW seen AS SELECT id FROM t",
    "CREATE SEQUENCE counter",
    "CREATE TYPE mood AS ENUM ('a', 'b')",
    "CREATE FUNCTION twice(a int) RETURNS int LANGUAGE sql AS $$ SELECT a * 2 $$",
    "ALTER TABLE t ADD COLUMN more int DEFAULT 5",
    "UPDATE t SET more = id",
    "ALTER TABLE t ADD CONSTRAINT c CHECK (more > 0)",
    "ALTER TABLE t ALTER COLUMN n SET NOT NULL",
    "ALTER TABLE t ALTER n SET DEFAULT 3",
    "ALTER TABLE t RENAME COLUMN n TO m",
    "TRUNCATE made RESTART IDENTITY",
    "DROP TABLE made",
    "DROP VIEW seen",
    "ALTER TABLE t RENAME TO u",
    "DROP TABLE copied",
)


def digest(other: Observer) -> tuple[object, ...]:
    contents = other.rows(
        "SELECT c.relname::text, planarian.contents(c.oid) FROM pg_class c"
        " WHERE c.relkind IN ('r', 'S') AND c.relnamespace = 'public'::regnamespace ORDER BY 1"
    )
    return (*other.rows("SELECT planarian.schema_digest()"), *contents)


def test_changes_of_the_schema(agent: Agent, world: Observer) -> None:
    agent("UPDATE t SET n = n")
    states = [digest(world)]
    for statement in SCHEMA_CHANGES:
        agent(statement)
        states.append(digest(world))
    for at in range(len(SCHEMA_CHANGES)):
        agent.kind.move([agent.effects[-1 - at]], [], agent.target, lambda effect, state: None)
        assert digest(world) == states[-2 - at], SCHEMA_CHANGES[-1 - at]
    agent.redo(len(SCHEMA_CHANGES))
    assert digest(world) == states[-1]
    agent.undo(len(SCHEMA_CHANGES))
    assert digest(world) == states[0]


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t ADD COLUMN r float DEFAULT random()",
        "CREATE TABLE x (a int, b int GENERATED ALWAYS AS IDENTITY); DROP TABLE t",
        "TRUNCATE logged",
        "ALTER TABLE t ALTER COLUMN n TYPE bigint",
    ],
)
def test_changes_of_the_schema_that_are_refused(agent: Agent, world: Observer, statement: str) -> None:
    world.run("CREATE TABLE logged (a int)")
    body = "BEGIN INSERT INTO t VALUES (9); RETURN NULL; END"
    world.run(f"CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$")
    world.run("CREATE TRIGGER note BEFORE TRUNCATE ON logged FOR EACH STATEMENT EXECUTE FUNCTION note()")
    agent("UPDATE t SET n = n")
    before = digest(world)
    assert agent.refused(statement)
    assert digest(world) == before


def test_a_new_table_that_another_writer_filled(agent: Agent, world: Observer) -> None:
    agent("CREATE TABLE made (a int)")
    world.run("INSERT INTO made VALUES (1)")
    with pytest.raises(CompensationConflict):
        agent.undo()
    assert world.text("made") == ["(1)"]


def test_effects_are_those_of_the_sandbox(make_agent: Make, world: Observer) -> None:
    one = make_agent("sb-1")
    one("UPDATE t SET n = 0 WHERE id = 1")
    stranger = make_agent("sb-2")
    effect: Effect = one.effects[0]
    with pytest.raises(CompensationError):
        stranger.kind.move([effect], [], stranger.target, lambda effect, state: None)
    assert world.text("t")[0] == "(1,0)"


def test_a_call_that_was_given_up_does_not_look_made(agent: Agent, other: Observer) -> None:
    other.run("CREATE TABLE t (a int)")
    call = RemoteCall("execute_sql", {"sql": "INSERT INTO t VALUES (1)"})
    effect = agent.effect(call, 7)
    assert agent.kind.settle(effect, agent.target).state is EffectState.VOID
    with pytest.raises(RemoteError) as caught:
        agent.kind.run(call, effect, agent.target)
    assert (caught.value.code, caught.value.state) == ("call-refused", "nothing was changed")
    assert other.text("t") == []
