"""The key-value service kind of the testing kit holds what every kind holds; and an undo that is broken is caught."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from planarian_core.model import Effect, EffectState, RemoteCall
from planarian_core.testing.key_value import KeyValueKind
from planarian_core.testing.remote import Driver, RemoteSubject, ServiceKindConformance


def _subject(path: Path, kind: KeyValueKind) -> RemoteSubject:
    def state() -> Any:
        with closing(sqlite3.connect(path)) as store:
            store.execute("CREATE TABLE IF NOT EXISTS items (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
            return sorted(store.execute("SELECT key, value FROM items"))

    def meddle() -> None:
        with closing(sqlite3.connect(path)) as store:
            store.execute("UPDATE items SET value = 'somebody else' WHERE key = 'b'")
            store.commit()

    changes = [
        RemoteCall("put", {"key": "a", "value": "1"}),
        RemoteCall("put", {"key": "a", "value": "2"}),
        RemoteCall("delete", {"key": "a"}),
        RemoteCall("put", {"key": "b", "value": "1"}),
        RemoteCall("put", {"key": "b", "value": "2"}),
    ]
    return RemoteSubject(kind, changes, RemoteCall("get", {"key": "a"}), RemoteCall("format"), state, meddle)


class TestKeyValue(ServiceKindConformance):
    @pytest.fixture
    def remote(self, tmp_path: Path) -> RemoteSubject:
        path = tmp_path / "store"
        return _subject(path, KeyValueKind("store", path))


class _Forgetful(KeyValueKind):
    """Says that it undid everything, and leaves the last effect as it was."""

    def move(self, undo: Any, redo: Any, target: Any, moved: Any) -> None:
        super().move(undo[1:], redo, target, moved)
        for effect in undo[:1]:
            moved(effect, EffectState.UNDONE)


def test_the_conformance_tests_catch_a_broken_undo(tmp_path: Path) -> None:
    path = tmp_path / "store"
    subject = _subject(path, _Forgetful("store", path))
    from planarian_core.registry import Registry

    driver = Driver(subject, Registry(tmp_path / "registry"))
    with pytest.raises(AssertionError):
        ServiceKindConformance().test_every_position_is_reached_exactly_from_every_other(subject, driver)


def test_an_effect_has_its_own_number_per_sandbox(tmp_path: Path) -> None:
    kind = KeyValueKind("store", tmp_path / "store")
    target = kind.connect()
    for sandbox in ("sb-1", "sb-2"):
        call = RemoteCall("put", {"key": sandbox, "value": "1"})
        verdict = kind.classify(call)
        effect = Effect(sandbox, "store", 1, 0, "put", call.digest, verdict.call_class, EffectState.SENT)
        assert kind.run(call, effect, target).state is EffectState.APPLIED
