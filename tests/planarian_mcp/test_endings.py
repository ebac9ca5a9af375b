"""How a proxy ends, and that nothing outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from planarian_core.testing import mcp_servers
from planarian_core.testing.raw_mcp import RawClient

World = Any  # of conftest.py, which can't be imported
Alive = Callable[[int], bool]


def gone(alive: Alive, pids: list[int], timeout: float = 20) -> bool:
    deadline = time.monotonic() + timeout
    while any(alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def stubborn(world: World) -> RawClient:
    """A proxy of a server that ignores SIGTERM and the end of its input."""
    world.configure(store={"kind": "store", "command": mcp_servers.store(world.database, "--stubborn")})
    client: RawClient = world.proxy("store")
    client.initialize()
    return client


def test_closing_its_input_ends_it_and_the_server(world: World, proxied: RawClient, alive: Alive) -> None:
    assert proxied.close() == 0
    assert gone(alive, world.servers())
    assert proxied.stderr == b""


def test_closing_its_input_ends_a_call_under_way(world: World, proxied: RawClient, alive: Alive) -> None:
    proxied.start("tools/call", {"name": "slow", "arguments": {"seconds": 60, "key": "a", "value": "1"}})
    while "slow begun" not in world.events():
        time.sleep(0.02)
    assert proxied.close() == 0
    assert gone(alive, world.servers())
    with world.open() as planarian:
        sandbox = planarian.sandbox(world.sandbox)
        planarian.snapshot(sandbox)
        assert [e.state.value for e in planarian.effects(sandbox, "store")] == ["applied"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it(world: World, proxied: RawClient, alive: Alive, number: signal.Signals) -> None:
    proxied.process.send_signal(number)
    assert proxied.process.wait(20) == 128 + number
    assert gone(alive, world.servers())
    assert b"Traceback" not in proxied.stderr


def test_a_stubborn_server_is_killed(world: World, alive: Alive) -> None:
    client = stubborn(world)
    assert client.close(timeout=30) == 0
    assert gone(alive, world.servers())


def test_a_stubborn_server_does_not_outlive_a_killed_proxy(world: World, alive: Alive) -> None:
    client = stubborn(world)
    (server,) = world.servers()
    assert alive(server)
    client.kill()
    assert gone(alive, [server])


def test_a_killed_server_is_noticed_between_calls(world: World, proxied: RawClient) -> None:
    (server,) = world.servers()
    os.kill(server, signal.SIGKILL)
    time.sleep(0.2)
    assert proxied.call("get", {"key": "a"})["result"]["isError"] is False
    assert len(world.servers()) == 2


def test_wrong_usage_is_said_on_the_error_stream(world: World) -> None:
    for arguments, expected in {
        ("nothing",): "no remote service 'nothing' is configured",
        ("store", "--sandbox", "sb-none"): "no sandbox is called 'sb-none'",
        ("check",): "which service?",
        ("store", "more"): "planarian proxy SERVICE",
        ("check", "store"): "has nothing to check",
        ("store", "--http", "0.0.0.0:0"): "can be reached from other machines",
        ("store", "--http", "0.0.0.0:0", "--any-host"): "--token-file",
        ("store", "--http", "nonsense"): "is no address",
        ("store", "--http", "127.0.0.1:0", "--token-file", "/nowhere"): "can't be read",
    }.items():
        command = world.command("x")[:3]
        done = subprocess.run(
            [*command, *arguments], env=world.environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True
        )  # fmt: skip
        assert done.returncode in (1, 2, 3), arguments
        assert expected in done.stderr, arguments
        assert done.stdout == ""
        assert "Traceback" not in done.stderr
