"""The synchronous connection to an MCP server: results as on the wire, errors by what is certain, no process left."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import pytest

from planarian_core.errors import ConfigurationError, RemoteError
from planarian_core.http_answers import bounded
from planarian_core.interfaces import TargetServer, ToolTarget
from planarian_core.message_lines import TOO_LARGE, MessageLines, TooLong
from planarian_core.server_process import answered_with_error
from planarian_core.testing import mcp_servers
from planarian_remote.mcp_target import open_target


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


@pytest.fixture
def target(database: Path) -> Iterator[ToolTarget]:
    server = TargetServer(tuple(mcp_servers.store(database)), env={"GIVEN": "it"}, cwd=str(database.parent), timeout=20)
    with contextlib.closing(open_target(server)) as target:
        yield target


def pids(database: Path) -> list[int]:
    """Of the servers that were started on a database."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        rows = connection.execute("SELECT what FROM events WHERE what LIKE 'started %' ORDER BY number").fetchall()
    return [int(what.split()[1]) for (what,) in rows]


def gone(pid: int, timeout: float = 20) -> bool:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def test_results_are_as_they_are_on_the_wire(target: ToolTarget) -> None:
    assert target.call("put", {"key": "a", "value": "1"}) == {
        "content": [{"type": "text", "text": "put a"}], "isError": False,
    }  # fmt: skip
    assert target.call("get", {"key": "a"}) == {
        "content": [{"type": "text", "text": '"1"', "_meta": {"store/key": "a"}}],
        "structuredContent": {"value": "1"},
        "isError": False,
        "_meta": {"store/read": 1},
    }
    assert target.call("fail", {"message": "no"})["isError"] is True
    assert target.call("environment", {"name": "GIVEN"})["content"][0]["text"] == "it"
    value = {"long": "\u00e4" * 200_000, "numbers": [1, 2.5, 10**20, True, None]}
    assert target.call("echo", {"value": value})["structuredContent"]["value"] == value


def test_tools_come_from_all_pages_with_everything_that_they_hold(target: ToolTarget) -> None:
    tools = {tool["name"]: tool for tool in target.tools()}
    assert {"get", "put", "slow", "environment"} <= tools.keys()
    assert tools["get"]["annotations"] == {"readOnlyHint": True, "title": "Get", "vendorHint": "kept"}
    assert tools["put"]["_meta"] == {"store/version": 3}


def test_errors_say_what_is_certain(target: ToolTarget) -> None:
    for tool, code in (("nonsense", "service-error"), ("protocol_error", "service-failed")):
        with pytest.raises(RemoteError) as caught:
            target.call(tool, {"message": "why"})
        assert caught.value.code == code
        assert ("nothing was changed" in caught.value.state) is (code == "service-error")
    assert target.call("list", {})["isError"] is False


def test_a_server_that_dies_in_a_call(target: ToolTarget, database: Path) -> None:
    with pytest.raises(RemoteError) as caught:
        target.call("die", {"key": "a", "value": "1"})
    assert caught.value.code == "service-unreachable"
    assert "may have had its effect" in caught.value.state
    with pytest.raises(RemoteError) as caught:
        target.call("list", {})
    assert caught.value.code == "service-unreachable"
    assert caught.value.state == "nothing was changed"
    with contextlib.closing(open_target(TargetServer(tuple(mcp_servers.store(database))))) as again:
        assert again.call("list", {})["content"][0]["text"] == '{"a": "1"}'


def test_no_answer_in_time(database: Path) -> None:
    server = TargetServer(tuple(mcp_servers.store(database)), timeout=1)
    with contextlib.closing(open_target(server)) as target:
        with pytest.raises(RemoteError, match="no answer within 1 s") as caught:
            target.call("slow", {"seconds": 30})
        assert caught.value.code == "service-unreachable"
        assert target.call("list", {})["isError"] is False


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("there-is-no-such-command",), "there-is-no-such-command"),
        ((sys.executable, "-c", "raise SystemExit('tools.yaml: no such source')"), "tools.yaml: no such source"),
        ((sys.executable, "-c", "print('hello'); import time; time.sleep(60)"), "can't be reached"),
    ],
)
def test_a_server_that_does_not_start_says_why(command: tuple[str, ...], said: str) -> None:
    with pytest.raises(RemoteError, match=said) as caught:
        open_target(TargetServer(command, timeout=1))
    assert caught.value.code == "service-unreachable"
    assert caught.value.remedy


def test_no_secret_is_shown() -> None:
    says = "import os; raise SystemExit('the password is ' + os.environ['PASSWORD'])"
    server = TargetServer((sys.executable, "-c", says, "--dsn=hunter2"), env={"PASSWORD": "correct horse"}, timeout=5)
    with pytest.raises(RemoteError) as caught:
        open_target(server)
    assert "the password is" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "horse" not in str(caught.value)
    with pytest.raises(RemoteError) as caught:
        open_target(TargetServer(url="http://me:hunter2@127.0.0.1:9/mcp?key=hunter3", timeout=2))
    assert "http://127.0.0.1:9/mcp" in str(caught.value)
    assert "hunter" not in str(caught.value)


def test_nobody_at_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(RemoteError) as caught:
        open_target(TargetServer(url=f"http://127.0.0.1:{port}/mcp", timeout=2))
    assert caught.value.code == "service-unreachable"


def test_without_the_sdk_the_extra_is_named(database: Path) -> None:
    script = (
        "import sys; sys.modules['mcp'] = None\n"
        "from planarian_core.interfaces import TargetServer\n"
        "from planarian_remote.mcp_target import open_target\n"
        "open_target(TargetServer(('true',)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ConfigurationError.__name__ in done.stderr
    assert "pip install 'planarian[mcp]'" in done.stderr


@pytest.mark.parametrize("options", [(), ("--stubborn",)], ids=["polite", "stubborn"])
def test_closing_leaves_no_process(database: Path, options: tuple[str, ...]) -> None:
    target = open_target(TargetServer(tuple(mcp_servers.store(database, *options))))
    target.close()
    target.close()
    (pid,) = pids(database)
    assert gone(pid)
    with pytest.raises(RemoteError):
        target.call("list", {})


@pytest.mark.parametrize("options", [(), ("--stubborn",)], ids=["polite", "stubborn"])
def test_no_server_outlives_a_killed_process(database: Path, options: tuple[str, ...]) -> None:
    script = (
        "import os, signal, sys\n"
        "from planarian_core.interfaces import TargetServer\n"
        "from planarian_remote.mcp_target import open_target\n"
        "open_target(TargetServer(tuple(sys.argv[1:])))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", script, *mcp_servers.store(database, *options)]
    done = subprocess.run(command, env=dict(os.environ), check=False)
    assert done.returncode == -signal.SIGKILL
    (pid,) = pids(database)
    assert gone(pid)


@pytest.mark.needs("npm")
def test_over_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        mcp_servers.everything("streamableHttp"), env={**os.environ, "PORT": str(port)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        target = _when_it_listens(port)
        assert target.call("echo", {"message": "hi"}) == {"content": [{"type": "text", "text": "Echo: hi"}]}
        assert "get-sum" in {tool["name"] for tool in target.tools()}
        target.close()
    finally:
        process.kill()
        process.wait()


def _when_it_listens(port: int) -> ToolTarget:
    deadline = time.monotonic() + 30
    while True:
        try:
            return open_target(TargetServer(url=f"http://127.0.0.1:{port}/mcp", headers={"x-given": "it"}))
        except RemoteError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def test_a_result_that_breaks_its_promise_may_have_had_its_effect() -> None:
    for message in (
        "Tool put has an output schema but no structured content was provided",
        "Output validation error: Invalid structured content for tool put: []",
    ):
        assert answered_with_error("server", -32602, message, "who knows").code == "service-failed"
    assert answered_with_error("server", -32602, "Unknown tool: put", "who knows").code == "service-error"


# --- answers that are too large ---


def test_an_answer_that_is_too_large_is_thrown_away_as_it_comes(database: Path) -> None:
    command = tuple(mcp_servers.store(database))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with contextlib.closing(open_target(TargetServer(command, timeout=30, max_message=1_000_000))) as target:
        assert len(target.call("big", {"size": 900_000})["content"][0]["text"]) == 900_000
        for size in (1_000_000, 200_000_000):
            with pytest.raises(RemoteError, match="more than 1000000 bytes") as caught:
                target.call("big", {"size": size})
            assert caught.value.code == "result-too-large"
            assert "max_result" in caught.value.remedy
        assert target.call("get", {"key": "a"})["structuredContent"] == {"value": None}
    assert len(pids(database)) == 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


_HTTP_SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_error(405)

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "id" not in asked:
            self.send_response(202)
            self.end_headers()
            return
        info = {"name": "s", "version": "1"}
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
        events, size = "/events" in self.path, 0
        if asked["method"] == "tools/call":
            size = asked["params"]["arguments"]["size"]
            result = {"content": [{"type": "text", "text": "@"}]}
        text = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result})
        before, _, after = (f"id: 1\\ndata: {text}\\n\\n" if events else text).partition("@")
        self.send_response(200)
        self.send_header("content-type", "text/event-stream" if events else "application/json")
        if not events:
            self.send_header("content-length", str(len(before) + size + len(after)))
        self.end_headers()
        self.wfile.write(before.encode())
        for start in range(0, size, 1 << 20):
            self.wfile.write(b"x" * min(1 << 20, size - start))
        self.wfile.write(after.encode())

    def log_message(self, *said):
        pass

server = HTTPServer(("127.0.0.1", 0), Answers)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.mark.parametrize("path", ["mcp", "events"])
def test_an_answer_over_http_that_is_too_large_is_not_read(path: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", _HTTP_SERVER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    url = f"http://127.0.0.1:{int(process.stdout.readline())}/{path}"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        with contextlib.closing(open_target(TargetServer(url=url, timeout=10, max_message=1_000_000))) as target:
            assert len(target.call("big", {"size": 900_000})["content"][0]["text"]) == 900_000
            with pytest.raises(RemoteError, match="more than 1000000 bytes") as caught:
                target.call("big", {"size": 200_000_000})
            assert caught.value.code == "result-too-large"
            assert len(target.call("big", {"size": 10})["content"][0]["text"]) == 10
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@pytest.mark.parametrize("piece", [1, 2, 5, 64])
def test_events_are_counted_one_by_one(end: bytes, piece: int) -> None:
    """A stream of any length passes, however it is cut, as long as no event is too large."""

    class Stream(httpx2.AsyncByteStream):
        def __init__(self, event: bytes) -> None:
            self._data = 50 * (event + end)

        async def __aiter__(self) -> AsyncIterator[bytes]:
            for start in range(0, len(self._data), piece):
                yield self._data[start : start + piece]

    async def taken(event: bytes) -> int:
        headers = {"content-type": "text/event-stream; charset=utf-8"}
        transport = httpx2.MockTransport(lambda _: httpx2.Response(200, headers=headers, stream=Stream(event)))
        async with (
            bounded(httpx2.AsyncClient(transport=transport), 100) as client,
            client.stream("GET", "http://server/") as response,
        ):
            return sum([len(data) async for data in response.aiter_raw()])

    assert asyncio.run(taken(b"data: " + b"x" * 80)) == 50 * (86 + len(end))
    with pytest.raises(httpx2.SSEError, match=TOO_LARGE):
        asyncio.run(taken(b"data: " + b"x" * 200))


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":{"id":8,"a":"%s"}}', 7),
        (b'{"id": "seven", "jsonrpc": "2.0", "error": {"code": 1, "message": "%s"}}', "seven"),
        (b'{"result":{"id":8,"a":"%s"},"jsonrpc":"2.0","id":7}', 7),
        (b'{"result":{"a":"%s"},"id":7}', 7),
        (b'{"jsonrpc":"2.0","method":"notifications/message","params":{"id":8,"data":"%s"}}', None),
        (b'{"method":"notifications/message","params":{"data":"%s"},"jsonrpc":"2.0","id":7}', None),
        (b'{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage","params":{"data":"%s"}}', None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("piece", [1, 7, 300, 100_000])
def test_what_takes_the_place_of_a_line(line: bytes, instead: object, piece: int) -> None:
    lines = MessageLines(1000)
    found = []
    data = b'{"before": 1}\n' + line % (b"x" * 5000) + b'\n{"after": 1}\n'
    for start in range(0, len(data), piece):
        lines.add(data[start : start + piece])
        while (one := lines.next()) is not None:
            found.append(one)
    assert (found[0], found[2:]) == (b'{"before": 1}', [b'{"after": 1}'])
    if instead is None:
        assert found[1] == b""
    else:
        assert json.loads(found[1])["id"] == instead
        assert TOO_LARGE in json.loads(found[1])["error"]["message"]


def test_a_line_that_nobody_can_tell_ends_the_connection() -> None:
    lines = MessageLines(1000)
    lines.add(b'{"result":{"a":"' + b"x" * 5000 + b'"},"id":{}}\n')
    with pytest.raises(TooLong):
        lines.next()


def test_an_answer_that_could_not_be_read_may_have_had_its_effect() -> None:
    message = "Failed to parse JSON response: 1 validation error for JSONRPCMessage"
    assert answered_with_error("server", -32700, message, "who knows").code == "service-failed"
    assert answered_with_error("server", -32700, "Parse error", "who knows").code == "service-error"
