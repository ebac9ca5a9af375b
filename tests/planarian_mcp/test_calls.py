"""Calls through the proxy: progress, cancellation, errors, classes, consent, and a target server that dies."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from planarian_core.model import EffectState
from planarian_core.testing import mcp_servers
from planarian_core.testing.raw_mcp import Message, RawClient

World = Any  # of conftest.py, which can't be imported


def text(response: Message) -> str:
    found: str = response["result"]["content"][0]["text"]
    return found


def error(response: Message) -> dict[str, str]:
    """The error of ours that a tool's result holds."""
    assert response["result"]["isError"] is True
    found: dict[str, str] = response["result"]["_meta"]["planarian/error"]
    return found


def effects(world: World, service: str = "store") -> list[tuple[str, str]]:
    with world.open() as planarian:
        return [(e.tool, e.state.value) for e in planarian.effects(planarian.sandbox(world.sandbox), service)]


def eventually(true: Callable[[], object], timeout: float = 20) -> None:
    deadline = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def listens(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


# --- what is listed ---


def test_tools_have_their_class_and_hidden_ones_are_neither_listed_nor_called(world: World, proxied: RawClient) -> None:
    tools: dict[str, Any] = {}
    cursor: dict[str, str] = {}
    while True:
        page = proxied.request("tools/list", cursor)["result"]
        tools |= {tool["name"]: tool["_meta"] for tool in page["tools"]}
        if "nextCursor" not in page:
            break
        cursor = {"cursor": page["nextCursor"]}
    assert tools["put"] == {
        "store/version": 3, "planarian/class": "compensable", "planarian/reason": "the value before is kept",
    }  # fmt: skip
    assert tools["get"]["planarian/class"] == "read-only"
    assert tools["notify"]["planarian/class"] == "pivot"
    assert "environment" not in tools
    refused = error(proxied.call("environment", {"name": "HOME"}))
    assert refused["error"] == "call-refused"
    assert "it is the proxy's own" in refused["message"]


def test_a_kind_without_a_server_serves_its_tools_itself(world: World) -> None:
    client = world.proxy("pairs")
    greeting = client.initialize(protocolVersion="2025-06-18")["result"]
    assert greeting["protocolVersion"] == "2025-06-18"
    assert greeting["serverInfo"]["name"] == "pairs"
    tools = {tool["name"]: tool["_meta"]["planarian/class"] for tool in client.request("tools/list")["result"]["tools"]}
    assert tools == {"get": "read-only", "put": "compensable", "delete": "compensable", "send": "pivot"}
    assert text(client.call("put", {"key": "a", "value": "1"})) == "ok"
    assert text(client.call("get", {"key": "a"})) == "1"
    assert client.request("resources/list")["error"]["code"] == -32601
    assert error(client.call("format"))["error"] == "call-refused"


# --- progress, cancellation, size, nonsense ---


def test_progress_arrives_in_order_before_the_result(proxied: RawClient) -> None:
    number = proxied.start(
        "tools/call",
        {"name": "slow", "arguments": {"seconds": 0.3, "steps": 30}, "_meta": {"progressToken": 7}},
    )
    assert text(proxied.response(number)) == "slept"
    received = [m for m in proxied.received if m.get("method") == "notifications/progress" or m.get("id") == number]
    progress = [m["params"] for m in received[:-1]]
    assert received[-1]["id"] == number
    assert [p["progress"] for p in progress] == list(range(1, 31))
    assert {p["progressToken"] for p in progress} == {7}
    assert progress[2]["message"] == "step 3"


def test_a_cancelled_call_is_cancelled_at_the_target_and_settled_by_the_next(world: World, proxied: RawClient) -> None:
    number = proxied.start("tools/call", {"name": "slow", "arguments": {"seconds": 60, "key": "a", "value": "half"}})
    eventually(lambda: "slow begun" in world.events())
    proxied.send(method="notifications/cancelled", params={"requestId": number, "reason": "enough"})
    eventually(lambda: "slow cancelled" in world.events())
    assert text(proxied.call("get", {"key": "a"})) == '"half"'
    assert effects(world) == [("slow", "applied")], "it did write, and the next call found that out"
    assert not [m for m in proxied.received if m.get("id") == number], "a cancelled request is not answered"


def test_a_call_that_waits_for_its_turn_can_be_cancelled_and_is_never_made(world: World, proxied: RawClient) -> None:
    slow = proxied.start("tools/call", {"name": "slow", "arguments": {"seconds": 1}})
    eventually(lambda: "slow begun" in world.events())
    waiting = proxied.start("tools/call", {"name": "put", "arguments": {"key": "never", "value": "x"}})
    proxied.send(method="notifications/cancelled", params={"requestId": waiting})
    assert text(proxied.response(slow)) == "slept"
    assert text(proxied.call("get", {"key": "never"})) == "null"


def test_megabytes_pass_in_both_directions(proxied: RawClient) -> None:
    value = "\u00e4" * 4_000_000
    response = proxied.call("echo", {"value": value})
    assert response["result"]["structuredContent"]["value"] == value
    assert text(proxied.call("big", {"size": 20_000_000})) == "x" * 20_000_000


def test_an_answer_that_is_too_large_is_thrown_away_as_it_comes(world: World) -> None:
    command = mcp_servers.store(world.database)
    world.configure(store={"kind": "store", "command": command, "timeout": 20, "max_message": 1_000_000})
    proxied = world.proxy("store")
    proxied.initialize()
    assert text(proxied.call("big", {"size": 900_000})) == "x" * 900_000
    for size in (1_000_000, 200_000_000):
        said = error(proxied.call("big", {"size": size}))
        assert (said["error"], said["state"]) == ("result-too-large", "nothing was changed")
        assert "more than 1000000 bytes" in said["message"]
        assert "max_result" in said["remedy"]
    with open(f"/proc/{proxied.process.pid}/status") as status:
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    assert peak < 200_000
    assert text(proxied.call("get", {"key": "a"})) == "null"
    assert len(world.servers()) == 1


NO_MESSAGES = [
    b"nonsense",
    b"[]",
    b'{"jsonrpc": "2.0"}',
    b'{"jsonrpc": "2.0", "id": {"a": 1}, "method": "tools/list"}',
    b'{"jsonrpc": "2.0", "method": "notifications/nonsense", "params": {}}',
    b'{"jsonrpc": "2.0", "id": "unknown", "result": {}}',
    b"\xff\xfe\x00",
    b"[" * 100_000,
    b"",
]


def test_what_is_no_message_does_no_harm(proxied: RawClient) -> None:
    for line in NO_MESSAGES:
        proxied.send_line(line)
        assert text(proxied.call("get", {"key": "a"})) == "null"


NOT_MEANT: list[tuple[str, dict[str, Any], int]] = [
    ("tools/call", {}, -32602),
    ("tools/call", {"name": 5}, -32602),
    ("tools/call", {"name": "get", "arguments": ["key"]}, -32602),
    ("tools/call", {"name": "get", "arguments": {"wrong": 1}}, -32602),
    ("tools/call", {"name": "nonsense", "arguments": {}}, -32602),
    ("tasks/list", {}, -32601),
    ("store/anything", {}, -32601),
    ("resources/read", {"uri": "store://nothing"}, -32002),
]


def test_requests_that_can_not_be_meant_are_protocol_errors(proxied: RawClient) -> None:
    for method, params, code in NOT_MEANT:
        assert proxied.request(method, params)["error"]["code"] == code


def test_before_the_greeting_nothing_is_served(world: World) -> None:
    client = world.proxy("store")
    assert client.request("tools/list")["error"]["code"] == -32600
    assert "result" in client.initialize()


def test_calls_at_the_same_time_are_made_one_after_another(world: World, proxied: RawClient) -> None:
    numbers = [
        proxied.start("tools/call", {"name": "put", "arguments": {"key": f"k{n % 3}", "value": str(n)}})
        for n in range(30)
    ]
    for number in numbers:
        assert "put" in text(proxied.response(number))
    assert world.events("write") == [f"write k{n % 3}={n}" for n in range(30)], "in the order in which they came"
    with world.open() as planarian:
        found = planarian.effects(planarian.sandbox(world.sandbox), "store")
    assert [(e.number, e.parent) for e in found] == [(n + 1, n) for n in range(30)]
    assert {e.state for e in found} == {EffectState.APPLIED}


# --- the target's own errors, and its death ---


def test_a_tools_error_and_a_protocol_error_come_as_they_are(world: World, proxied: RawClient) -> None:
    assert proxied.call("fail", {"message": "no"})["result"] == {
        "content": [{"type": "text", "text": "no"}], "isError": True, "_meta": {"store/failed": True},
    }  # fmt: skip
    failed = proxied.call("protocol_error", {"message": "no"})["error"]
    assert failed == {"code": -32099, "message": "no", "data": {"why": "asked for"}}
    assert effects(world) == [("protocol_error", "sent")], "who knows what it did before it failed"
    proxied.call("get", {"key": "a"})
    assert effects(world) == [("protocol_error", "void")]


def test_a_target_that_dies_is_started_again(world: World, proxied: RawClient) -> None:
    died = error(proxied.call("die", {"key": "a", "value": "last word"}))
    assert died["error"] == "service-unreachable"
    assert "may have had its effect" in died["state"]
    assert text(proxied.call("get", {"key": "a"})) == '"last word"'
    assert effects(world) == [("die", "applied")]
    assert len(world.servers()) == 2
    assert error(proxied.call("die"))["error"] == "service-unreachable"
    assert text(proxied.call("put", {"key": "a", "value": "after"})) == "put a"
    assert effects(world) == [("die", "applied"), ("die", "void"), ("put", "applied")]


def test_a_target_that_can_not_be_started_says_why(world: World) -> None:
    world.configure(store={"kind": "store", "command": ["python3", "-c", "raise SystemExit('no such database')"]})
    client = world.proxy("store")
    response = client.request("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {}})
    assert "no such database" in response["error"]["message"]
    assert response["error"]["data"]["error"] == "service-unreachable"
    world.configure(store={"kind": "store", "command": ["there-is-no-such-command"]})
    client = world.proxy("store")
    response = client.request("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {}})
    assert "there-is-no-such-command" in response["error"]["message"]


def test_a_call_without_an_answer_ends_in_time_and_is_cancelled(world: World) -> None:
    world.configure(store={"kind": "store", "command": mcp_servers.store(world.database), "timeout": 4})
    client = world.proxy("store")
    client.initialize()
    late = error(client.call("slow", {"seconds": 60, "key": "a", "value": "1"}))
    assert late["error"] == "service-unreachable"
    assert "no answer within 4 s" in late["message"]
    eventually(lambda: "slow cancelled" in world.events())
    slept = client.call("slow", {"seconds": 6, "steps": 60}, _meta={"progressToken": 1})
    assert text(slept) == "slept", "progress is a sign of life"


@pytest.mark.needs("npm")
def test_a_target_at_an_address_that_was_started_anew(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    world.configure(far={"kind": "mirror", "class": "compensable", "url": f"http://127.0.0.1:{port}/mcp"})

    def start() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            mcp_servers.everything("streamableHttp"), env={**os.environ, "PORT": str(port)},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        eventually(lambda: listens(port))
        return process

    def end(process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()

    server = start()
    try:
        client = world.proxy("far")
        client.initialize()
        assert text(client.call("echo", {"message": "1"})) == "Echo: 1"
        end(server)
        server = start()
        assert error(client.call("echo", {"message": "2"}))["error"] == "service-unreachable"
        assert text(client.call("echo", {"message": "3"})) == "Echo: 3"
        end(server)
        assert error(client.call("echo", {"message": "4"}))["error"] == "service-unreachable"
        assert "nothing was changed" in error(client.call("echo", {"message": "5"}))["state"]
    finally:
        end(server)


# --- a target of 2026 ---


def test_a_target_of_2026_and_a_harness_with_a_handshake(world: World) -> None:
    world.configure(store={"kind": "store", "command": mcp_servers.store(world.database, "--modern")})
    answer = {"action": "accept", "content": {"yes": True}}
    client = world.proxy("store", answers={"elicitation/create": lambda _: answer})
    greeting = client.initialize(capabilities={"elicitation": {}}, protocolVersion="2025-06-18")["result"]
    assert greeting == {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "store", "version": "1.2.3", "title": "A store"},
        "instructions": "Put and get.",
    }
    page = client.request("tools/list")["result"]
    assert page.keys() == {"tools", "nextCursor"}
    assert client.call("put", {"key": "a", "value": "1"})["result"] == {
        "content": [{"type": "text", "text": "put a"}], "isError": False,
    }  # fmt: skip
    assert json.loads(text(client.call("ask", {"message": "really?"}))) == answer
    assert world.pairs() == {"a": "1"}
    assert effects(world) == [("put", "applied")]


# --- what the target says and asks by itself ---


def test_the_target_asks_the_harness_and_tells_it_things(world: World) -> None:
    asked: list[Any] = []

    def answer(params: Any) -> Any:
        asked.append(params)
        return {"action": "accept", "content": {"yes": True}}

    client = world.proxy("store", answers={"elicitation/create": answer})
    client.initialize(capabilities={"elicitation": {}})
    assert json.loads(text(client.call("ask", {"message": "really?"}))) == {
        "action": "accept", "content": {"yes": True},
    }  # fmt: skip
    assert asked[0]["message"] == "really?"
    client.call("log", {"text": "a word"})
    assert [m["params"]["data"] for m in client.notifications("notifications/message")] == ["a word"]
    client.call("grow")
    client.wait(lambda message: message.get("method") == "notifications/tools/list_changed")


# --- what can't be undone ---


def test_a_pivot_waits_for_a_user(world: World, proxied: RawClient) -> None:
    waits = error(proxied.call("notify", {"text": "all"}))
    assert waits["error"] == "pivot-needs-approval"
    assert world.events("notify") == []
    with world.open() as planarian:
        (approval,) = planarian.approvals()
        assert approval.id in waits["remedy"]
        planarian.approve(approval.id)
    assert text(proxied.call("notify", {"text": "all"})) == "notified"
    assert error(proxied.call("notify", {"text": "all"}))["error"] == "pivot-needs-approval", "once"
    assert world.events("notify") == ["notify all"]


def test_pivots_can_be_approved_from_the_start(world: World) -> None:
    client = world.proxy("store", "--approve-pivots")
    client.initialize()
    assert text(client.call("notify", {"text": "all"})) == "notified"


ANSWERS: list[tuple[dict[str, Any], str]] = [
    ({"action": "accept", "content": {"approve": False}}, "pivot-denied"),
    ({"action": "accept", "content": {"approve": "yes"}}, "pivot-denied"),
    ({"action": "accept"}, "pivot-denied"),
    ({"action": "decline"}, "pivot-denied"),
    ({"action": "cancel"}, "pivot-needs-approval"),
    ({}, "pivot-needs-approval"),
]


def test_whoever_sits_at_the_harness_is_asked(world: World) -> None:
    answers = [answer for answer, _ in ANSWERS]
    client = world.proxy("store", answers={"elicitation/create": lambda _: answers.pop(0)})
    client.initialize(capabilities={"elicitation": {"form": {}}})
    for answer, code in ANSWERS:
        assert error(client.call("notify", {"text": "all"}))["error"] == code, answer
    assert world.events("notify") == []
    answers.append({"action": "accept", "content": {"approve": True}})
    assert text(client.call("notify", {"text": "all"})) == "notified"
    assert world.events("notify") == ["notify all"]
    question = next(m for m in client.received if m.get("method") == "elicitation/create")
    assert "what was told can't be untold" in question["params"]["message"]


def test_a_harness_that_can_not_ask_is_not_asked(world: World) -> None:
    client = world.proxy("store", answers={"elicitation/create": lambda _: {"action": "accept"}})
    client.initialize()
    assert error(client.call("notify", {"text": "all"}))["error"] == "pivot-needs-approval"


# --- together with statepoints ---


def test_a_rollback_undoes_calls_and_the_proxy_goes_on(world: World, proxied: RawClient) -> None:
    proxied.call("put", {"key": "a", "value": "1"})
    with world.open() as planarian:
        sandbox = planarian.sandbox(world.sandbox)
        point = planarian.snapshot(sandbox)
        proxied.call("put", {"key": "a", "value": "2"})
        proxied.call("put", {"key": "b", "value": "2"})
        context = planarian.rollback(sandbox, point)
        assert [e.summary for e in context.remote_undone] == [
            "put(key='b', value='2')",
            "put(key='a', value='2')",
        ]
        assert world.pairs() == {"a": "1"}
        assert context.safety_id is not None
        assert text(proxied.call("get", {"key": "a"})) == '"1"'
        planarian.rollback(sandbox, context.safety_id)
        assert world.pairs() == {"a": "2", "b": "2"}


def test_a_fork_is_fenced_off(world: World, proxied: RawClient) -> None:
    proxied.call("put", {"key": "a", "value": "1"})
    with world.open() as planarian:
        point = planarian.snapshot(planarian.sandbox(world.sandbox))
        fork = planarian.fork(point).id
    client = world.proxy("store", sandbox=fork)
    client.initialize()
    fenced = error(client.call("put", {"key": "a", "value": "2"}))
    assert fenced["error"] == "service-fenced"
    assert world.pairs() == {"a": "1"}


def test_a_snapshot_waits_for_the_call_under_way(world: World, proxied: RawClient) -> None:
    number = proxied.start("tools/call", {"name": "slow", "arguments": {"seconds": 1, "key": "a", "value": "1"}})
    eventually(lambda: "slow begun" in world.events())
    with world.open() as planarian:
        sandbox = planarian.sandbox(world.sandbox)
        point = planarian.snapshot(sandbox)
        assert "slow done" in world.events(), "the statepoint is of after the call"
        assert [position.position for position in point.remote if position.service == "store"] == ["1"]
        proxied.response(number)
        number = proxied.start("tools/call", {"name": "slow", "arguments": {"seconds": 1, "key": "a", "value": "2"}})
        eventually(lambda: world.events("slow")[-1] == "slow begun")
        planarian.rollback(sandbox, point)
    assert world.events("slow")[-1] == "slow done"
    assert text(proxied.response(number)) == "slept"
    assert world.pairs() == {"a": "1"}
