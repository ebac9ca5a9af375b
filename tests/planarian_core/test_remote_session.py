"""Calls of remote services through a session: classes, the undo log, fences, consent, and what a crash leaves."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from planarian_core import Planarian, hookimpl
from planarian_core.agent_requests import RequestServer
from planarian_core.errors import (
    CompensationConflict,
    CompensationError,
    ConfigurationError,
    LineageError,
    RemoteError,
)
from planarian_core.interfaces.sandboxes import AgentRequest
from planarian_core.model import CallClass, Command, EffectState, RemoteEffect
from planarian_core.prune_choice import PrunePolicy
from planarian_core.sandbox import Sandbox
from planarian_core.testing.fakes import FakePlugin
from planarian_core.testing.key_value import KeyValuePlugin, KeyValueTarget
from planarian_core.testing.power_cut import lose_entries


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


@pytest.fixture
def planarian(tmp_path: Path, store: Path) -> Iterator[Planarian]:
    with Planarian.open(tmp_path / "home", plugins=[FakePlugin(), KeyValuePlugin(store)]) as opened:
        yield opened


@pytest.fixture
def box(planarian: Planarian, workspace: Path) -> Sandbox:
    return planarian.create_sandbox(workspace, name="box", sandbox="fake", filesystem="fake", process="fake")


class Caller:
    """Calls the store on behalf of a sandbox, as a proxy does."""

    def __init__(self, planarian: Planarian, sandbox: Sandbox, store: Path, *, approve_all: bool = False) -> None:
        self.session = planarian.remote_session(sandbox, "store", approve_all=approve_all)
        self.target = KeyValueTarget(store)

    def __call__(self, tool: str, **arguments: str) -> str:
        text: str = self.session.call(tool, arguments, self.target)["content"][0]["text"]
        return text


@pytest.fixture
def call(planarian: Planarian, box: Sandbox, store: Path) -> Caller:
    return Caller(planarian, box, store)


def _items(store: Path) -> dict[str, str]:
    """The store as somebody else sees it."""
    with sqlite3.connect(store) as connection:
        return dict(connection.execute("SELECT key, value FROM items"))


def _outbox(store: Path) -> list[str]:
    with sqlite3.connect(store) as connection:
        return [text for (text,) in connection.execute("SELECT text FROM outbox")]


def test_files_and_rows_come_back_together_and_go_forward_again(
    planarian: Planarian, box: Sandbox, call: Caller, store: Path
) -> None:
    report = Path(box.record.spec.layer, "report")
    call("put", key="a", value="1")
    report.write_text("a is 1")
    point = planarian.snapshot(box)
    call("put", key="a", value="2")
    call("delete", key="a")
    call("put", key="b", value="3")
    report.write_text("b is 3")
    restored = planarian.rollback(box, point)
    assert (_items(store), report.read_text()) == ({"a": "1"}, "a is 1")
    assert [e.summary for e in restored.remote_undone] == ["b: None -> 3", "a: 2 -> None", "a: 1 -> 2"]
    assert restored.safety_id is not None
    planarian.rollback(box, restored.safety_id)
    assert (_items(store), report.read_text()) == ({"b": "3"}, "b is 3")
    states = [(e.number, e.state) for e in planarian.effects(box)]
    assert states == [(number, EffectState.APPLIED) for number in (1, 2, 3, 4)]


def test_a_read_leaves_no_entry(planarian: Planarian, box: Sandbox, call: Caller) -> None:
    assert call("get", key="a") == ""
    assert planarian.effects(box) == []


def test_what_cannot_be_undone_is_refused_before_it_runs(planarian: Planarian, box: Sandbox, call: Caller) -> None:
    with pytest.raises(RemoteError) as caught:
        call("format")
    assert caught.value.code == "call-refused"
    assert "nothing would be left to undo it with" in caught.value.message
    assert planarian.effects(box) == []


def test_another_writer_stops_a_rollback_before_anything_is_touched(
    planarian: Planarian, box: Sandbox, call: Caller, store: Path
) -> None:
    point = planarian.snapshot(box)
    call("put", key="a", value="agent")
    file = Path(box.record.spec.layer, "f")
    file.write_text("new")
    with sqlite3.connect(store) as connection:
        connection.execute("UPDATE items SET value = 'somebody else'")
    count = len(planarian.registry.statepoints(box.id))
    with pytest.raises(CompensationConflict, match="somebody else"):
        planarian.rollback(box, point)
    assert (_items(store), file.read_text()) == ({"a": "somebody else"}, "new")
    assert len(planarian.registry.statepoints(box.id)) == count, "not even a safety statepoint was taken"
    assert planarian.registry.operations() == []


# --- forks ---


def test_a_fork_is_fenced_off(planarian: Planarian, box: Sandbox, store: Path) -> None:
    fork = planarian.fork(planarian.snapshot(box))
    with pytest.raises(RemoteError) as caught:
        Caller(planarian, fork, store)("put", key="a", value="1")
    assert caught.value.code == "service-fenced"
    assert "fenced off" in caught.value.message
    assert not store.exists() or _items(store) == {}


# --- pivots ---


def test_a_pivot_waits_for_consent_and_is_then_made_once(
    planarian: Planarian, box: Sandbox, call: Caller, store: Path
) -> None:
    with pytest.raises(RemoteError) as caught:
        call("send", text="hello")
    assert caught.value.code == "pivot-needs-approval"
    (waiting,) = planarian.approvals()
    assert waiting.id in caught.value.remedy
    planarian.approve(waiting.id)
    with pytest.raises(RemoteError, match="can't be undone"):
        call("send", text="something else")
    call("send", text="hello")
    assert _outbox(store) == ["hello"]
    with pytest.raises(RemoteError, match="can't be undone"):
        call("send", text="hello")
    assert [e.call_class for e in planarian.effects(box)] == [CallClass.PIVOT]


def test_a_denied_request_is_forgotten(planarian: Planarian, call: Caller) -> None:
    with pytest.raises(RemoteError):
        call("send", text="hello")
    (waiting,) = planarian.approvals()
    planarian.approve(waiting.id, granted=False)
    assert planarian.approvals() == []
    with pytest.raises(LineageError):
        planarian.approve(waiting.id)


def test_a_rollback_past_a_pivot_needs_consent_and_says_so(planarian: Planarian, box: Sandbox, store: Path) -> None:
    call = Caller(planarian, box, store, approve_all=True)
    point = planarian.snapshot(box)
    call("put", key="a", value="1")
    call("send", text="hello")
    call("put", key="b", value="2")
    with pytest.raises(CompensationError) as caught:
        planarian.rollback(box, point)
    assert caught.value.code == "pivot-needs-consent"
    assert _items(store) == {"a": "1", "b": "2"}
    restored = planarian.rollback(box, point, accept_pivots=True)
    assert (_items(store), _outbox(store)) == ({}, ["hello"])
    assert "what was sent can't be called back" in restored.to_markdown()
    assert [e.state for e in planarian.effects(box)] == [EffectState.UNDONE, EffectState.KEPT, EffectState.UNDONE]
    assert restored.safety_id is not None
    planarian.rollback(box, restored.safety_id)
    assert (_items(store), _outbox(store)) == ({"a": "1", "b": "2"}, ["hello"]), "a pivot isn't made again"


def test_a_pivot_is_not_repeated_silently_after_a_rollback(planarian: Planarian, box: Sandbox, store: Path) -> None:
    call = Caller(planarian, box, store, approve_all=True)
    point = planarian.snapshot(box)
    call("send", text="hello")
    call("send", text="hello")
    planarian.rollback(box, point, accept_pivots=True)
    call("send", text="another")
    with pytest.raises(RemoteError, match="already made"):
        call("send", text="hello")
    assert _outbox(store) == ["hello", "hello", "another"]
    planarian.approve(planarian.approvals()[0].id)
    call("send", text="hello")
    assert _outbox(store) == ["hello", "hello", "another", "hello"]


def test_a_plugin_decides_on_pivots(tmp_path: Path, workspace: Path, store: Path) -> None:
    asked: list[RemoteEffect] = []

    class Approver:
        @hookimpl
        def planarian_approve(self, effects: tuple[RemoteEffect, ...]) -> bool:
            asked.extend(effects)
            return "yes" in effects[0].summary

    plugins = [FakePlugin(), KeyValuePlugin(store), Approver()]
    with Planarian.open(tmp_path / "home", plugins=plugins) as planarian:
        box = planarian.create_sandbox(workspace, sandbox="fake", filesystem="fake", process="fake")
        call = Caller(planarian, box, store)
        call("send", text="yes")
        with pytest.raises(RemoteError) as caught:
            call("send", text="no")
        assert caught.value.code == "pivot-denied"
        assert planarian.approvals() == [], "what was denied doesn't wait"
    assert _outbox(store) == ["yes"]
    assert all(effect.pivot and effect.reason for effect in asked)


def test_the_harness_is_asked_where_nobody_else_decides(planarian: Planarian, box: Sandbox, store: Path) -> None:
    answers = iter([True, False, None])
    session = planarian.remote_session(box, "store", ask=lambda effect: next(answers))
    target = KeyValueTarget(store)
    session.call("send", {"text": "1"}, target)
    codes = []
    for text in ("2", "3"):
        with pytest.raises(RemoteError) as caught:
            session.call("send", {"text": text}, target)
        codes.append(caught.value.code)
    assert codes == ["pivot-denied", "pivot-needs-approval"]
    assert _outbox(store) == ["1"]


# --- crashes, locks ---


@pytest.mark.parametrize(("point", "applied"), [("call.begun", False), ("call.done", True), ("call.recorded", True)])
def test_what_a_failed_call_left_is_found_out(
    planarian: Planarian,
    box: Sandbox,
    call: Caller,
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    applied: bool,
) -> None:
    before = planarian.snapshot(box)
    monkeypatch.setenv("PLANARIAN_FAULT", f"{point}=fail")
    with pytest.raises(OSError, match="fault"):
        call("put", key="a", value="1")
    monkeypatch.delenv("PLANARIAN_FAULT")
    after = planarian.snapshot(box)
    assert [e.state for e in planarian.effects(box)] == [EffectState.APPLIED if applied else EffectState.VOID]
    assert (after.remote == before.remote) is not applied
    planarian.rollback(box, before)
    assert not store.exists() or _items(store) == {}


def test_what_a_power_cut_took_of_the_log_is_asked_of_the_service(tmp_path: Path, workspace: Path, store: Path) -> None:
    """The calls were made, and a rollback undoes them, though their entries never reached the disk."""
    home, plugins = tmp_path / "home", [FakePlugin(), KeyValuePlugin(store)]
    with Planarian.open(home, plugins=plugins) as planarian:
        box = planarian.create_sandbox(workspace, name="box")
        before = planarian.snapshot(box)
        call = Caller(planarian, box, store)
        call("put", key="a", value="1")
        call("put", key="a", value="2")
        middle = planarian.snapshot(box)
        call("put", key="b", value="3")
        call("delete", key="a")
        for file in home.glob("registry.sqlite*"):  # as a killed runtime leaves it: what it reserved isn't given back
            shutil.copy(file, tmp_path)
    for file in tmp_path.glob("registry.sqlite*"):
        shutil.copy(file, home)
    lose_entries(home / "registry.sqlite", box.id, "store", after=2)
    with Planarian.open(home, plugins=plugins) as planarian:
        again = planarian.sandbox("box")
        assert [effect.number for effect in planarian.effects(again)] == [1, 2]
        restored = planarian.rollback(again, middle)
        assert _items(store) == {"a": "2"}
        states = {effect.number: effect.state for effect in planarian.effects(again)}
        assert states.pop(3) == states.pop(4) == EffectState.UNDONE
        assert states.pop(1) == states.pop(2) == EffectState.APPLIED
        assert set(states.values()) == {EffectState.VOID}
        assert restored.safety_id is not None
        planarian.rollback(again, restored.safety_id)
        assert _items(store) == {"b": "3"}
        Caller(planarian, again, store)("put", key="c", value="4")
        planarian.rollback(again, before)
        assert _items(store) == {}
        planarian.remove_sandbox(again)


def test_a_snapshot_waits_for_a_call_that_is_under_way(planarian: Planarian, box: Sandbox, store: Path) -> None:
    entered, go_on = threading.Event(), threading.Event()

    class Slow(KeyValueTarget):
        def call(self, tool: str, arguments: object) -> dict[str, object]:
            entered.set()
            assert go_on.wait(30)
            return {"content": [{"type": "text", "text": "slow"}]}

    session = planarian.remote_session(box, "store", approve_all=True)
    calling = threading.Thread(target=session.call, args=("send", {"text": "x"}, Slow(store)))
    calling.start()
    assert entered.wait(30)
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(planarian.snapshot, box)
        done, _ = wait([taken], 0.3)
        assert not done
        go_on.set()
        calling.join(30)
        assert taken.result(30).remote[0].position == "1"


def test_a_rollback_asked_for_inside_waits_for_a_call_that_is_under_way(
    planarian: Planarian, box: Sandbox, store: Path
) -> None:
    point = planarian.snapshot(box)
    entered, go_on = threading.Event(), threading.Event()

    class Slow(KeyValueTarget):
        def call(self, tool: str, arguments: object) -> dict[str, object]:
            entered.set()
            assert go_on.wait(30)
            return {"content": [{"type": "text", "text": "slow"}]}

    session = planarian.remote_session(box, "store", approve_all=True)
    calling = threading.Thread(target=session.call, args=("send", {"text": "x"}, Slow(store)))
    calling.start()
    assert entered.wait(30)
    with planarian.sandboxes.hold(box.id, exclusive=False) as held, ThreadPoolExecutor(1) as pool:
        asked = AgentRequest(("rollback", point.id), ())
        answered = pool.submit(RequestServer(planarian, box, held, Command(("true",)), "none").handle, asked)
        done, _ = wait([answered], 0.3)
        assert not done
        assert [e.state for e in planarian.effects(box)] == [EffectState.SENT], "the call isn't taken for a dead one's"
        go_on.set()
        calling.join(30)
        assert "can't be undone" in answered.result(30).stderr


def test_an_unknown_service_is_named(planarian: Planarian, box: Sandbox) -> None:
    with pytest.raises(ConfigurationError, match="nothing") as caught:
        planarian.remote_session(box, "nothing")
    assert "store" in caught.value.remedy


def test_a_removed_sandbox_leaves_no_undo_data(planarian: Planarian, box: Sandbox, call: Caller, store: Path) -> None:
    call("put", key="a", value="1")
    planarian.remove_sandbox(box)
    with sqlite3.connect(store) as connection:
        assert connection.execute("SELECT COUNT(*) FROM undo").fetchone() == (0,)
    assert _items(store) == {"a": "1"}, "what the agent did stays"
    assert planarian.registry.effects.entries(box.id) == []
    assert list((planarian.home / "locks").iterdir()) == []


def test_pruning_drops_undo_data_that_nobody_needs(
    planarian: Planarian, box: Sandbox, call: Caller, store: Path
) -> None:
    def kept() -> list[int]:
        with sqlite3.connect(store) as connection:
            return [number for (number,) in connection.execute("SELECT number FROM undo ORDER BY number")]

    first = planarian.snapshot(box)
    for number in range(1, 4):
        call("put", key="a", value=str(number))
    middle = planarian.snapshot(box)
    call("put", key="a", value="4")
    planarian.rollback(box, middle, safety=False)
    call("put", key="a", value="5")
    last = planarian.snapshot(box)
    planarian.prune(PrunePolicy(keep_last=5))
    assert kept() == [1, 2, 3, 5], "no statepoint holds the fourth"
    planarian.prune(PrunePolicy(keep_last=2))
    assert kept() == [5], "whoever goes back gets no farther than to the middle one"
    planarian.rollback(box, middle)
    assert _items(store) == {"a": "3"}
    planarian.rollback(box, last)
    assert _items(store) == {"a": "5"}
    assert [e.forgotten for e in planarian.effects(box)] == [True, True, True, True, False]
    with pytest.raises(LineageError, match="pruned"):
        planarian.rollback(box, first)


def test_a_statepoint_from_while_the_service_was_not_configured_is_where_it_was(
    planarian: Planarian, box: Sandbox, call: Caller, tmp_path: Path, store: Path
) -> None:
    call("put", key="a", value="1")
    with Planarian.open(tmp_path / "home", plugins=[FakePlugin()]) as without:
        point = without.snapshot(box)
        assert without.rollback(box, point).remote_undone == (), "nothing is asked of a service that did nothing since"
    call("put", key="a", value="2")
    planarian.rollback(box, point)
    assert _items(store) == {"a": "1"}


def test_a_fork_is_fenced_off_from_a_service_that_was_not_configured_then(
    planarian: Planarian, box: Sandbox, call: Caller, tmp_path: Path, store: Path
) -> None:
    call("put", key="a", value="1")
    point = planarian.snapshot(box)
    with Planarian.open(tmp_path / "home", plugins=[FakePlugin()]) as without:
        fork = without.fork(point)
    with pytest.raises(RemoteError) as caught:
        Caller(planarian, fork, store)("put", key="a", value="2")
    assert caught.value.code == "service-fenced"
    planarian.rollback(fork, point)
    assert _items(store) == {"a": "1"}
