"""The service kind ``sql`` for SQLite (paper, section 6.1; guarantees 7 and 8).

What each statement is, SQLite itself says; what it changed, and its undo data, is one transaction of the database's
file. See ``docs/sqlite.md``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

from planarian_core.errors import CompensationConflict, CompensationError, ConfigurationError, RemoteError
from planarian_core.interfaces import CallOutcome, Moved, ServiceKind, TargetServer, ToolResult, ToolTarget
from planarian_core.model import CallClass, Effect, EffectState, RemoteCall, Verdict
from planarian_remote.configuration import Table
from planarian_remote.sqlite.settings import READ_TOOLS, Settings, read_settings
from planarian_remote.sqlite.target import OwnTools, ServersTools

if TYPE_CHECKING:
    from planarian_remote.sqlite.engine import Engine

_SURROGATE = re.compile("[\ud800-\udfff]")
_COMPENSABLE = "undone exactly, by the rows and definitions that it changed"


def make(table: Table, sandbox_id: str) -> ServiceKind:
    """The kind for ``[services.NAME]`` with ``kind = "sql"`` and ``dialect = "sqlite"``. Opens nothing.

    Raises:
        ConfigurationError
    """
    server = table.server(required=False)
    settings = read_settings(table, direct=server is None)
    if server is None and settings.others:
        raise table.wrong("tools", "of class sql, where no server offers others")
    table.close()
    return SqliteKind(settings, server)


class SqliteKind:
    keeps_entries = True

    def __init__(self, settings: Settings, server: TargetServer | None) -> None:
        self.settings = settings
        self.name = settings.name
        self.endpoint = self.mark = f"sqlite:{settings.path}"
        self.server = server

    @cached_property
    def _engine(self) -> Engine:
        try:
            module = import_module("planarian_remote.sqlite.engine")
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"the service {self.name} needs the package apsw", remedy="pip install 'planarian[sql]'"
            ) from error
        engine: Engine = module.Engine(self.settings)
        return engine

    def connect(self) -> ToolTarget:
        server = self.server
        if server is None:
            return OwnTools(self.settings)

        def open_it() -> ToolTarget:
            target: ToolTarget = import_module("planarian_remote.mcp_target").open_target(server)
            return target

        return ServersTools(open_it)

    # --- what calls are ---

    def describe(self, tool: str, annotations: Mapping[str, Any]) -> Verdict:
        if self.settings.style == "mcp-server-sqlite" and tool in READ_TOOLS:
            return Verdict(CallClass.READ_ONLY, "it is run on a connection that can't write")
        if tool in self.settings.tools:
            return Verdict(CallClass.COMPENSABLE, f"reads are told apart; a change is {_COMPENSABLE}, or refused")
        unlisted = Verdict(CallClass.REFUSED, f"the tool isn't listed under [services.{self.name}.tools]")
        return self.settings.others.get(tool, unlisted)

    def classify(self, call: RemoteCall) -> Verdict:
        if call.tool not in self.settings.tools:
            return self.describe(call.tool, {})
        argument = self.settings.tools[call.tool]
        if argument and not isinstance(call.arguments.get(argument), str):
            return Verdict(CallClass.REFUSED, f"the argument {argument!r} must be text")
        if argument and _SURROGATE.search(call.arguments[argument]):
            return Verdict(CallClass.REFUSED, "half of a surrogate pair is no text that a database can hold")
        return self._engine.classify(call.tool, call.arguments.get(argument, ""))

    # --- making them ---

    def read(self, call: RemoteCall, target: ToolTarget) -> ToolResult | Verdict:
        if call.tool in self.settings.others:
            return target.call(call.tool, call.arguments)
        with self._refusing(call):
            return self._engine.read(call.tool, self._argument(call))

    def run(self, call: RemoteCall, effect: Effect, target: ToolTarget) -> CallOutcome:
        if effect.call_class is CallClass.PIVOT:
            return CallOutcome(target.call(call.tool, call.arguments), EffectState.APPLIED, effect.summary)
        with self._refusing(call):
            return self._engine.run(call.tool, self._argument(call), effect)

    def _argument(self, call: RemoteCall) -> str:
        return str(call.arguments.get(self.settings.tools[call.tool], ""))

    @contextmanager
    def _refusing(self, call: RemoteCall) -> Iterator[None]:
        trouble = self._engine.trouble
        try:
            yield
        except trouble as error:
            if error.uncertain:
                raise RemoteError(
                    f"{call.tool}: {error.message}",
                    code="service-unreachable",
                    state="the call may have had its effect; the next one finds out",
                    remedy=error.remedy,
                ) from error
            raise RemoteError(
                f"{call.tool} was refused: {error.message}",
                code="call-refused",
                state="nothing was changed",
                remedy=error.remedy,
            ) from error

    # --- what became of them, and the way back ---

    def recognizes(self, effect: Effect, target: ToolTarget | None) -> bool:
        """By the entry that was committed with the effect."""
        if effect.state is EffectState.SENT:
            return effect.server in ("", self.mark)
        with self._compensating():
            return self._engine.knows(effect)

    def settle(self, effect: Effect, target: ToolTarget) -> CallOutcome:
        if effect.call_class is CallClass.PIVOT:
            return CallOutcome({}, EffectState.APPLIED, f"{effect.summary} (nobody knows whether it was made)")
        with self._compensating():
            state, summary = self._engine.settle(effect)
            return CallOutcome({}, state, summary or effect.summary)

    def rehearse(self, undo: Sequence[Effect], redo: Sequence[Effect], target: ToolTarget) -> None:
        with self._compensating():
            self._engine.move(undo, redo, rehearsal=True)

    def move(self, undo: Sequence[Effect], redo: Sequence[Effect], target: ToolTarget, moved: Moved) -> None:
        with self._compensating():
            done = self._engine.move(undo, redo)
        for effect, state in done:
            moved(effect, state)

    def forget(self, effects: Sequence[Effect], target: ToolTarget) -> None:
        with self._compensating():
            self._engine.forget(effects)

    @contextmanager
    def _compensating(self) -> Iterator[None]:
        trouble = self._engine.trouble
        try:
            yield
        except trouble as error:
            certain = "" if error.uncertain else "nothing was changed"
            if error.rows:
                raise CompensationConflict(
                    f"{self.name}: {error.message}",
                    state=certain,
                    remedy='put those back, or set on_conflict = "skip" to leave them as they are, then try again',
                ) from error
            code = "undo-data-missing" if error.missing else "service-unreachable"
            raise CompensationError(
                f"{self.name}: {error.message}", code=code, state=certain, remedy=error.remedy
            ) from error
