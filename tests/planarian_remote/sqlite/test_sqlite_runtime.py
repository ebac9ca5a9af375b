"""From end to end: rows, files and processes come back together, through sessions and through ``planarian proxy``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import pytest

from planarian_core import Planarian
from planarian_core.errors import CompensationConflict, RemoteError
from planarian_core.model import EffectState
from planarian_core.sandbox import Sandbox
from planarian_core.testing import mcp_servers, pypi_servers
from planarian_core.testing.raw_mcp import RawClient
from planarian_core.testing.sqlite_contents import Contents, contents
from planarian_core.testing.workloads import remove_all

_PROXY = [sys.executable, "-c", "from planarian_core.cli.main import main; main()", "proxy", "notes", "--sandbox"]


@dataclass
class World:
    """A home with a service ``notes`` on a database of two rows, and a sandbox with a report about it."""

    home: Path
    workspace: Path
    database: Path
    backend: str

    def configure(self, more: str = "") -> None:
        table = f'[services.notes]\nkind = "sql"\ndialect = "sqlite"\npath = "{self.database}"\n{more}'
        self.home.mkdir(exist_ok=True)
        (self.home / "planarian.toml").write_text(table)

    def contents(self) -> Contents:
        return contents(self.database)


@pytest.fixture(
    params=["directory", pytest.param("namespace", marks=pytest.mark.needs("linux", "namespaces"))],
)
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(tmp_path / "home", tmp_path / "workspace", tmp_path / "notes.db", request.param)
    made.workspace.mkdir()
    connection = apsw.Connection(str(made.database))
    connection.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, text); INSERT INTO notes VALUES (1, 'a'), (2, 'b')")
    connection.close()
    made.configure()
    yield made
    with Planarian.open(made.home) as planarian:
        remove_all(planarian)


def _new(world: World, planarian: Planarian) -> Sandbox:
    return planarian.create_sandbox(world.workspace, sandbox=world.backend, filesystem="copy", process="none")


def _call(planarian: Planarian, sandbox: Sandbox, sql: str) -> Any:
    session = planarian.remote_session(sandbox, "notes")
    return session.call("execute_sql", {"sql": sql}, session.kind.connect())["structuredContent"]


def _report(planarian: Planarian, sandbox: Sandbox) -> None:
    rows = _call(planarian, sandbox, "SELECT text FROM notes ORDER BY id")["rows"]
    sandbox.run(["sh", "-c", 'echo "$1" > report', "sh", repr(rows)])


def test_rows_and_files_come_back_together(world: World) -> None:
    with Planarian.open(world.home) as planarian:
        sandbox = _new(world, planarian)
        _report(planarian, sandbox)
        start, before = planarian.snapshot(sandbox), world.contents()
        _call(planarian, sandbox, "UPDATE notes SET text = upper(text)")
        _call(planarian, sandbox, "CREATE TABLE more (a)")
        _call(planarian, sandbox, "INSERT INTO more VALUES (1)")
        _report(planarian, sandbox)
        middle, halfway = planarian.snapshot(sandbox), world.contents()
        _call(planarian, sandbox, "DROP TABLE notes")
        after = world.contents()
        context = planarian.rollback(sandbox, start)
        assert (world.contents(), sandbox.run("cat report").stdout) == (before, "[['a'], ['b']]\n")
        assert [effect.summary for effect in context.remote_undone] == [
            "table notes gone",
            "more: 1 row",
            "table more made",
            "notes: 2 rows",
        ]
        assert context.safety_id is not None
        planarian.rollback(sandbox, context.safety_id)
        assert (world.contents(), sandbox.run("cat report").stdout) == (after, "[['A'], ['B']]\n")
        planarian.rollback(sandbox, middle)
        assert world.contents() == halfway
        assert [effect.state for effect in planarian.effects(sandbox)] == [
            *[EffectState.APPLIED] * 3,
            EffectState.UNDONE,
        ]


def test_a_conflict_stops_the_rollback_before_anything_else(world: World) -> None:
    with Planarian.open(world.home) as planarian:
        sandbox = _new(world, planarian)
        start = planarian.snapshot(sandbox)
        _call(planarian, sandbox, "UPDATE notes SET text = 'ours' WHERE id = 1")
        sandbox.run("echo new > file")
        other = apsw.Connection(str(world.database))
        other.execute("UPDATE notes SET text = 'theirs' WHERE id = 1")
        other.close()
        state = world.contents()
        with pytest.raises(CompensationConflict, match="theirs"):
            planarian.rollback(sandbox, start)
        assert (world.contents(), sandbox.run("cat file").stdout) == (state, "new\n")
        world.configure('on_conflict = "skip"\n')
    with Planarian.open(world.home) as planarian:
        sandbox = planarian.sandbox(sandbox.id)
        context = planarian.rollback(sandbox, start)
        assert "left to others: notes (1) is now (1, 'theirs')" in context.remote_undone[0].summary
        assert (world.contents(), sandbox.run("cat file").exit_code) == (state, 1)


def test_a_fork_is_fenced_off_and_a_removed_sandbox_leaves_no_trace(world: World) -> None:
    with Planarian.open(world.home) as planarian:
        sandbox = _new(world, planarian)
        start = planarian.snapshot(sandbox)
        _call(planarian, sandbox, "DELETE FROM notes")
        fork = planarian.fork(start)
        with pytest.raises(RemoteError, match="can't branch"):
            _call(planarian, fork, "INSERT INTO notes VALUES (3, 'c')")
        remove_all(planarian)
    connection = apsw.Connection(str(world.database))
    assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == [("notes",)]
    connection.close()


@pytest.mark.parametrize("server", ["direct", pytest.param("reference", marks=pytest.mark.needs("pypi"))])
def test_through_the_proxy(world: World, server: str) -> None:
    read, write, argument = "execute_sql", "execute_sql", "sql"
    if server == "reference":
        read, write, argument = "read_query", "write_query", "query"
        program = pypi_servers.pypi_command("mcp-server-sqlite", pypi_servers.SQLITE)
        command = mcp_servers.as_configuration([str(program), "--db-path", str(world.database)])
        world.configure(f'command = {command}\nresults = "mcp-server-sqlite"\n')
    with Planarian.open(world.home) as planarian:
        sandbox = _new(world, planarian)
        start, before = planarian.snapshot(sandbox), world.contents()
        client = RawClient([*_PROXY, sandbox.id], env={**os.environ, "PLANARIAN_HOME": str(world.home)})
        try:
            assert "result" in client.initialize()
            tools = {tool["name"]: tool for tool in client.request("tools/list")["result"]["tools"]}
            assert "compensable" in repr(tools[write]["_meta"])

            def ask(tool: str, sql: str) -> str:
                result = client.call(tool, {argument: sql})["result"]
                return str(result["content"][0]["text"])

            ask(write, "DELETE FROM notes WHERE id = 2")
            after = world.contents()
            assert "'b'" not in ask(read, "SELECT * FROM notes").replace('"', "'")
            context = planarian.rollback(sandbox, start)
            assert world.contents() == before
            assert "'b'" in ask(read, "SELECT * FROM notes").replace('"', "'")
            assert context.safety_id is not None
            planarian.rollback(sandbox, context.safety_id)
            assert world.contents() == after
            assert "refused" in ask(write, "VACUUM")
        finally:
            client.kill()
