"""The proxy over streamable HTTP, asked by the SDK's own client, and by who should not ask; and the era of 2026."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp_types import CallToolResult, ElicitResult, TextContent

from planarian_core.testing import mcp_servers
from planarian_core.testing.raw_mcp import HELLO

World = Any  # of conftest.py, which can't be imported
TOKEN = "0123456789abcdef-and-more"  # noqa: S105  # of the tests
ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


@dataclass
class Served:
    """A proxy over HTTP."""

    process: subprocess.Popen[str]
    url: str

    def post(self, headers: dict[str, str], body: bytes | None = None) -> int:
        """The status of the answer to a request, a greeting if nothing else."""
        hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
        request = urllib.request.Request(  # noqa: S310  # http
            self.url, body if body is not None else json.dumps(hello).encode(), {**ACCEPT, **headers}
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310  # http
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    return file


@pytest.fixture(params=[False, True], ids=["open", "token"])
def served(request: pytest.FixtureRequest, world: World, token_file: Path) -> Iterator[Served]:
    options = ["--token-file", str(token_file)] if request.param else []
    process = subprocess.Popen(
        world.command("store", "--http", "127.0.0.1:0", *options),
        env=world.environment(), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    line = process.stderr.readline()
    assert "is served at http://127.0.0.1:" in line
    yield Served(process, line.split()[-1])
    process.kill()
    process.wait()


@asynccontextmanager
async def client(served: Served, mode: str) -> AsyncIterator[Client]:
    async with (
        create_mcp_http_client(headers={"authorization": f"Bearer {TOKEN}"}) as http,
        Client(streamable_http_client(served.url, http_client=http, max_sse_event_size=None), mode=mode) as connected,
    ):
        yield connected


def text(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


async def try_a_session(connected: Client, version: str) -> None:
    """What a harness does, through the SDK."""
    assert connected.protocol_version == version
    tools = [tool for page in [await connected.list_tools()] for tool in page.tools]
    assert (tools[1].meta or {})["planarian/class"] == "compensable"
    assert text(await connected.call_tool("put", {"key": "a", "value": "1"})) == "put a"
    result = await connected.call_tool("get", {"key": "a"})
    assert result.structured_content == {"value": "1"}
    assert result.meta is not None
    assert result.meta["store/read"] == 1
    seen: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    slept = await connected.call_tool("slow", {"seconds": 0.2, "steps": 4}, progress_callback=on_progress)
    assert text(slept) == "slept"
    assert seen == [1, 2, 3, 4]
    failed = await connected.call_tool("fail", {"message": "no"})
    assert failed.is_error
    value = "x" * 5_000_000
    echoed = await connected.call_tool("echo", {"value": value})
    assert (echoed.structured_content or {})["value"] == value
    assert text(await connected.call_tool("big", {"size": 5_000_000})) == value


ERAS = pytest.mark.parametrize(("mode", "version"), [("legacy", "2025-11-25"), ("auto", "2026-07-28")])


@ERAS
def test_a_session_over_http(served: Served, mode: str, version: str) -> None:
    async def run() -> None:
        async with client(served, mode) as connected:
            await try_a_session(connected, version)

    anyio.run(run)
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(20) == 128 + signal.SIGTERM


@ERAS
def test_a_session_over_standard_streams(world: World, mode: str, version: str) -> None:
    program, *arguments = world.command("store")
    parameters = StdioServerParameters(command=program, args=arguments, env=world.environment())

    async def run() -> None:
        async with Client(parameters, mode=mode) as connected:
            await try_a_session(connected, version)

    anyio.run(run)


@ERAS
def test_whoever_sits_at_the_harness_is_asked_in_both_eras(world: World, mode: str, version: str) -> None:
    program, *arguments = world.command("store")
    parameters = StdioServerParameters(command=program, args=arguments, env=world.environment())
    answers = [
        ElicitResult(action="decline"),
        ElicitResult(action="accept", content={"approve": True}),
        ElicitResult(action="cancel"),
    ]

    async def answer(context: Any, params: Any) -> ElicitResult:
        return answers.pop(0)

    async def run() -> None:
        async with Client(parameters, mode=mode, elicitation_callback=answer) as connected:
            denied = await connected.call_tool("notify", {"text": "all"})
            assert (denied.meta or {})["planarian/error"]["error"] == "pivot-denied"
            assert text(await connected.call_tool("notify", {"text": "all"})) == "notified"
            waits = await connected.call_tool("notify", {"text": "all"})
            assert (waits.meta or {})["planarian/error"]["error"] == "pivot-needs-approval"

    anyio.run(run)
    assert world.events("notify") == ["notify all"]


@ERAS
def test_a_target_of_2026_asks_in_both_eras(world: World, mode: str, version: str) -> None:
    world.configure(store={"kind": "store", "command": mcp_servers.store(world.database, "--modern")})
    program, *arguments = world.command("store")
    parameters = StdioServerParameters(command=program, args=arguments, env=world.environment())

    async def answer(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"yes": params.message == "really?"})

    async def run() -> None:
        async with Client(parameters, mode=mode, elicitation_callback=answer) as connected:
            assert connected.protocol_version == version
            answered = text(await connected.call_tool("ask", {"message": "really?"}))
            assert json.loads(answered)["content"] == {"yes": True}
            assert text(await connected.call_tool("put", {"key": "a", "value": "1"})) == "put a"

    anyio.run(run)
    assert world.pairs() == {"a": "1"}


def test_several_harnesses_at_once(world: World, served: Served) -> None:
    async def one(name: str, mode: str) -> None:
        async with client(served, mode) as connected:
            for number in range(5):
                await connected.call_tool("put", {"key": name, "value": str(number)})

    async def run() -> None:
        async with anyio.create_task_group() as tasks:
            for number, mode in enumerate(("legacy", "auto", "legacy", "auto")):
                tasks.start_soon(one, f"key{number}", mode)

    anyio.run(run)
    assert world.pairs() == {f"key{number}": "4" for number in range(4)}
    with world.open() as planarian:
        found = planarian.effects(planarian.sandbox(world.sandbox), "store")
    assert sorted(e.number for e in found) == list(range(1, 21))
    assert {e.state.value for e in found} == {"applied"}


def test_who_may_not_ask(served: Served, request: pytest.FixtureRequest) -> None:
    guarded = "token" in request.node.callspec.id
    token = {"authorization": f"Bearer {TOKEN}"}
    assert served.post({}) == (401 if guarded else 200)
    assert served.post(token) == 200
    assert served.post({"authorization": f"Bearer {TOKEN}x"}) == (401 if guarded else 200)
    assert served.post({**token, "host": "evil.example"}) == 421
    assert served.post({**token, "origin": "http://evil.example"}) == 403
    assert served.post(token, b"{nonsense") == 400
    assert served.post({**token, "mcp-session-id": "made-up"}) == 404
    assert served.post(token) == 200
