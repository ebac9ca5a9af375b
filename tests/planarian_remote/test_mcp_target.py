"""The synchronous connection to an MCP server: results as on the wire, errors by what is certain, no process left."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from planarian_core.errors import ConfigurationError, RemoteError
from planarian_core.interfaces import TargetServer, ToolTarget
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
