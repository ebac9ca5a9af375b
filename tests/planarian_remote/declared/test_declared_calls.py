"""Calls of declared tools on a scripted server: what is kept of them, undo and redo, and servers that lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from planarian_core.errors import CompensationConflict, CompensationError, RemoteError
from planarian_core.model import CallClass, Effect, EffectState, RemoteCall
from planarian_core.testing.scripted_server import ScriptedServer, Trail, tool_error
from planarian_remote.declared.kind import DeclaredKind

PUT = """
[tools.put]
class = "compensable"
[tools.put.before.old]
tool = "get"
arguments = { key = "${call.key}" }
value = "${result.structuredContent.value}"
missing = ["no such key"]
[tools.put.expect]
old = "${call.value}"
[[tools.put.undo]]
exists = ["old"]
calls = [{ tool = "put", arguments = { key = "${call.key}", value = "${before.old}" } }]
[[tools.put.undo]]
absent = ["old"]
calls = [{ tool = "delete", arguments = { key = "${call.key}" } }]
"""

CREATE = """
[tools.create]
class = "compensable"
[tools.create.after.made]
tool = "get"
arguments = { key = "${result.structuredContent.id}" }
missing = ["no such key"]
[[tools.create.undo]]
calls = [{ tool = "delete", arguments = { key = "${result.structuredContent.id}" } }]
"""


class Store:
    """A server with a dictionary behind it."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {}
        self.server = ScriptedServer(
            {"get": self.get, "put": self.put, "delete": self.delete, "create": self.create, "add": self.add}
        )

    def get(self, key: str) -> Any:
        return {"value": self.rows[key]} if key in self.rows else tool_error(f"no such key: {key}")

    def put(self, key: str, value: Any) -> Any:
        self.rows[key] = value
        return {"ok": True}

    def delete(self, key: str) -> Any:
        return {"deleted": self.rows.pop(key)} if key in self.rows else tool_error(f"no such key: {key}")

    def create(self, value: Any) -> Any:
        key = f"id-{len(self.server.calls)}"
        self.rows[key] = value
        return {"id": key}

    def add(self, key: str, count: int) -> Any:
        self.rows[key] = self.rows.get(key, 0) + count
        return {"sum": self.rows[key]}


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def trail(store: Store, declare: Callable[..., DeclaredKind]) -> Trail:
    return Trail(declare(PUT + CREATE), store.server)


# --- there and back ---


def test_undo_and_redo_of_updates_and_creations(trail: Trail, store: Store) -> None:
    states = [dict(store.rows)]
    for key, value in [("a", 1), ("a", {"x": ["${call.key}", None]}), ("b", "two"), ("a", 1), ("b", [])]:
        trail.call("put", key=key, value=value)
        states.append(dict(store.rows))
    for count in (3, 5, 0, 4, 1, 5):
        trail.go(count)
        assert store.rows == states[count]


def test_the_agent_gets_the_servers_own_result(trail: Trail, store: Store) -> None:
    odd = {"content": [{"type": "vendor", "x": 1}], "structuredContent": {"id": 5}, "_meta": {"v": 2}, "extra": None}
    store.server.answers = {**store.server.answers, "put": lambda **_: odd}
    assert trail.call("put", key="a", value=1) is odd


def test_what_the_result_names_is_undone(trail: Trail, store: Store) -> None:
    trail.call("create", value="x")
    trail.call("create", value="y")
    assert len(store.rows) == 2
    trail.go(1)
    assert list(store.rows.values()) == ["x"]
    trail.go(0)
    assert store.rows == {}
    with pytest.raises(CompensationError) as caught:
        trail.go(2)
    assert (caught.value.code, store.rows) == ("redo-impossible", {}), "the server would choose another id"


def test_later_configuration_does_not_change_how_a_call_is_undone(
    trail: Trail, store: Store, declare: Callable[..., DeclaredKind]
) -> None:
    trail.call("put", key="a", value=1)
    trail.kind = declare('[tools.get]\nclass = "read-only"')
    trail.go(0)
    assert store.rows == {}


# --- another writer ---


def test_another_writer_is_a_conflict_before_anything_is_touched(trail: Trail, store: Store) -> None:
    trail.call("put", key="a", value=1)
    trail.call("put", key="b", value=1)
    store.rows["a"] = "theirs"
    with pytest.raises(CompensationConflict, match=r'get\(\{"key":"a"\}\)'):
        trail.go(0)
    assert (store.rows, trail.states) == ({"a": "theirs", "b": 1}, [EffectState.APPLIED] * 2)
    store.rows["a"] = 1
    trail.go(0)
    assert store.rows == {}


def test_another_writer_before_a_redo_is_a_conflict(trail: Trail, store: Store) -> None:
    trail.call("put", key="a", value=1)
    trail.go(0)
    store.rows["a"] = "theirs"
    with pytest.raises(CompensationConflict):
        trail.go(1)
    assert store.rows == {"a": "theirs"}


def test_another_writer_right_after_the_call_is_noticed(trail: Trail, store: Store) -> None:
    def put(key: str, value: Any) -> Any:
        store.rows[key] = "theirs"
        return {"ok": True}

    store.server.answers = {**store.server.answers, "put": put}
    trail.call("put", key="a", value=1)
    assert "something else than expected" in trail.effects[0].summary
    with pytest.raises(CompensationConflict):
        trail.go(0)
    assert store.rows == {"a": "theirs"}


def test_an_undo_by_somebody_else_is_taken_as_done(trail: Trail, store: Store) -> None:
    trail.call("put", key="a", value=1)
    del store.rows["a"]
    calls = len(store.server.calls)
    trail.go(0)
    assert (trail.states, store.rows) == ([EffectState.UNDONE], {})
    assert {tool for tool, _ in store.server.calls[calls:]} == {"get"}


# --- what can't be undone ---


def test_a_read_before_that_fails_refuses_the_call(trail: Trail, store: Store) -> None:
    answers = [tool_error("access denied: no such key"), tool_error(""), {"content": []}, {"value": float("nan")}]
    for number in range(len(answers)):
        store.server.answers = {**store.server.answers, "get": lambda key, number=number: answers[number]}
        with pytest.raises(RemoteError) as caught:
            trail.call("put", key="a", value=1)
        assert (caught.value.code, store.rows, trail.effects) == ("call-refused", {}, [])


def test_undo_data_has_a_limit(store: Store, declare: Callable[..., DeclaredKind]) -> None:
    trail = Trail(declare(PUT, undo_limit=5000), store.server)
    store.rows["a"] = "x" * 5000
    with pytest.raises(RemoteError, match="undo_limit is 5000"):
        trail.call("put", key="a", value=1)
    assert store.rows == {"a": "x" * 5000}


def test_large_undo_data_is_kept_small(trail: Trail, store: Store) -> None:
    store.rows["a"] = "line\n" * 2_000_000
    trail.call("put", key="a", value=1)
    assert len(str(trail.effects[0].details)) < 100_000
    trail.go(0)
    assert store.rows == {"a": "line\n" * 2_000_000}


def test_text_that_is_no_text_is_refused(trail: Trail) -> None:
    for arguments in ({"key": "\ud800", "value": 1}, {"key": "a", "value": {"\udfff": []}}):
        assert trail.kind.classify(RemoteCall("put", arguments)).call_class is CallClass.REFUSED


def test_conditions_on_arguments(declare: Callable[..., DeclaredKind]) -> None:
    kind = declare(
        PUT.replace('"compensable"\n', '"compensable"\nread_only_if = { dry = true }\nrefuse_if = [{ arguments = '
                    '{ key = "root" }, reason = "not the root" }]\n', 1)
    )  # fmt: skip
    assert kind.classify(RemoteCall("put", {"key": "root", "dry": True})).call_class is CallClass.READ_ONLY
    refused = kind.classify(RemoteCall("put", {"key": "root", "dry": "true"}))
    assert (refused.call_class, refused.reason) == (CallClass.REFUSED, "not the root")


def test_a_result_that_is_not_as_declared_makes_the_undo_unknown_and_says_so(trail: Trail, store: Store) -> None:
    for odd in (
        {"ID": "x"},
        {"content": None},
        {"content": [], "structuredContent": 7},
        {},
        {"structuredContent": None},
    ):
        store.server.answers = {**store.server.answers, "create": lambda value, odd=odd: odd}
        assert trail.call("create", value=1) is not None
        assert "its undo is not known" in trail.effects[-1].summary
        with pytest.raises(CompensationError) as caught:
            trail.go(len(trail.effects) - 1)
        assert caught.value.code == "undo-impossible"


# --- errors and lies ---


@pytest.mark.parametrize("flag", [True, "true", 1, [], {}])
def test_an_error_without_effect_is_void(trail: Trail, store: Store, flag: object) -> None:
    result = {"content": [], "isError": flag}
    store.server.answers = {**store.server.answers, "put": lambda **_: result}
    assert trail.call("put", key="a", value=1) is result
    assert trail.states == [EffectState.VOID]


_BLIND = """
[tools.add]
class = "compensable"
undo = [{ calls = [{ tool = "delete", arguments = { key = "${call.key}" } }] }]
"""
_MADE = """
[tools.put]
class = "compensable"
after.made = { tool = "get", arguments = { key = "${call.key}" }, missing = ["no such key"] }
undo = [{ calls = [{ tool = "delete", arguments = { key = "${call.key}" } }] }]
"""


@pytest.mark.parametrize(
    ("declaration", "tool"), [(_BLIND, "add"), (CREATE, "create"), (_MADE, "put")], ids=["blind", "result", "there"]
)
def test_an_error_that_nothing_can_be_read_after_may_have_had_its_effect(
    declare: Callable[..., DeclaredKind], store: Store, declaration: str, tool: str
) -> None:
    """``there``: the object is there because it was before; undoing the call would delete it."""
    store.rows["a"] = "somebody else's"
    store.server.answers = {**store.server.answers, tool: lambda **_: tool_error("it exists")}
    for lines, state, pivot in [("", EffectState.APPLIED, True), ('on_error = "void"', EffectState.VOID, False)]:
        kind = declare(declaration.replace('"compensable"\n', f'"compensable"\n{lines}\n'))
        call = RemoteCall(tool, {"key": "a", "count": 1, "value": "x"})
        details = kind.prepare(call, store.server)
        effect = Effect("sb", "notes", 1, 0, tool, "", CallClass.COMPENSABLE, EffectState.SENT, details=details)
        outcome = kind.run(call, effect, store.server)
        assert (outcome.state, bool(outcome.pivot)) == (state, pivot)
        assert not pivot or "it reports an error" in outcome.summary
    assert store.rows == {"a": "somebody else's"}


def test_an_error_after_which_what_it_makes_is_not_there_is_void(
    declare: Callable[..., DeclaredKind], store: Store
) -> None:
    store.server.answers = {**store.server.answers, "put": lambda **_: tool_error("disk full")}
    trail = Trail(declare(_MADE), store.server)
    trail.call("put", key="a", value="x")
    assert trail.states == [EffectState.VOID]


def test_an_error_after_half_of_the_work_is_undone(trail: Trail, store: Store) -> None:
    def put(key: str, value: Any) -> Any:
        store.rows[key] = "half"
        return tool_error("disk full")

    store.rows["a"] = "old"
    store.server.answers, whole = {**store.server.answers, "put": put}, store.server.answers
    trail.call("put", key="a", value=1)
    assert trail.states == [EffectState.APPLIED]
    store.server.answers = whole
    trail.go(0)
    assert store.rows == {"a": "old"}


def test_a_success_without_effect_does_no_harm(trail: Trail, store: Store) -> None:
    store.rows["a"] = "old"
    store.server.answers, whole = {**store.server.answers, "put": lambda **_: {"ok": True}}, store.server.answers
    trail.call("put", key="a", value=1)
    store.server.answers = whole
    trail.go(0)
    assert store.rows == {"a": "old"}


def test_an_undo_that_does_nothing_is_found_out(trail: Trail, store: Store) -> None:
    trail.call("put", key="a", value=1)
    whole, store.server.answers = (
        store.server.answers,
        {**store.server.answers, "delete": lambda key: {"deleted": True}},
    )
    with pytest.raises(CompensationError, match="not as they should be") as caught:
        trail.go(0)
    assert not isinstance(caught.value, CompensationConflict)
    assert trail.states == [EffectState.APPLIED]
    store.server.answers = whole
    trail.go(0)
    assert store.rows == {}


def test_an_undo_that_fails_says_what_the_server_says(trail: Trail, store: Store) -> None:
    trail.call("put", key="a", value=1)
    store.server.answers = {**store.server.answers, "delete": lambda key: tool_error("read-only now")}
    with pytest.raises(CompensationError, match="read-only now"):
        trail.go(0)
    assert (store.rows, trail.states) == ({"a": 1}, [EffectState.APPLIED])


def test_a_lost_connection_keeps_the_effect_open(trail: Trail, store: Store) -> None:
    def lost(**_: Any) -> Any:
        store.rows["a"] = 1
        raise RemoteError("the connection is lost", code="service-unreachable")

    whole, store.server.answers = store.server.answers, {**store.server.answers, "put": lost}
    with pytest.raises(RemoteError, match="lost"):
        trail.call("put", key="a", value=1)
    assert trail.states == [EffectState.SENT]
    store.server.answers = whole
    assert trail.settle() is EffectState.APPLIED
    trail.go(0)
    assert store.rows == {}


def test_a_connection_lost_right_after_the_call_costs_nothing(trail: Trail, store: Store) -> None:
    def put(key: str, value: Any) -> Any:
        store.rows[key] = value
        store.server.answers = {**whole, "get": gone}
        return {"ok": True}

    def gone(key: str) -> Any:
        raise RemoteError("the connection is lost", code="service-unreachable")

    whole = store.server.answers
    store.server.answers = {**whole, "put": put}
    assert trail.call("put", key="a", value=1)["structuredContent"] == {"ok": True}
    assert trail.states == [EffectState.APPLIED]
    store.server.answers = whole
    trail.go(0)
    assert store.rows == {}


# --- settling ---


@pytest.mark.parametrize("made", [True, False])
def test_a_lost_call_is_settled_by_reading(trail: Trail, store: Store, made: bool) -> None:
    store.rows["a"] = "old"
    (trail.lose if made else trail.send)("put", key="a", value=1)
    assert trail.settle() is (EffectState.APPLIED if made else EffectState.VOID)


@pytest.mark.parametrize("expected", [True, False])
def test_a_server_that_lives_on_may_still_be_at_a_lost_call(
    declare: Callable[..., DeclaredKind], store: Store, expected: bool
) -> None:
    """As when a proxy is killed: what it had sent to a server at an address arrives all the same."""
    table = PUT if expected else PUT.replace('[tools.put.expect]\nold = "${call.value}"\n', "")
    kind = declare(table, command=[], url="http://127.0.0.1:9/mcp", timeout=30)
    store.rows["a"] = "old"
    trail = Trail(kind, store.server)
    _, effect = trail.send("put", key="a", value=1)
    now = datetime.now(UTC)
    for age in (0, 29, -1000):  # or the clock was set back
        made_at = (now - timedelta(seconds=age)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        with pytest.raises(CompensationError, match="may still be at it") as caught:
            kind.settle(replace(effect, made_at=made_at), store.server)
        assert caught.value.code == "effect-undecided"
        assert "try again in " in caught.value.remedy
    late = (now - timedelta(seconds=31)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert kind.settle(replace(effect, made_at=late), store.server).state is EffectState.VOID
    if expected:
        store.rows["a"] = 1  # it came meanwhile
        fresh = replace(effect, made_at=now.isoformat(timespec="milliseconds").replace("+00:00", "Z"))
        assert kind.settle(fresh, store.server).state is EffectState.APPLIED


def test_what_can_not_be_settled_says_what_to_do(trail: Trail, store: Store) -> None:
    trail.lose("create", value="x")
    with pytest.raises(CompensationError, match="no read is declared") as caught:
        trail.settle()
    assert caught.value.code == "effect-undecided"
    assert "planarian effects --service notes --settle 1 --as void" in caught.value.remedy


def test_a_lost_call_without_an_expectation_is_void_or_undecided(
    store: Store, declare: Callable[..., DeclaredKind]
) -> None:
    trail = Trail(declare(PUT.replace('[tools.put.expect]\nold = "${call.value}"\n', "")), store.server)
    trail.send("put", key="a", value=1)
    assert trail.settle() is EffectState.VOID
    trail.lose("put", key="a", value=1)
    with pytest.raises(CompensationError, match="doesn't say what the call makes"):
        trail.settle()


def test_a_lost_call_that_makes_no_difference_is_void_whatever_others_did(trail: Trail, store: Store) -> None:
    store.rows["a"] = 1
    trail.lose("put", key="a", value=1)
    store.rows["a"] = "theirs"
    assert trail.settle() is EffectState.VOID


def test_a_lost_call_that_a_user_says_was_made_can_be_undone(
    store: Store, declare: Callable[..., DeclaredKind]
) -> None:
    blind = '[tools.put]\nclass = "compensable"\n[[tools.put.undo]]\n'
    blind += 'calls = [{ tool = "delete", arguments = { key = "${call.key}" } }]'
    for toml in (PUT, blind):
        trail = Trail(declare(toml), store.server)
        trail.lose("put", key="a", value=1)
        trail.effects[0] = replace(trail.effects[0], state=EffectState.APPLIED)
        trail.go(0)
        assert store.rows == {}


def test_a_lost_pivot_counts_as_made(declare: Callable[..., DeclaredKind], store: Store) -> None:
    kind = declare('[tools.send]\nclass = "pivot"')
    effect = Effect("sb", "notes", 1, 0, "send", "d", CallClass.PIVOT, EffectState.SENT, summary="send()")
    assert kind.settle(effect, store.server).state is EffectState.APPLIED


def test_a_pivot_that_reports_an_error_may_have_happened(declare: Callable[..., DeclaredKind]) -> None:
    trail = Trail(declare('[tools.send]\nclass = "pivot"'), ScriptedServer({"send": lambda: tool_error("timeout")}))
    effect = Effect("sb", "notes", 1, 0, "send", "d", CallClass.PIVOT, EffectState.SENT, summary="send()")
    outcome = trail.kind.run(RemoteCall("send"), effect, trail.target)
    assert (outcome.state, "reports an error" in outcome.summary) == (EffectState.APPLIED, True)


# --- several calls, cut off between them ---

SWAP = """
[tools.add]
class = "compensable"
[tools.add.before.old]
tool = "get"
arguments = { key = "${call.key}" }
missing = ["no such key"]
[[tools.add.undo]]
exists = ["old"]
calls = [
    { tool = "delete", arguments = { key = "${call.key}" } },
    { tool = "put", arguments = { key = "${call.key}", value = "${before.old.value}" } },
]
"""


@pytest.mark.parametrize("tool", ["delete", "put"])
@pytest.mark.parametrize("made", [True, False])
def test_an_undo_of_several_calls_goes_on_where_it_was_cut_off(
    store: Store, declare: Callable[..., DeclaredKind], tool: str, made: bool
) -> None:
    trail = Trail(declare(SWAP), store.server)
    store.rows["k"] = 5
    trail.call("add", key="k", count=2)
    whole = store.server.answers

    def cut(**arguments: Any) -> Any:
        if made:
            whole[tool](**arguments)
        raise RemoteError("the connection is lost", code="service-unreachable")

    store.server.answers = {**whole, tool: cut}
    with pytest.raises(CompensationError, match="lost"):
        trail.go(0)
    store.server.answers = whole
    trail.go(0)
    assert (store.rows, trail.states) == ({"k": 5}, [EffectState.UNDONE])
    trail.go(1)
    assert store.rows == {"k": 7}
