"""kill -9 of ``planarian proxy`` at every point of a call, of the harness, of the target server, and two proxies at
once: nothing is lost, nothing is done or undone twice (guarantees 7 and 8).

What is asked for the truth is the SQLite file of the store, never the proxy.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from planarian_core import Planarian
from planarian_core.testing import mcp_servers
from planarian_core.testing.fakes import FakePlugin
from planarian_core.testing.key_value import KeyValuePlugin
from planarian_core.testing.raw_mcp import RawClient

COMMAND = Path(__file__).parents[1] / "planarian_mcp" / "store_kind.py"
POINTS = ("call.begun", "call.done", "call.recorded")


@dataclass
class Shop:
    """A home with a sandbox and the service ``pairs``, a key-value store in a file that keeps its own undo data."""

    folder: Path
    sandbox: str = ""
    clients: list[RawClient] = field(default_factory=list)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def open(self) -> Planarian:
        return Planarian.open(self.home, plugins=[FakePlugin(), KeyValuePlugin()])

    def command(self) -> list[str]:
        return [sys.executable, str(COMMAND), "proxy", "pairs", "--sandbox", self.sandbox]

    def environment(self, fault: str = "") -> dict[str, str]:
        return {**os.environ, "PLANARIAN_HOME": str(self.home), "PLANARIAN_FAULT": fault}

    def proxy(self, fault: str = "") -> RawClient:
        client = RawClient(self.command(), env=self.environment(fault))
        self.clients.append(client)
        client.initialize()
        return client

    def items(self) -> dict[str, str]:
        with contextlib.closing(sqlite3.connect(self.folder / "pairs.sqlite")) as connection:
            return dict(connection.execute("SELECT key, value FROM items").fetchall())

    def undo_data(self) -> list[tuple[int, str]]:
        with contextlib.closing(sqlite3.connect(self.folder / "pairs.sqlite")) as connection:
            return connection.execute("SELECT number, state FROM undo ORDER BY number").fetchall()

    def effects(self) -> list[tuple[int, str]]:
        with self.open() as planarian:
            return [(e.number, e.state.value) for e in planarian.effects(planarian.sandbox(self.sandbox))]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    shop.home.mkdir(mode=0o700)
    (shop.home / "planarian.toml").write_text(
        f'[services.pairs]\nkind = "key-value"\npath = "{tmp_path / "pairs.sqlite"}"\n'
    )
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    with shop.open() as planarian:
        shop.sandbox = planarian.create_sandbox(workspace, sandbox="fake", filesystem="fake", process="fake").id
    yield shop
    for client in shop.clients:
        client.kill()


def _killed_in_a_call(shop: Shop, point: str) -> None:
    client = shop.proxy(f"{point}=kill")
    client.start("tools/call", {"name": "put", "arguments": {"key": "a", "value": "new"}})
    assert client.process.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize("point", POINTS)
def test_killed_in_a_call_then_the_proxy_comes_back(shop: Shop, point: str) -> None:
    shop.proxy().call("put", {"key": "a", "value": "old"})
    _killed_in_a_call(shop, point)
    made = point != "call.begun"
    assert shop.items() == {"a": "new" if made else "old"}
    client = shop.proxy()
    assert client.call("get", {"key": "a"})["result"]["content"][0]["text"] == ("new" if made else "old")
    assert shop.effects() == [(1, "applied"), (2, "applied" if made else "void")]
    client.call("put", {"key": "a", "value": "newest"})
    assert shop.effects()[2:] == [(3, "applied")], "its number is not used again"
    assert shop.items() == {"a": "newest"}


@pytest.mark.parametrize("point", POINTS)
def test_killed_in_a_call_then_a_rollback_undoes_it_once(shop: Shop, point: str) -> None:
    shop.proxy().call("put", {"key": "a", "value": "old"})
    with shop.open() as planarian:
        before = planarian.snapshot(planarian.sandbox(shop.sandbox)).id
    _killed_in_a_call(shop, point)
    with shop.open() as planarian:
        sandbox = planarian.sandbox(shop.sandbox)
        context = planarian.rollback(sandbox, before)
        assert shop.items() == {"a": "old"}
        undone = [] if point == "call.begun" else ["2"]
        assert [effect.position for effect in context.remote_undone] == undone
        assert context.safety_id is not None
        planarian.rollback(sandbox, context.safety_id)
        assert shop.items() == {"a": "old" if point == "call.begun" else "new"}
        planarian.rollback(sandbox, before)
        assert shop.items() == {"a": "old"}
    assert shop.undo_data() == [(1, "applied"), (2, "void" if point == "call.begun" else "undone")]


@pytest.mark.parametrize("point", POINTS)
def test_killed_in_a_call_then_a_snapshot_knows_how_it_ended(shop: Shop, point: str) -> None:
    _killed_in_a_call(shop, point)
    with shop.open() as planarian:
        taken = planarian.snapshot(planarian.sandbox(shop.sandbox))
    (position,) = taken.remote
    assert position.position == ("0" if point == "call.begun" else "1")


def test_a_proxy_stopped_before_the_effect_can_not_make_it_later(shop: Shop) -> None:
    client = shop.proxy("call.begun=stop")
    client.start("tools/call", {"name": "put", "arguments": {"key": "a", "value": "late"}})
    _until_stopped(client.process.pid)
    client.process.kill()  # its locks are free now
    assert client.process.wait(60) == -signal.SIGKILL
    with shop.open() as planarian:
        planarian.snapshot(planarian.sandbox(shop.sandbox))
    assert shop.effects() == [(1, "void")]
    assert shop.undo_data() == [(1, "void")], "fenced off: whoever were to come with it later is refused"


def test_a_killed_harness_takes_the_proxy_with_it(shop: Shop) -> None:
    harness = textwrap.dedent("""
        import json, subprocess, sys
        proxy = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        def ask(number, method, params):
            message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            proxy.stdin.write(json.dumps(message).encode() + b"\\n")
            proxy.stdin.flush()
            return proxy.stdout.readline()
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "h", "version": "1"}}
        ask(1, "initialize", hello)
        ask(2, "tools/call", {"name": "put", "arguments": {"key": "a", "value": "1"}})
        print(proxy.pid, flush=True)
        proxy.wait()
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", harness, *shop.command()], env=shop.environment(), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    proxy = int(process.stdout.readline())
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{proxy}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{proxy}").exists()
    assert shop.effects() == [(1, "applied")]


def test_two_proxies_of_one_sandbox(shop: Shop) -> None:
    first, second = shop.proxy(), shop.proxy()
    numbers = [
        (client, client.start("tools/call", {"name": "put", "arguments": {"key": "a", "value": f"{name}{n}"}}))
        for n in range(20)
        for name, client in (("first", first), ("second", second))
    ]
    for client, number in numbers:
        assert client.response(number)["result"]["isError"] is False
    assert shop.effects() == [(n + 1, "applied") for n in range(40)]
    with shop.open() as planarian:
        sandbox = planarian.sandbox(shop.sandbox)
        effects = planarian.effects(sandbox)
        assert [e.parent for e in effects] == list(range(40)), "one after another, in one line"
        last = effects[-1].summary.rpartition(" ")[2]
    assert shop.items() == {"a": last}


def test_one_proxy_is_killed_while_another_goes_on(shop: Shop) -> None:
    other = shop.proxy()
    other.call("put", {"key": "b", "value": "1"})
    _killed_in_a_call(shop, "call.done")
    other.call("put", {"key": "b", "value": "2"})
    assert shop.effects() == [(1, "applied"), (2, "applied"), (3, "applied")]
    assert shop.items() == {"a": "new", "b": "2"}


def test_the_target_dies_with_a_killed_proxy_and_what_it_did_is_found_out(tmp_path: Path, shop: Shop) -> None:
    database = tmp_path / "store.sqlite"
    (shop.home / "planarian.toml").write_text(
        f'[services.pairs]\nkind = "store"\ncommand = {mcp_servers.as_configuration(mcp_servers.store(database))}\n'
    )
    client = shop.proxy("call.done=kill")
    client.start("tools/call", {"name": "put", "arguments": {"key": "a", "value": "1"}})
    assert client.process.wait(60) == -signal.SIGKILL
    again = shop.proxy()
    assert again.call("get", {"key": "a"})["result"]["structuredContent"] == {"value": "1"}
    with contextlib.closing(sqlite3.connect(database)) as connection:
        writes = connection.execute("SELECT what FROM events WHERE what LIKE 'write%'").fetchall()
    assert writes == [("write a=1",)]
    assert shop.effects() == [(1, "applied")]


def _until_stopped(pid: int) -> None:
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline, "it never stopped"
        time.sleep(0.02)
