"""Service kinds for tests of the proxy: the store server (:mod:`planarian_core.testing.store_server`), undone for real
through its own tools, and any other MCP server, whose calls all count as of one class.

Run as a program it is ``planarian`` with these kinds and the fake backends: ARGUMENTS of the command line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from planarian_core.cli import opening
from planarian_core.cli.main import main
from planarian_core.effects import EffectLog
from planarian_core.errors import CompensationConflict
from planarian_core.hookspecs import hookimpl
from planarian_core.interfaces import CallOutcome, Moved, RemoteService, TargetServer, ToolResult, ToolTarget
from planarian_core.logged_service import LoggedService
from planarian_core.model import CallClass, Effect, EffectState, RemoteCall, SandboxRecord, Verdict
from planarian_core.runtime import Planarian
from planarian_core.testing.fakes import FakePlugin
from planarian_core.testing.key_value import KeyValuePlugin
from planarian_remote.mcp_target import open_target

KEPT = Verdict(CallClass.COMPENSABLE, "the value before is kept")
READ = Verdict(CallClass.READ_ONLY, "it only looks")
CLASSES = {
    "put": KEPT,
    "delete": KEPT,
    "slow": KEPT,
    "die": KEPT,
    "protocol_error": KEPT,
    "notify": Verdict(CallClass.PIVOT, "what was told can't be untold"),
    "environment": Verdict(CallClass.REFUSED, "it is the proxy's own"),
}


class StoreKind:
    """The store: ``put``, ``delete``, ``slow`` and ``die`` write a key."""

    def __init__(self, name: str, server: TargetServer, default: CallClass | None = None) -> None:
        self.name = name
        self.server: TargetServer | None = server
        self.endpoint = "store"
        self._default = default

    def connect(self) -> ToolTarget:
        assert self.server is not None
        return open_target(self.server)

    def describe(self, tool: str, annotations: Mapping[str, Any]) -> Verdict:
        if self._default is not None:
            return Verdict(self._default, "all of it")
        return CLASSES.get(tool, READ)

    def classify(self, call: RemoteCall) -> Verdict:
        return self.describe(call.tool, {})

    def read(self, call: RemoteCall, target: ToolTarget) -> ToolResult | Verdict:
        return target.call(call.tool, call.arguments)

    def prepare(self, call: RemoteCall, target: ToolTarget) -> Mapping[str, Any]:
        key = call.arguments.get("key")
        if not key or self._default is not None:
            return {}
        after = call.arguments.get("value") if call.tool != "delete" else None
        return {"key": key, "before": _value(target, key), "after": after}

    def run(self, call: RemoteCall, effect: Effect, target: ToolTarget) -> CallOutcome:
        result = target.call(call.tool, call.arguments)
        state = EffectState.VOID if result.get("isError") else EffectState.APPLIED
        return CallOutcome(result, state, effect.summary, effect.details)

    def settle(self, effect: Effect, target: ToolTarget) -> CallOutcome:
        key = effect.details.get("key")
        done = key is not None and _value(target, key) == effect.details["after"]
        state = EffectState.APPLIED if done else EffectState.VOID
        return CallOutcome({}, state, effect.summary, effect.details)

    def rehearse(self, undo: Sequence[Effect], redo: Sequence[Effect], target: ToolTarget) -> None:
        return

    def move(self, undo: Sequence[Effect], redo: Sequence[Effect], target: ToolTarget, moved: Moved) -> None:
        for effect in undo:
            _swap(target, effect.details, "after", "before")
            moved(effect, EffectState.UNDONE)
        for effect in redo:
            _swap(target, effect.details, "before", "after")
            moved(effect, EffectState.APPLIED)

    def forget(self, effects: Sequence[Effect], target: ToolTarget) -> None:
        return


def _value(target: ToolTarget, key: str) -> str | None:
    value: str | None = json.loads(target.call("get", {"key": key})["content"][0]["text"])
    return value


def _swap(target: ToolTarget, details: Mapping[str, Any], old: str, new: str) -> None:
    if not details.get("key"):
        return
    found = _value(target, details["key"])
    if found == details[new]:
        return
    if found != details[old]:
        raise CompensationConflict(f"{details['key']} is {found}")
    if details[new] is None:
        target.call("delete", {"key": details["key"]})
    else:
        target.call("put", {"key": details["key"], "value": details[new]})


class StorePlugin:
    """Offers services of kind ``store`` (``command`` or ``url``, ``timeout``), and ``mirror`` (``class`` too)."""

    @hookimpl
    def planarian_services(
        self, sandbox: SandboxRecord, configured: Mapping[str, Mapping[str, Any]], effects: EffectLog
    ) -> Sequence[RemoteService]:
        return [
            LoggedService(_kind(name, table), effects)
            for name, table in configured.items()
            if table["kind"] in ("store", "mirror")
        ]


def _kind(name: str, table: Mapping[str, Any]) -> StoreKind:
    server = TargetServer(
        tuple(table.get("command", ())),
        table.get("url", ""),
        env=table.get("env", {}),
        cwd=table.get("cwd", ""),
        timeout=table.get("timeout", 60.0),
        max_message=table.get("max_message", TargetServer.max_message),
    )
    return StoreKind(name, server, CallClass(table["class"]) if table["kind"] == "mirror" else None)


def plugins() -> list[object]:
    """What a runtime of these tests is opened with."""
    return [FakePlugin(), StorePlugin(), KeyValuePlugin()]


def _open(*, recover: bool) -> Planarian:
    return Planarian.open(plugins=plugins(), recover=recover)


if __name__ == "__main__":
    opening.opener = _open
    main()
