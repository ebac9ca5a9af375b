"""Statements on a doltlite branch: judged by the engine, run, refused; results, limits, hostile ones."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from planarian_core import Planarian
from planarian_core.errors import BackendUnavailable, CaptureError, CompensationError, ConfigurationError, RemoteError
from planarian_core.model import CallClass, EffectState, RemoteCall
from planarian_core.sandbox import Sandbox
from planarian_core.testing.branched_notes import Agent, Notes, texts_of
from planarian_remote.branching import library
from planarian_remote.branching.engine import Connection, EngineError
from planarian_remote.branching.judgement import Judge

pytestmark = pytest.mark.needs("doltlite")

READS = [
    "SELECT * FROM notes",
    "WITH n AS (SELECT id FROM notes) SELECT count(*) FROM n;  -- how many",
    "EXPLAIN DELETE FROM notes",
    "EXPLAIN QUERY PLAN UPDATE notes SET text = 'x'",
    "PRAGMA table_info(notes)",
    "PRAGMA user_version",
    "SELECT * FROM pragma_table_list",
    "SELECT message FROM dolt_log",
    "SELECT * FROM dolt_diff_notes",
    "SELECT * FROM dolt_history_notes",
    "SELECT dolt_hashof('HEAD'), dolt_version(), doltlite_engine()",
    "SELECT name FROM dolt_branches",
]
CHANGES = [
    "INSERT INTO notes(text) VALUES ('a') RETURNING id",
    "INSERT INTO notes(id, text) VALUES (1, 'b') ON CONFLICT(id) DO UPDATE SET text = excluded.text",
    "REPLACE INTO notes VALUES (1, 'call home')",
    "WITH old AS (SELECT min(id) AS id FROM notes) DELETE FROM notes WHERE id IN (SELECT id FROM old)",
    "UPDATE notes SET text = upper(text)",
    "CREATE TABLE t(a REAL PRIMARY KEY, b BLOB, c GENERATED ALWAYS AS (a * 2)) WITHOUT ROWID",
    "CREATE TABLE copied AS SELECT * FROM notes",
    "CREATE INDEX by_text ON notes(text DESC)",
    "CREATE VIEW v AS SELECT * FROM notes",
    "CREATE TRIGGER tr AFTER INSERT ON notes BEGIN DELETE FROM notes WHERE id = 1; END",
    "ALTER TABLE notes ADD COLUMN done INTEGER DEFAULT 0",
    "ALTER TABLE notes RENAME TO papers",
    "DROP TABLE notes",
    "CREATE VIRTUAL TABLE words USING fts5(word)",
    "CREATE VIRTUAL TABLE boxes USING rtree(id, x0, x1)",
    "ANALYZE",
    "PRAGMA user_version = 7",
    "SELECT dolt_commit('-A', '--allow-empty', '-m', 'it''s mine')",
]
REFUSED = {
    "SELECT dolt_checkout('main')": "dolt_checkout() changes branches or versions",
    "SELECT dolt_connect_branch('main')": "dolt_connect_branch()",
    "SELECT dolt_reset('--hard', 'HEAD~1')": "dolt_reset()",
    "SELECT dolt_branch('-D', 'main')": "dolt_branch()",
    "SELECT dolt_branch('-f', 'main', 'HEAD')": "dolt_branch()",
    "SELECT dolt_tag('-d', 'x')": "dolt_tag()",
    "SELECT dolt_merge('main')": "dolt_merge()",
    "SELECT dolt_default_branch('x')": "dolt_default_branch()",
    "SELECT dolt_gc()": "dolt_gc()",
    "SELECT dolt_push('origin', 'main')": "dolt_push()",
    "SELECT dolt_remote('add', 'o', 'file:///tmp/x')": "dolt_remote()",
    "SELECT dolt_clone('file:///tmp/x')": "dolt_clone()",
    "SELECT dolt_commit('-A', '--amend', '-m', 'x')": "dolt_commit()",
    "SELECT dolt_commit('-A', '--AMEND', '-m', 'x')": "dolt_commit()",
    "SELECT dolt_commit('-A', '-' || '-amend', '-m', 'x')": "dolt_commit()",
    "SELECT dolt_commit('-m', 'x'), dolt_checkout('main')": "dolt_c",
    "SELECT (SELECT dolt_checkout(name) FROM dolt_branches LIMIT 1)": "dolt_checkout()",
    "WITH a AS (SELECT dolt_reset('--hard')) SELECT * FROM a": "dolt_reset()",
    "INSERT INTO notes(text) SELECT dolt_checkout('main')": "dolt_checkout()",
    "UPDATE notes SET text = dolt_reset('--hard')": "dolt_reset()",
    "VALUES (dolt_gc())": "dolt_gc()",
    "/* SELECT 1 */ SELECT DOLT_CHECKOUT('main')": "dolt_checkout()",
    "SELECT \"dolt_checkout\"('main')": "dolt_checkout()",
    "INSERT INTO dolt_ignore VALUES ('notes', 1)": "dolt_ignore belongs to the versions",
    "INSERT INTO dolt_docs VALUES ('a', 'b')": "dolt_docs belongs",
    "UPDATE dolt_workspace_notes SET staged = 1": "dolt_workspace_notes belongs",
    "BEGIN": "a transaction can't span calls",
    "BEGIN IMMEDIATE": "transaction",
    "COMMIT": "transaction",
    "SAVEPOINT s": "transaction",
    "ATTACH '/tmp/other.db' AS other": "other databases",
    "DETACH main": "other databases",
    "CREATE TEMP TABLE t(a)": "temporary",
    "CREATE TABLE temp.t(a)": "temporary",
    "VACUUM": "can't be seen",
    "VACUUM INTO '/tmp/copy.db'": "can't be seen",
    "VACUUM INTO (SELECT '/tmp/copy.db')": "can't be seen",
    "PRAGMA foreign_keys = ON": "PRAGMA foreign_keys",
    "PRAGMA journal_mode = DELETE": "PRAGMA journal_mode",
    "PRAGMA wal_checkpoint": "PRAGMA wal_checkpoint",
    "PRAGMA writable_schema = 1": "PRAGMA writable_schema",
    "SELECT load_extension('/tmp/evil.so')": "outside the database",
    "CREATE VIRTUAL TABLE x USING vec1(a)": "virtual tables of the module vec1",
    "SELECT 1; DELETE FROM notes": "more than one statement",
    "SELECT 1; nonsense": "more than one statement",
    "SELECT 1 -- \0 DELETE": "NUL",
    "": "no statement",
    " ; -- nothing": "no statement",
    "SELECT ?": "parameters",
}


@pytest.mark.parametrize("sql", READS)
def test_reads_are_read_only_and_leave_no_entry(notes: Notes, planarian: Planarian, agent: Agent, sql: str) -> None:
    sandbox = planarian.sandbox()
    before = notes.dump(sandbox.id)
    agent.do(sql)
    assert agent.session.kind.classify(RemoteCall("execute_sql", {"sql": sql})).call_class is CallClass.READ_ONLY
    assert planarian.effects(sandbox) == []
    assert notes.dump(sandbox.id) == before


@pytest.mark.parametrize("sql", CHANGES)
def test_changes_are_branchable_and_are_undone_and_done_again(
    notes: Notes, planarian: Planarian, agent: Agent, sql: str
) -> None:
    sandbox = planarian.sandbox()
    point = planarian.snapshot(sandbox)
    before = notes.dump(sandbox.id)
    agent.do(sql)
    [effect] = planarian.effects(sandbox)
    assert (effect.call_class, effect.state, effect.summary) == (CallClass.BRANCHABLE, EffectState.APPLIED, sql)
    after = notes.dump(sandbox.id)
    undone = planarian.rollback(sandbox, point)
    assert [e.summary for e in undone.remote_undone] == [sql]
    assert notes.dump(sandbox.id) == before
    assert undone.safety_id is not None
    planarian.rollback(sandbox, undone.safety_id)
    assert notes.dump(sandbox.id) == after


@pytest.mark.parametrize("sql", REFUSED)
def test_what_versions_do_not_undo_is_refused_without_effect(
    notes: Notes, planarian: Planarian, agent: Agent, sql: str
) -> None:
    sandbox = planarian.sandbox()
    before, branches, refs = notes.dump(sandbox.id), notes.branches(), notes.refs()
    assert REFUSED[sql] in agent.refused(sql)
    assert not Path("/tmp/copy.db").exists()  # noqa: S108  # what VACUUM INTO was asked to write
    with pytest.raises(RemoteError, match="refused"):  # past the session, the target itself refuses too
        agent.target.call("execute_sql", {"sql": sql})
    assert (notes.dump(sandbox.id), notes.branches(), notes.refs()) == (before, branches, refs)
    assert planarian.effects(sandbox) == []
    agent.do("INSERT INTO notes(text) VALUES ('still here')")
    assert notes.texts(sandbox.id)[-1] == "still here"


@pytest.mark.parametrize(
    ("made", "used"),
    [
        ("CREATE VIEW hidden AS SELECT dolt_reset('--hard') AS x", "SELECT * FROM hidden"),
        (
            "CREATE TRIGGER hidden AFTER INSERT ON notes BEGIN SELECT dolt_reset('--hard'); END",
            "INSERT INTO notes(text) VALUES ('x')",
        ),
        ("CREATE TABLE hidden(a, b DEFAULT (dolt_reset('--hard')))", "INSERT INTO hidden(a) VALUES (1)"),
    ],
)
def test_a_version_function_hidden_in_the_schema_does_not_run(
    notes: Notes, sandbox: Sandbox, agent: Agent, made: str, used: str
) -> None:
    """Some of these can't be made at all; what can be made can't be used."""
    agent.do("INSERT INTO notes(text) VALUES ('kept')")
    for sql in (made, used):
        with suppress(RemoteError):
            agent.send(sql)
    assert "kept" in notes.texts(sandbox.id), "no reset"


def test_results_are_rows_as_json(agent: Agent) -> None:
    assert agent.do("SELECT id, text FROM notes ORDER BY id") == [
        '{"id": 1, "text": "buy bread"}',
        '{"id": 2, "text": "call home"}',
    ]
    assert agent.do("SELECT 1 AS a, 'é' AS a, x'00ff' AS b, NULL AS n, 1e999 AS i, 0.1 AS f") == [
        '{"a": 1, "a:1": "é", "b": "x\'00ff\'", "n": null, "i": "inf", "f": 0.1}'
    ]
    assert agent.do("SELECT 9223372036854775807 AS big, cast(x'ff41' AS TEXT) AS odd") == [
        '{"big": 9223372036854775807, "odd": "\ufffdA"}'
    ]
    assert agent.do("SELECT 1 WHERE 0") == []
    assert agent.do("DELETE FROM notes WHERE id = 2") == ['{"changes": 1}']


def test_an_error_of_the_engine_is_a_result(planarian: Planarian, sandbox: Sandbox, agent: Agent) -> None:
    for sql, said in {
        "SELEC 1": "syntax error",
        "SELECT * FROM nowhere": "no such table: nowhere",
        "INSERT INTO notes VALUES (1, 'again')": "UNIQUE constraint failed",
        "INSERT INTO notes(text) VALUES (NULL)": "NOT NULL constraint failed",
    }.items():
        result = agent.send(sql)
        assert result["isError"]
        assert said in texts_of(result)[0]
    assert {effect.state for effect in planarian.effects(sandbox)} == {EffectState.VOID}


def test_what_changed_nothing_is_void(planarian: Planarian, sandbox: Sandbox, agent: Agent) -> None:
    agent.do("DELETE FROM notes WHERE id > 1000")
    agent.do("DELETE FROM notes WHERE id = 1")
    assert [effect.state for effect in planarian.effects(sandbox)] == [EffectState.VOID, EffectState.APPLIED]


def test_an_endless_statement_is_interrupted_without_effect(notes: Notes, planarian: Planarian) -> None:
    notes.configure("timeout = 0.3\n")
    with notes.open() as again:
        sandbox = notes.sandbox(again)
        agent = Agent(again, sandbox)
        before = notes.dump(sandbox.id)
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
        for before_it in ("", "INSERT INTO notes(text) "):
            result = agent.send(f"{before_it}{endless} WHERE i < 0")
            assert result["isError"]
            assert "took more than 0.3 s; nothing was changed" in texts_of(result)[0]
        assert notes.dump(sandbox.id) == before
        assert len(agent.do("SELECT * FROM notes")) == 2
        agent.close()
        again.remove_sandbox(sandbox)


def test_a_result_that_is_too_large(notes: Notes, planarian: Planarian) -> None:
    """A read is refused; a change is made whole, and says that its result isn't."""
    notes.configure("max_rows = 3\n")
    with notes.open() as again:
        sandbox = notes.sandbox(again)
        agent = Agent(again, sandbox)
        many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 4) SELECT i FROM n"
        result = agent.send(many)
        assert (result["isError"], "add LIMIT" in texts_of(result)[0]) == (True, True)
        shown = agent.do(f"INSERT INTO notes(text) {many} RETURNING id")
        assert shown == [
            '{"id": 3}',
            '{"id": 4}',
            '{"id": 5}',
            "the change was made; of its result only 3 rows are shown",
        ]
        assert notes.texts(sandbox.id)[2:] == ["1", "2", "3", "4"]
        assert again.effects(sandbox)[-1].state is EffectState.APPLIED
        agent.close()
        again.remove_sandbox(sandbox)


def test_huge_and_malformed_arguments(agent: Agent) -> None:
    assert agent.do(f"SELECT length('{'x' * 2_000_000}') AS n") == ['{"n": 2000000}']
    assert agent.send("SELECT " + "(" * 5000 + "1" + ")" * 5000)["isError"]
    for arguments in ({}, {"sql": 1}, {"sql": ["SELECT 1"]}, {"SQL": "SELECT 1"}):
        with pytest.raises(RemoteError) as caught:
            agent.session.call("execute_sql", arguments, agent.target)
        assert caught.value.code == "call-refused"
    with pytest.raises(RemoteError, match="no \\[services"):
        agent.session.call("other_tool", {"sql": "SELECT 1"}, agent.target)


def test_another_connection_s_open_transaction_is_a_clear_error(
    notes: Notes, planarian: Planarian, sandbox: Sandbox
) -> None:
    notes.configure("busy_timeout = 0.2\n")
    with notes.open() as again:
        agent = Agent(again, again.sandbox(sandbox.id))
        agent.do("INSERT INTO notes(text) VALUES ('mine')")
        other = Connection(library.find(), notes.database)
        other.execute("BEGIN IMMEDIATE")
        result = agent.send("INSERT INTO notes(text) VALUES ('blocked')")
        assert (result["isError"], "locked" in texts_of(result)[0]) == (True, True)
        assert len(agent.do("SELECT * FROM notes")) == 3, "a read waits for nobody"
        with pytest.raises(CaptureError) as caught:
            again.snapshot(again.sandbox(sandbox.id))
        assert caught.value.code == "service-busy"
        other.execute("ROLLBACK")
        other.close()
        again.snapshot(again.sandbox(sandbox.id))
        agent.close()
    assert notes.texts(sandbox.id) == ["buy bread", "call home", "mine"]


def test_a_call_that_was_cut_off_is_settled_by_what_the_branch_holds(
    notes: Notes, planarian: Planarian, sandbox: Sandbox, agent: Agent
) -> None:
    log, kind = planarian.registry.effects, agent.session.kind
    for sql, made in (("INSERT INTO notes(text) VALUES ('made')", True), ("DELETE FROM notes", False)):
        call = RemoteCall("execute_sql", {"sql": sql})
        log.begin(sandbox.id, "notes", call, kind.classify(call), sql, kind.prepare(call, agent.target))  # type: ignore[attr-defined]  # Prepares
        if made:
            agent.target.call("execute_sql", {"sql": sql})
        planarian.snapshot(sandbox)
        assert planarian.effects(sandbox)[-1].state is (EffectState.APPLIED if made else EffectState.VOID)
    log.begin(sandbox.id, "notes", call, kind.classify(call), "x", kind.prepare(call, agent.target))  # type: ignore[attr-defined]  # Prepares
    notes.database.rename(notes.database.with_name("away"))
    with pytest.raises(CompensationError) as caught:
        planarian.snapshot(sandbox)
    assert caught.value.code == "service-unreachable"
    notes.database.with_name("away").rename(notes.database)
    planarian.snapshot(sandbox)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("colour = 1\n", "unknown key 'colour'"),
        ("busy_timeout = -1\n", "busy_timeout must be"),
        ('[services.notes.tools.x]\nclass = "odd"\n', "class must be one of"),
        ('[services.notes.tools.x]\nclass = "pivot"\nshape = 1\n', "unknown key 'shape'"),
    ],
)
def test_configuration_that_cannot_be_meant_is_refused(
    notes: Notes, planarian: Planarian, lines: str, said: str
) -> None:
    notes.configure(lines)
    with notes.open() as again, pytest.raises(ConfigurationError, match=said):
        again.snapshot(notes.sandbox(again))
    notes.configure()


def test_a_relative_path_is_refused(notes: Notes, planarian: Planarian) -> None:
    text = '[services.notes]\nkind = "branching"\ndialect = "doltlite"\npath = "notes.db"\n'
    (notes.home / "planarian.toml").write_text(text)
    with notes.open() as again, pytest.raises(ConfigurationError, match="absolute"):
        again.snapshot(notes.sandbox(again))
    notes.configure()


def test_a_missing_library_names_the_package(notes: Notes, planarian: Planarian, sandbox: Sandbox) -> None:
    notes.configure(f'library = "{notes.home / "nothing.so"}"\n')
    with notes.open() as again, pytest.raises(BackendUnavailable) as caught:
        again.snapshot(again.sandbox(sandbox.id))
    assert caught.value.code == "doltlite-missing"
    notes.configure()


def test_plain_sqlite_files_and_other_files_are_refused(
    notes: Notes, planarian: Planarian, sandbox: Sandbox, tmp_path: Path
) -> None:
    """Asked for its versions, the engine would crash on one of SQLite's own files."""
    plain = tmp_path / "plain.db"
    connection = sqlite3.connect(plain)
    connection.execute("CREATE TABLE t(a)")
    connection.close()
    (tmp_path / "text.db").write_text("no database" * 100)
    for path, said in ((plain, "plain SQLite"), (tmp_path / "text.db", "not a database"), (tmp_path / "no.db", "open")):
        (notes.home / "planarian.toml").write_text(
            f'[services.notes]\nkind = "branching"\ndialect = "doltlite"\npath = "{path}"\n'
        )
        with notes.open() as again, pytest.raises(RemoteError, match=said):
            Agent(again, again.sandbox(sandbox.id))
    assert not (tmp_path / "no.db").exists(), "nothing is made by opening"
    notes.configure()


def test_the_engine_leaves_this_process_s_sqlite_alone(agent: Agent) -> None:
    assert agent.do("SELECT doltlite_engine() AS engine") == ['{"engine": "prolly"}']
    connection = sqlite3.connect(":memory:")
    with pytest.raises(sqlite3.OperationalError, match="no such function"):
        connection.execute("SELECT doltlite_engine()")
    connection.close()


def test_values_and_errors_of_the_engine(tmp_path: Path) -> None:
    connection = Connection(library.find(), tmp_path / "t.db", create=True)
    values = (None, -1, 2**62, 1.5, "text", "", b"", b"\0\xff", "a\0b")
    shown = connection.execute(f"SELECT {', '.join('?' * len(values))}", *values)
    assert shown.rows == [values]
    with pytest.raises(EngineError) as caught:
        connection.execute("SELECT * FROM nowhere")
    assert (str(caught.value), caught.value.busy, caught.value.interrupted) == ("no such table: nowhere", False, False)
    connection.close()
    connection.close()


def test_judging_from_several_threads_in_turn(notes: Notes) -> None:
    """A proxy runs kinds in worker threads, one at a time, but not always the same."""
    connection = Connection(library.find(), notes.database)
    judge = Judge(connection)
    found: list[CallClass] = []
    for sql in ("SELECT 1", "DELETE FROM notes", "VACUUM") * 5:
        thread = threading.Thread(target=lambda sql=sql: found.append(judge.verdict(sql).call_class))
        thread.start()
        thread.join()
    assert found == [CallClass.READ_ONLY, CallClass.BRANCHABLE, CallClass.REFUSED] * 5
    connection.close()


def test_a_process_whose_sqlite_is_doltlite_s_opens_no_home(tmp_path: Path) -> None:
    """Its registry would be a file that no other process can read."""
    script = "import doltlite, sys; from planarian_core import Planarian; Planarian.open(sys.argv[1]).close()"
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "home")], capture_output=True, text=True, check=False, timeout=60
    )
    assert "sqlite3 is doltlite's in this process" in done.stderr
    with Planarian.open(tmp_path / "home") as planarian:
        assert planarian.registry.sandboxes() == []
