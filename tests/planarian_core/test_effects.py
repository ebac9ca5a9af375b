"""The undo log: numbers, the tree that rollbacks make of it, and the way from anywhere to anywhere."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planarian_core.database import Database
from planarian_core.effects import EffectLog
from planarian_core.errors import CompensationError
from planarian_core.model import CallClass, Effect, EffectState, RemoteCall, Verdict
from planarian_core.registry import Registry

_VERDICT = Verdict(CallClass.COMPENSABLE, "a test")


def _made(registry: Registry, *, sandbox: str = "sb-1", service: str = "s") -> Effect:
    effect = registry.effects.begin(sandbox, service, RemoteCall("put", {"n": 1}), _VERDICT, "put")
    return registry.effects.update(effect, EffectState.APPLIED)


def _go(registry: Registry, position: int) -> tuple[list[int], list[int]]:
    undo, redo = registry.effects.way("sb-1", "s", position)
    for effect in undo:
        registry.effects.update(effect, EffectState.UNDONE)
    for effect in redo:
        registry.effects.update(effect, EffectState.APPLIED)
    return [e.number for e in undo], [e.number for e in redo]


def test_a_rollback_and_its_rollback(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "r")
    for _ in range(3):
        _made(registry)
    assert _go(registry, 1) == ([3, 2], [])
    fourth = _made(registry)
    assert (fourth.number, fourth.parent) == (4, 1), "numbers are never used again"
    assert _go(registry, 3) == ([4], [2, 3])
    assert _go(registry, 3) == ([], []), "nothing is done twice"
    assert registry.effects.position("sb-1", "s") == 3


def test_sandboxes_and_services_have_numbers_of_their_own(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "r")
    _made(registry)
    assert _made(registry, sandbox="sb-2").number == 1
    assert _made(registry, service="other").number == 1
    registry.effects.forget("sb-1", "s")
    assert [(e.sandbox_id, e.service) for e in registry.effects.entries("sb-1")] == [("sb-1", "other")]
    assert len(registry.effects.entries("sb-2")) == 1


def test_what_never_happened_is_no_part_of_a_position(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "r")
    _made(registry)
    sent = registry.effects.begin("sb-1", "s", RemoteCall("put"), _VERDICT, "put")
    assert [e.number for e in registry.effects.unsettled("sb-1", "s")] == [2]
    assert registry.effects.position("sb-1", "s") == 1
    registry.effects.update(sent, EffectState.VOID)
    assert _made(registry).parent == 1
    assert _go(registry, 0) == ([3, 1], [])


def test_a_position_that_the_log_does_not_hold_is_refused(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "r")
    with pytest.raises(CompensationError) as caught:
        registry.effects.way("sb-1", "s", 7)
    assert caught.value.code == "undo-data-missing"


@settings(deadline=None, max_examples=60)
@given(st.lists(st.one_of(st.none(), st.integers(0, 30)), max_size=25))
def test_every_position_is_reached_again_exactly(steps: list[int | None]) -> None:
    """Against a model: at each position, the whole history in force is remembered and must come back."""
    with tempfile.TemporaryDirectory() as folder:
        registry = Registry(Path(folder, "r"))
        in_force: dict[int, tuple[int, ...]] = {0: ()}
        now: tuple[int, ...] = ()
        for step in steps:
            if step is None:
                now = (*now, _made(registry).number)
                in_force[now[-1]] = now
            else:
                position = sorted(in_force)[step % len(in_force)]
                undo, redo = _go(registry, position)
                assert undo == sorted(set(now) - set(in_force[position]), reverse=True)
                assert redo == sorted(set(in_force[position]) - set(now))
                now = in_force[position]
            applied = registry.effects.entries("sb-1", "s", states=[EffectState.APPLIED])
            assert tuple(e.number for e in applied) == now
            assert registry.effects.position("sb-1", "s") == (now[-1] if now else 0)
        registry.close()


class _Counted(Database):
    """How many durable transactions there were that changed anything."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.flushes = 0

    @contextmanager
    def transaction(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        with super().transaction(durable=durable) as connection:
            before = connection.total_changes
            yield connection
            self.flushes += durable and connection.total_changes > before


def test_a_reservation_is_enough_for_many_calls(tmp_path: Path) -> None:
    database = _Counted(tmp_path / "r")
    log = EffectLog(database)
    for _ in range(64):
        effect = log.begin("sb-1", "s", RemoteCall("put"), _VERDICT, "put", ahead=True)
        log.update(effect, EffectState.APPLIED, durable=False)
    assert database.flushes == 2
    for _ in range(4):
        log.begin("sb-1", "s", RemoteCall("put"), _VERDICT, "put")
    assert database.flushes == 6, "an entry that the service doesn't have is waited for"
    assert [effect.number for effect in log.entries("sb-1")] == list(range(1, 69))


def test_what_was_reserved_is_given_back_at_the_end(tmp_path: Path) -> None:
    database = Database(tmp_path / "r")
    log = EffectLog(database)
    log.begin("sb-1", "s", RemoteCall("put"), _VERDICT, "put", ahead=True)
    assert database.rows("SELECT through FROM effect_reservations") == [(32,)]
    EffectLog(database).reservations.release()
    assert database.rows("SELECT through FROM effect_reservations") == [(32,)], "it is another's"
    log.reservations.release()
    assert database.rows("SELECT through FROM effect_reservations") == []
