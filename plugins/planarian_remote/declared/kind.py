"""The service kind ``declared``: any MCP server, its tools' inverses declared in ``planarian.toml``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from planarian_core.errors import ConfigurationError, RemoteError
from planarian_core.interfaces import CallOutcome, Moved, TargetServer, ToolResult, ToolTarget
from planarian_core.model import CallClass, Effect, EffectState, RemoteCall, Verdict
from planarian_remote.configuration import Table
from planarian_remote.declared import calling, moving, parsing
from planarian_remote.declared.declaration import Declaration, Scratch, Tool
from planarian_remote.declared.drill import DrillReport, drill
from planarian_remote.declared.images import failed
from planarian_remote.declared.templates import Unresolved, canonical
from planarian_remote.mcp_target import open_target

_UNDO_LIMIT = 32 * 1024 * 1024
_SURROGATE = re.compile("[\ud800-\udfff]")


def make(table: Table, sandbox_id: str) -> DeclaredKind:
    """The service that ``[services.NAME]`` with ``kind = "declared"`` describes."""
    server = table.server()
    assert server is not None  # it is required
    include = table.text("include", "")
    base = parsing.included(include, table.source) if include else Declaration()
    tools = {**base.tools, **parsing.tools(table)}
    settings = table.mapping("settings")
    for name in base.settings:
        if not settings.get(name):
            raise ConfigurationError(
                f"{table.source} needs settings.{name}: {base.settings[name]}",
                remedy=f'[services.{table.name}.settings] {name} = "…"',
            )
    kind = DeclaredKind(
        table.name,
        _shown(server),
        server,
        tools,
        settings,
        table.flag("trust_hints"),
        int(table.number("undo_limit", _UNDO_LIMIT)),
        parsing.scratch(table) or base.scratch,
        table.identity(settings, server=server),
    )
    table.close()
    return kind


@dataclass
class DeclaredKind:
    """One configured service of the kind ``declared``. ``undo_limit``: bytes of undo data that a call may take."""

    name: str
    endpoint: str
    server: TargetServer | None
    tools: Mapping[str, Tool]
    settings: Mapping[str, str] = field(default_factory=dict)
    trust_hints: bool = False
    undo_limit: int = _UNDO_LIMIT
    scratch: Scratch | None = None
    mark: str = ""
    _prepared: calling.Prepared | None = None
    _hints: Mapping[str, bool] | None = None

    def connect(self) -> ToolTarget:
        assert self.server is not None  # make() asks for one
        return open_target(self.server)

    # --- classes ---

    def describe(self, tool: str, annotations: Mapping[str, Any]) -> Verdict:
        known = self.tools.get(tool)
        if known is not None:
            return Verdict(known.call_class, known.full_reason, known.approved)
        if self.trust_hints and annotations.get("readOnlyHint") is True:
            return Verdict(CallClass.READ_ONLY, "the server says that it only reads")
        return self._undeclared(tool)

    def classify(self, call: RemoteCall) -> Verdict:
        tool = self.tools.get(call.tool)
        if tool is None:
            if self.trust_hints:  # whether the server gives one is seen in read()
                return Verdict(CallClass.READ_ONLY, "the server says that it only reads")
            return self._undeclared(call.tool)
        if tool.call_class is not CallClass.COMPENSABLE:
            return Verdict(tool.call_class, tool.reason, tool.approved)
        try:
            canonical(call.arguments)
        except Unresolved as error:
            return Verdict(CallClass.REFUSED, str(error))
        if _holds_surrogate(call.arguments):
            return Verdict(CallClass.REFUSED, "half of a surrogate pair isn't text, and would not be kept as it is")
        if tool.read_only_if and _equal(tool.read_only_if, call.arguments):
            return Verdict(CallClass.READ_ONLY, "with these arguments it only reads")
        for arguments, reason in tool.refuse_if:
            if _equal(arguments, call.arguments):
                return Verdict(CallClass.REFUSED, reason)
        return Verdict(CallClass.COMPENSABLE, tool.full_reason)

    def _undeclared(self, tool: str) -> Verdict:
        return Verdict(
            CallClass.REFUSED,
            f"{tool} isn't declared: say what it is in [services.{self.name}.tools.{tool}] of planarian.toml "
            '(class = "read-only", "compensable" with its inverse, or "pivot")',
        )

    def _hinted(self, tool: str, target: ToolTarget) -> bool:
        if self._hints is None:
            self._hints = {
                str(one.get("name")): isinstance(one.get("annotations"), Mapping)
                and one["annotations"].get("readOnlyHint") is True
                for one in target.tools()
            }
        return self._hints.get(tool, False)

    # --- calls ---

    def read(self, call: RemoteCall, target: ToolTarget) -> ToolResult | Verdict:
        if call.tool not in self.tools and not self._hinted(call.tool, target):
            return self._undeclared(call.tool)
        return target.call(call.tool, call.arguments)

    def prepare(self, call: RemoteCall, target: ToolTarget) -> Mapping[str, Any]:
        tool = self.tools[call.tool]
        self._prepared = calling.prepare(tool, call, self.settings, target, self.undo_limit)
        return self._prepared.details

    def run(self, call: RemoteCall, effect: Effect, target: ToolTarget) -> CallOutcome:
        if effect.call_class is CallClass.PIVOT:
            result = target.call(call.tool, call.arguments)
            note = " (it reports an error)" if failed(result) else ""
            return CallOutcome(result, EffectState.APPLIED, effect.summary + note)
        prepared, self._prepared = self._prepared, None
        if prepared is None or prepared.call is not call:
            raise RemoteError(
                f"{call.tool} was refused: what undoing it takes was not read before",
                code="call-refused",
                state="nothing was changed",
            )
        return calling.run(prepared, effect, target)

    def settle(self, effect: Effect, target: ToolTarget) -> CallOutcome:
        if effect.call_class is CallClass.PIVOT:  # it can't be undone either way: what may have been counts as made
            return CallOutcome({}, EffectState.APPLIED, f"{effect.summary} (nobody saw how it ended)")
        # A server that is started by command ended with its connection.
        patience = self.server.timeout if self.server and self.server.url else 0.0
        return calling.settle(effect, target, patience)

    # --- undo ---

    def recognizes(self, effect: Effect, target: ToolTarget | None) -> bool:
        """By the configuration alone: these servers hold nothing of ours."""
        return effect.server in ("", self.mark)

    def rehearse(self, undo: Sequence[Effect], redo: Sequence[Effect], target: ToolTarget) -> None:
        moving.rehearse(undo, redo, target)

    def move(self, undo: Sequence[Effect], redo: Sequence[Effect], target: ToolTarget, moved: Moved) -> None:
        moving.move(undo, redo, target, moved)

    def forget(self, effects: Sequence[Effect], target: ToolTarget) -> None:
        """Nothing: the undo data is in the home."""

    # --- the drill ---

    def drill(self) -> DrillReport:
        """Call each compensable tool that has examples, undo it, make it again and undo it, on a scratch server."""
        timeout = self.server.timeout if self.server else TargetServer().timeout
        return drill(self.name, self.tools, self.scratch, timeout, self.undo_limit)


def _equal(wanted: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    return all(name in arguments and canonical(arguments[name]) == canonical(value) for name, value in wanted.items())


def _holds_surrogate(value: Any) -> bool:
    if isinstance(value, str):
        return _SURROGATE.search(value) is not None
    if isinstance(value, Mapping):
        return any(_holds_surrogate(part) for pair in value.items() for part in pair)
    return isinstance(value, list | tuple) and any(map(_holds_surrogate, value))


def _shown(server: TargetServer) -> str:
    """Where the server is, without what may be secret: options and their values, a URL's user and query."""
    if server.url:
        parts = urlsplit(server.url)
        return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"
    words, before = [], ""
    for word in server.command:
        if not word.startswith("-") and not before.startswith("--") and "=" not in word:
            words.append(word)
        before = word
    return " ".join(words)[:200]
