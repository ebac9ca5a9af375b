"""Each statement is undone exactly, and done again exactly: the table as text, with sequences, before and after."""

from __future__ import annotations

import pytest

from tests.planarian_remote.postgresql.conftest import Agent, Observer

pytestmark = pytest.mark.needs("postgresql")

SCHEMA = (
    "CREATE TABLE parent (id serial PRIMARY KEY, k int UNIQUE, v text, at timestamptz DEFAULT now())",
    """CREATE TABLE child (
        id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, x float8, parent int REFERENCES parent ON DELETE CASCADE
        ON UPDATE CASCADE, twice float8 GENERATED ALWAYS AS (x * 2) STORED)""",
    "CREATE TABLE weak (parent int REFERENCES parent ON DELETE SET NULL ON UPDATE CASCADE, note char(5))",
    "CREATE TABLE keyless (a int, b json, p point)",
    "CREATE TABLE parts (a int, b text, PRIMARY KEY (a)) PARTITION BY RANGE (a)",
    "CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE parts_high PARTITION OF parts FOR VALUES FROM (100) TO (200)",
    "CREATE TABLE counted (id int PRIMARY KEY, version int DEFAULT 0)",
    "CREATE TABLE audit (what text, at timestamptz DEFAULT clock_timestamp())",
    """CREATE FUNCTION count_version() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        NEW.version := NEW.version + 1; INSERT INTO audit (what) VALUES (TG_OP); RETURN NEW; END $$""",
    "CREATE TRIGGER count_version BEFORE UPDATE ON counted FOR EACH ROW EXECUTE FUNCTION count_version()",
    "CREATE VIEW seen AS SELECT id, v FROM parent WHERE k < 50",
    "CREATE TABLE lonely (id int PRIMARY KEY, k int UNIQUE)",
    "INSERT INTO lonely SELECT i, i FROM generate_series(9, 1, -1) i",
    "INSERT INTO parent (k, v) SELECT i, 'v' || i FROM generate_series(10, 1, -1) i",
    "INSERT INTO child (parent, x) SELECT i % 10 + 1, 0.1 + i FROM generate_series(1, 30) i",
    "INSERT INTO weak SELECT i, 'n' || i FROM generate_series(1, 10) i",
    "INSERT INTO keyless SELECT i % 3, '{\"a\": 1}', '(1,2)' FROM generate_series(1, 9) i",
    "INSERT INTO parts SELECT i * 9, 'p' FROM generate_series(1, 20) i",
    "INSERT INTO counted SELECT i FROM generate_series(1, 5) i",
)
TABLES = ("lonely", "parent", "child", "weak", "keyless", "parts", "counted", "audit")
STATEMENTS = (
    "INSERT INTO parent (k, v) VALUES (100, 'new'), (101, NULL)",
    "INSERT INTO parent (k, v) VALUES (1, 'again'), (200, 'new') ON CONFLICT (k) DO UPDATE SET v = excluded.v",
    "INSERT INTO parent (k, v) VALUES (1, 'again') ON CONFLICT DO NOTHING",
    "UPDATE lonely SET k = k + 1",
    "UPDATE parent SET id = id + 1000",
    "UPDATE parent SET v = 'x' WHERE random() < 0.5",
    "DELETE FROM parent WHERE id < 4",
    "DELETE FROM parent",
    "DELETE FROM child WHERE ctid IN (SELECT ctid FROM child LIMIT 3)",
    "WITH gone AS (DELETE FROM child WHERE x < 9 RETURNING *) INSERT INTO weak SELECT parent, 'c' FROM gone",
    "WITH gone AS (DELETE FROM child RETURNING x) SELECT sum(x) FROM gone",
    "UPDATE child SET x = 0.1 + 0.2 WHERE id % 2 = 0",
    "UPDATE child SET x = 'NaN' WHERE id = 1",
    "DELETE FROM keyless WHERE ctid = (SELECT min(ctid) FROM keyless)",
    "INSERT INTO keyless SELECT * FROM keyless",
    "UPDATE keyless SET a = a + 1, b = '{\"b\":   2}'",
    "UPDATE parts SET a = a + 60 WHERE a < 100 AND a + 60 NOT IN (SELECT a FROM parts)",
    "DELETE FROM parts",
    "UPDATE counted SET id = id",
    "UPDATE seen SET v = 'through the view' WHERE id = 2",
    "INSERT INTO seen (id, v) VALUES (500, 'through the view')",
    """MERGE INTO counted c USING parent p ON c.id = p.k WHEN MATCHED AND c.id < 3 THEN DELETE
        WHEN MATCHED THEN UPDATE SET version = 9 WHEN NOT MATCHED AND p.k > 5 THEN INSERT VALUES (p.k)""",
    "UPDATE weak SET note = NULL",
    "UPDATE parent SET at = '-infinity' WHERE id = 1",
    "UPDATE parent SET at = '0044-03-15 12:00:00+00 BC' WHERE id = 1",
    "/* a */ UPDATE parent -- b\n SET v = $$it's$$ || E'\\n' WHERE id = 3;",
)


@pytest.fixture
def world(other: Observer) -> Observer:
    other.run(*SCHEMA)
    return other


def everything(other: Observer) -> dict[str, list[str]]:
    contents = {table: other.text(table) for table in TABLES}
    contents["sequences"] = other.text("(SELECT last_value, is_called FROM parent_id_seq)")
    return contents


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_statement_is_undone_and_done_again(agent: Agent, world: Observer, statement: str) -> None:
    before = everything(world)
    agent(statement)
    after = everything(world)
    agent.undo()
    assert everything(world) == before
    agent.redo()
    assert everything(world) == after
    agent.undo()
    assert everything(world) == before


def test_all_of_them_in_one_go(agent: Agent, world: Observer) -> None:
    states = [everything(world)]
    for statement in STATEMENTS:
        agent(statement)
        states.append(everything(world))
    agent.undo()
    assert everything(world) == states[0]
    agent.redo()
    assert everything(world) == states[-1]
    for count in range(1, len(STATEMENTS) + 1):
        agent.kind.move([agent.effects[-count]], [], agent.target, lambda effect, state: None)
        assert everything(world) == states[-1 - count]


@pytest.mark.parametrize(
    "settings",
    [
        "SET extra_float_digits = 0",
        "SET DateStyle = 'German'",
        "SET IntervalStyle = 'sql_standard'",
        "SET TimeZone = 'Asia/Kathmandu'",
        "SET bytea_output = 'escape'",
        "SET standard_conforming_strings = off",
    ],
)
def test_settings_of_the_session_change_nothing(agent: Agent, other: Observer, settings: str) -> None:
    other.run(
        """CREATE TABLE t (
            id int PRIMARY KEY, f float8, r float4, d date, at timestamptz, i interval, b bytea, n numeric, m money,
            x xml, c regclass, a int[], o text[], e inet, u uuid, s bit varying, g int4range)""",
        """INSERT INTO t VALUES (
            1, 0.1::float8 + 0.2, 1e-30, '2024-02-03', '2024-02-03 04:05:06.789+01', '1 mon -2 days 03:04', '\\x00ff5c',
            12345678901234567890.10, 12.5, '<a/>', 't', '{1,NULL}', '[0:1]={"a,b",""}', '::1', NULL, '101', '[1,4)')""",
    )
    agent.target.call("execute_sql", {"sql": settings})
    before = other.text("t")
    agent("UPDATE t SET id = 2")
    agent("DELETE FROM t")
    agent.undo()
    assert other.text("t") == before


@pytest.mark.parametrize("default", ["now()", "'now'", "current_date - 'yesterday'::date", "'a'", "NULL"])
@pytest.mark.parametrize("settings", ["SET DateStyle = 'German'", "SET TimeZone = 'Asia/Kathmandu'"])
def test_a_new_column_s_first_values_come_back_with_it(
    agent: Agent, other: Observer, default: str, settings: str
) -> None:
    type_ = {"'a'": "char(3)", "current_date - 'yesterday'::date": "int"}.get(default, "timestamptz")
    other.run(
        "CREATE TABLE t (n int)",
        "CREATE TABLE t_child () INHERITS (t)",
        "INSERT INTO t VALUES (1), (2)",
        "INSERT INTO t_child VALUES (3)",
        "CREATE FUNCTION never() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
        "CREATE TRIGGER never BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION never()",
    )
    agent.target.call("execute_sql", {"sql": settings})

    def state() -> tuple[object, ...]:
        defaults = "(SELECT attrelid::regclass, pg_get_expr(adbin, adrelid) FROM pg_attrdef JOIN pg_attribute "
        defaults += "ON attrelid = adrelid AND attnum = adnum WHERE adrelid::regclass::text ~ '^t')"
        triggers = "(SELECT tgname, tgenabled FROM pg_trigger WHERE tgname = 'never')"
        return tuple(other.text(name) for name in ("t", "ONLY t", defaults, triggers))

    before = state()
    agent(f"ALTER TABLE t ADD COLUMN made {type_} DEFAULT {default}")
    after = state()
    agent.undo()
    assert state() == before
    agent.redo()
    assert state() == after


def test_a_default_of_that_moment_comes_back(agent: Agent, other: Observer) -> None:
    other.run("CREATE TABLE t (at timestamptz)")
    default = "(SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = 't'::regclass)"
    agent("ALTER TABLE t ALTER COLUMN at SET DEFAULT 'now'")
    after = other.text(default)
    agent.undo()
    assert other.text(default) == []
    agent.redo()
    assert other.text(default) == after


@pytest.mark.parametrize("table", ["nothing ()", "made (a int GENERATED ALWAYS AS (1) STORED)"])
def test_rows_without_columns_of_their_own(agent: Agent, other: Observer, table: str) -> None:
    other.run(f"CREATE TABLE {table}")
    name = table.split()[0]
    agent(f"INSERT INTO {name} DEFAULT VALUES")
    agent(f"INSERT INTO {name} SELECT FROM generate_series(1, 3)")
    filled = other.text(name)
    assert len(filled) == 4
    agent(f"DELETE FROM {name}")  # noqa: S608
    agent.undo(1)
    assert other.text(name) == filled
    agent.redo(1)
    agent.undo()
    assert other.text(name) == []
    agent.kind.move([], agent.effects[:2], agent.target, lambda effect, state: None)
    assert other.text(name) == filled


def test_deferred_constraints_are_looked_at_in_the_call(agent: Agent, other: Observer) -> None:
    other.run(
        "CREATE TABLE d (a int UNIQUE DEFERRABLE INITIALLY DEFERRED, p int PRIMARY KEY)", "INSERT INTO d VALUES (1, 1)"
    )
    result = agent.result("INSERT INTO d VALUES (1, 2)")
    assert "23505" in result["content"][0]["text"]
    assert other.text("d") == ["(1,1)"]


def test_another_sandbox_is_not_in_the_way(make_agent: object, world: Observer) -> None:
    one, two = make_agent("sb-1"), make_agent("sb-2")  # type: ignore[operator]  # a factory
    before = everything(world)
    one("UPDATE parent SET v = 'one' WHERE id = 1")
    two("UPDATE parent SET v = 'two' WHERE id = 2")
    one.undo()
    two.undo()
    assert everything(world) == before


def test_many_rows_and_the_cap(make_agent: object, other: Observer) -> None:
    agent = make_agent(max_rows=1000)  # type: ignore[operator]  # a factory
    other.run(
        "CREATE TABLE big (id int PRIMARY KEY, n int)", "INSERT INTO big SELECT i, 0 FROM generate_series(1, 2000) i"
    )
    before = other.text("big")
    agent("UPDATE big SET n = 1 WHERE id <= 1000")
    assert "at most 1000" in agent.refused("UPDATE big SET n = 2")
    agent.undo()
    assert other.text("big") == before
