"""A service kind in a hundred lines: a key-value store in one SQLite file, its undo data in the same transaction.

For tests of what calls services (sessions, proxies, the crash suite), and to copy from. Tools: ``get``, ``put``,
``delete``, ``send`` (a pivot: it goes to an outbox) and ``format`` (refused).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from planarian_core.effects import EffectLog
from planarian_core.errors import CompensationConflict, RemoteError
from planarian_core.hookspecs import hookimpl
from planarian_core.interfaces import CallOutcome, Moved, RemoteService, TargetServer, ToolResult, ToolTarget
from planarian_core.logged_service import LoggedService
from planarian_core.model import CallClass, Effect, EffectState, RemoteCall, SandboxRecord, Verdict

_SCHEMA = """
CREATE TABLE IF NOT EXISTS items (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS outbox (text TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS undo (sandbox TEXT, number INTEGER, key TEXT, before TEXT, after TEXT, state TEXT NOT NULL,
    PRIMARY KEY (sandbox, number));
"""
_CLASSES = {
    "get": Verdict(CallClass.READ_ONLY, "it only looks"),
    "put": Verdict(CallClass.COMPENSABLE, "the value before is kept"),
    "delete": Verdict(CallClass.COMPENSABLE, "the value before is kept"),
    "send": Verdict(CallClass.PIVOT, "what was sent can't be called back"),
}


def text_result(text: str, *, error: bool = False) -> ToolResult:
    """The result of a tool that answers with text."""
    return {"content": [{"type": "text", "text": text}], "isError": error}


class KeyValueTarget:
    """The tools themselves, on the file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        with _opened(self._path) as store:
            if tool == "get":
                return text_result(_value(store, arguments["key"]) or "")
            if tool == "send":
                store.execute("INSERT INTO outbox VALUES (?)", (arguments["text"],))
                return text_result("sent")
        raise RemoteError(f"no tool {tool}", code="service-error")

    def tools(self) -> Sequence[Mapping[str, Any]]:
        text = {"type": "string"}
        properties = {"get": ["key"], "put": ["key", "value"], "delete": ["key"], "send": ["text"], "format": []}
        return [
            {
                "name": name,
                "description": f"{name} of the key-value store",
                "inputSchema": {"type": "object", "properties": dict.fromkeys(keys, text), "required": keys},
            }
            for name, keys in properties.items()
        ]

    def close(self) -> None:
        return


class KeyValueKind:
    """The store as a service kind; ``path`` is made when it is first used."""

    server: TargetServer | None = None
    keeps_entries = True

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.endpoint = str(path)
        self.path = path

    def connect(self) -> ToolTarget:
        return KeyValueTarget(self.path)

    def describe(self, tool: str, annotations: Mapping[str, Any]) -> Verdict:
        return _CLASSES.get(tool, Verdict(CallClass.REFUSED, "nothing would be left to undo it with"))

    def classify(self, call: RemoteCall) -> Verdict:
        return self.describe(call.tool, {})

    def read(self, call: RemoteCall, target: ToolTarget) -> ToolResult | Verdict:
        return target.call(call.tool, call.arguments)

    def run(self, call: RemoteCall, effect: Effect, target: ToolTarget) -> CallOutcome:
        if call.tool == "send":
            return CallOutcome(target.call(call.tool, call.arguments), EffectState.APPLIED, f"sent {call.arguments}")
        key, after = call.arguments["key"], call.arguments.get("value") if call.tool == "put" else None
        with _opened(self.path) as store:
            if store.execute("SELECT 1 FROM undo WHERE (sandbox, number) = (?, ?)", _id(effect)).fetchone():
                raise RemoteError(f"call {effect.number} was given up", code="call-refused")
            before = _value(store, key)
            _write(store, key, after)
            store.execute("INSERT INTO undo VALUES (?, ?, ?, ?, ?, 'applied')", (*_id(effect), key, before, after))
        return CallOutcome(text_result("ok"), EffectState.APPLIED, f"{key}: {before} -> {after}")

    def settle(self, effect: Effect, target: ToolTarget) -> CallOutcome:
        with _opened(self.path) as store:
            fence = "INSERT OR IGNORE INTO undo (sandbox, number, state) VALUES (?, ?, 'void')"
            store.execute(fence, _id(effect))
            query = "SELECT state FROM undo WHERE (sandbox, number) = (?, ?)"
            state = store.execute(query, _id(effect)).fetchone()[0]
        return CallOutcome({}, EffectState(state), effect.summary)

    def rehearse(self, undo: Sequence[Effect], redo: Sequence[Effect], target: ToolTarget) -> None:
        with _opened(self.path) as store:
            _move(store, undo, redo)
            store.execute("ROLLBACK")

    def move(self, undo: Sequence[Effect], redo: Sequence[Effect], target: ToolTarget, moved: Moved) -> None:
        with _opened(self.path) as store:
            _move(store, undo, redo)
        for effect in undo:
            moved(effect, EffectState.UNDONE)
        for effect in redo:
            moved(effect, EffectState.APPLIED)

    def forget(self, effects: Sequence[Effect], target: ToolTarget) -> None:
        with _opened(self.path) as store:
            store.executemany("DELETE FROM undo WHERE (sandbox, number) = (?, ?)", [_id(effect) for effect in effects])


class KeyValuePlugin:
    """Offers the services of kind ``key-value`` (``path``) of the configuration, and the one given."""

    def __init__(self, path: Path | None = None, name: str = "store") -> None:
        self._given = {name: path} if path is not None else {}

    @hookimpl
    def planarian_services(
        self, sandbox: SandboxRecord, configured: Mapping[str, Mapping[str, Any]], effects: EffectLog
    ) -> Sequence[RemoteService]:
        paths = {n: Path(t["path"]) for n, t in configured.items() if t["kind"] == "key-value"} | self._given
        return [LoggedService(KeyValueKind(name, path), effects) for name, path in paths.items()]


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """One transaction on the file."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as store:
        store.executescript(_SCHEMA)
        store.execute("BEGIN IMMEDIATE")
        yield store
        if store.in_transaction:
            store.execute("COMMIT")


def _id(effect: Effect) -> tuple[str, int]:
    return effect.sandbox_id, effect.number


def _value(store: sqlite3.Connection, key: str) -> str | None:
    found = store.execute("SELECT value FROM items WHERE key = ?", (key,)).fetchone()
    return found[0] if found else None


def _write(store: sqlite3.Connection, key: str, value: str | None) -> None:
    store.execute("DELETE FROM items WHERE key = ?", (key,))
    if value is not None:
        store.execute("INSERT INTO items VALUES (?, ?)", (key, value))


def _move(store: sqlite3.Connection, undo: Sequence[Effect], redo: Sequence[Effect]) -> None:
    """Undo and do again what isn't yet; CompensationConflict where somebody else was there."""
    for effects, wanted in ((undo, "undone"), (redo, "applied")):
        for effect in effects:
            query = "SELECT key, before, after, state FROM undo WHERE (sandbox, number) = (?, ?)"
            key, before, after, state = store.execute(query, _id(effect)).fetchone()
            if state == wanted:
                continue
            expected, value = (after, before) if wanted == "undone" else (before, after)
            if _value(store, key) != expected:
                raise CompensationConflict(
                    f"{key} is {json.dumps(_value(store, key))} and not {json.dumps(expected)}: somebody changed it",
                    state="nothing was undone",
                )
            _write(store, key, value)
            store.execute("UPDATE undo SET state = ? WHERE (sandbox, number) = (?, ?)", (wanted, *_id(effect)))
