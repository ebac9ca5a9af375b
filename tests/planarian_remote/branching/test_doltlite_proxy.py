"""Through ``planarian proxy``: on a direct connection, and before a public MCP server that knows of no branches."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from planarian_core import Planarian
from planarian_core.model import EffectState
from planarian_core.sandbox import Sandbox
from planarian_core.testing import mcp_servers, pypi_servers
from planarian_core.testing.branched_notes import Agent, Notes, texts_of
from planarian_core.testing.raw_mcp import RawClient

pytestmark = pytest.mark.needs("doltlite")

COMMAND = [sys.executable, "-c", "from planarian_core.cli.main import main; main()"]


class Proxies:
    """Proxies of the service ``notes``, for one sandbox each."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._clients: list[RawClient] = []

    def open(self, sandbox: Sandbox) -> RawClient:
        environment = {**os.environ, "PLANARIAN_HOME": str(self._home)}
        client = RawClient([*COMMAND, "proxy", "notes", "--sandbox", sandbox.id], env=environment)
        self._clients.append(client)
        assert "result" in client.initialize()
        return client

    def close(self) -> None:
        for client in self._clients:
            client.kill()


@pytest.fixture
def proxies(notes: Notes) -> Iterator[Proxies]:
    made = Proxies(notes.home)
    yield made
    made.close()


def _result(response: Mapping[str, Any]) -> list[str]:
    result = response["result"]
    assert not result.get("isError"), result
    return texts_of(result)


def test_a_proxy_on_a_direct_connection_follows_rollbacks(
    notes: Notes, planarian: Planarian, sandbox: Sandbox, proxies: Proxies
) -> None:
    proxy = proxies.open(sandbox)
    [tool] = proxy.request("tools/list")["result"]["tools"]
    assert tool["name"] == "execute_sql"
    assert "branchable" in repr(tool["_meta"])
    point = planarian.snapshot(sandbox)
    assert _result(proxy.call("execute_sql", {"sql": "INSERT INTO notes(text) VALUES ('x')"})) == ['{"changes": 1}']
    assert notes.texts(sandbox.id) == ["buy bread", "call home", "x"]
    context = planarian.rollback(sandbox, point)
    assert len(_result(proxy.call("execute_sql", {"sql": "SELECT * FROM notes"}))) == 2
    assert context.safety_id is not None
    planarian.rollback(sandbox, context.safety_id)
    assert len(_result(proxy.call("execute_sql", {"sql": "SELECT * FROM notes"}))) == 3
    refused = proxy.call("execute_sql", {"sql": "SELECT dolt_checkout('main')"})["result"]
    assert refused["isError"]
    assert "dolt_checkout() changes branches" in texts_of(refused)[0]
    fork = planarian.fork(point)
    theirs = proxies.open(fork)
    _result(theirs.call("execute_sql", {"sql": "INSERT INTO notes(text) VALUES ('fork')"}))
    assert notes.texts(fork.id) == ["buy bread", "call home", "fork"]
    assert notes.texts(sandbox.id) == ["buy bread", "call home", "x"]


def _serve_by_mcp_server_sqlite(notes: Notes) -> None:
    command = pypi_servers.pypi_command("mcp-server-sqlite", pypi_servers.SQLITE)
    notes.configure(
        f"command = {mcp_servers.as_configuration([str(command)])[:-1]}, '--db-path', '{{database}}']\n"
        "env = {LD_PRELOAD = '{library}'}\n"
        "tool = 'write_query'\n"
        "argument = 'query'\n"
        "[services.notes.tools.read_query]\nargument = 'query'\n"
        "[services.notes.tools.create_table]\nargument = 'query'\n"
        "[services.notes.tools.list_tables]\nclass = 'read-only'\n"
        "[services.notes.tools.describe_table]\nclass = 'read-only'\n"
    )


@pytest.mark.needs("linux", "pypi")
def test_a_public_sqlite_server_works_on_the_sandbox_s_branch(
    notes: Notes, planarian: Planarian, sandbox: Sandbox
) -> None:
    _serve_by_mcp_server_sqlite(notes)
    proxies = Proxies(notes.home)
    try:
        with notes.open() as again:
            _work_through_it(notes, again, again.sandbox(sandbox.id), proxies)
    finally:
        proxies.close()


def _work_through_it(notes: Notes, planarian: Planarian, sandbox: Sandbox, proxies: Proxies) -> None:
    start = planarian.snapshot(sandbox)
    proxy = proxies.open(sandbox)
    tools = {tool["name"] for tool in proxy.request("tools/list")["result"]["tools"]}
    assert tools == {"read_query", "write_query", "create_table", "list_tables", "describe_table"}
    _result(proxy.call("write_query", {"query": "INSERT INTO notes(text) VALUES ('by the server')"}))
    _result(proxy.call("create_table", {"query": "CREATE TABLE more(a)"}))
    _result(proxy.call("write_query", {"query": "DELETE FROM notes WHERE id > 100"}))
    assert "more" in _result(proxy.call("list_tables"))[0]
    assert notes.texts(sandbox.id) == ["buy bread", "call home", "by the server"]
    assert notes.texts("") == ["buy bread", "call home"]
    states = [effect.state for effect in planarian.effects(sandbox)]
    assert states == [EffectState.APPLIED, EffectState.APPLIED, EffectState.VOID]
    for tool, sql in (("read_query", "SELECT dolt_checkout('main')"), ("write_query", "ATTACH '/tmp/x' AS x")):
        assert proxy.call(tool, {"query": sql})["result"]["isError"]
    assert proxy.call("append_insight", {"insight": "x"})["result"]["isError"]
    done = notes.dump(sandbox.id)
    context = planarian.rollback(sandbox, start)
    assert "by the server" not in _result(proxy.call("read_query", {"query": "SELECT text FROM notes"}))[0]
    assert context.safety_id is not None
    planarian.rollback(sandbox, context.safety_id)
    assert notes.dump(sandbox.id) == done
    assert "by the server" in _result(proxy.call("read_query", {"query": "SELECT text FROM notes"}))[0]
    theirs = proxies.open(planarian.fork(start, name="fork"))
    assert "by the server" not in _result(theirs.call("read_query", {"query": "SELECT text FROM notes"}))[0]


@pytest.mark.needs("linux", "pypi")
def test_a_session_without_a_proxy_starts_the_server_itself(
    notes: Notes, planarian: Planarian, sandbox: Sandbox
) -> None:
    _serve_by_mcp_server_sqlite(notes)
    with notes.open() as again:
        agent = Agent(again, again.sandbox(sandbox.id))
        agent.session.call("write_query", {"query": "DELETE FROM notes WHERE id = 1"}, agent.target)
        agent.close()
    assert notes.texts(sandbox.id) == ["call home"]
