"""A remote server that a test scripts, and calls made through a service kind without a home.

:class:`ScriptedServer` is the other end of a connection: its tools are Python functions, so a test decides what it
answers, however odd. :class:`Trail` makes calls through a kind as a session does, and moves along them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from planarian_core.interfaces import Prepares, ServiceKind, ToolTarget
from planarian_core.model import Effect, EffectState, RemoteCall

Answer = Callable[..., Any]


def tool_error(text: str) -> dict[str, Any]:
    """A result that reports an error."""
    return {"content": [{"type": "text", "text": text}], "isError": True}


@dataclass
class ScriptedServer:
    """A connection to tools that are functions. What one returns is its ``structuredContent``, or the whole result
    where it looks like one.
    """

    answers: Mapping[str, Answer]
    annotations: Mapping[str, Any] = field(default_factory=dict)
    calls: list[tuple[str, Any]] = field(default_factory=list)

    def call(self, tool: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        self.calls.append((tool, dict(arguments)))
        found = self.answers[tool](**arguments)
        if isinstance(found, dict) and found.keys() & {"content", "isError", "structuredContent"}:
            return found
        return {"content": [{"type": "text", "text": json.dumps(found)}], "structuredContent": found}

    def tools(self) -> Sequence[Mapping[str, Any]]:
        return [{"name": name, "annotations": self.annotations.get(name)} for name in self.answers]

    def close(self) -> None:
        return


class Trail:
    """Calls through a kind, in order, and their effects."""

    def __init__(self, kind: ServiceKind, target: ToolTarget) -> None:
        self.kind = kind
        self.target = target
        self.effects: list[Effect] = []

    def send(self, tool: str, **arguments: Any) -> tuple[RemoteCall, Effect]:
        """Everything up to the call itself, as a proxy that is killed before it."""
        call = RemoteCall(tool, arguments)
        verdict = self.kind.classify(call)
        details = self.kind.prepare(call, self.target) if isinstance(self.kind, Prepares) else {}
        number = len(self.effects) + 1
        effect = Effect(
            "sb-trail", self.kind.name, number, number - 1, tool, call.digest, verdict.call_class, EffectState.SENT,
            verdict.reason, tool, details=details,
        )  # fmt: skip
        self.effects.append(effect)
        return call, effect

    def lose(self, tool: str, **arguments: Any) -> Effect:
        """A call that is made, and whose end nobody records, as a proxy that is killed after it."""
        call, effect = self.send(tool, **arguments)
        self.kind.run(call, effect, self.target)
        return effect

    def call(self, tool: str, **arguments: Any) -> Mapping[str, Any]:
        call, effect = self.send(tool, **arguments)
        outcome = self.kind.run(call, effect, self.target)
        self._record(replace(effect, details=outcome.details, summary=outcome.summary), outcome.state)
        return outcome.result

    def settle(self) -> EffectState:
        """Find out how the last call ended."""
        outcome = self.kind.settle(self.effects[-1], self.target)
        self._record(replace(self.effects[-1], details=outcome.details), outcome.state)
        return outcome.state

    def go(self, count: int) -> None:
        """Have the first ``count`` effects in force and no others."""
        undo, redo = self.way(count)
        self.kind.rehearse(undo, redo, self.target)
        self.kind.move(undo, redo, self.target, self._record)

    def way(self, count: int) -> tuple[list[Effect], list[Effect]]:
        undo = [effect for effect in reversed(self.effects[count:]) if effect.state is EffectState.APPLIED]
        redo = [effect for effect in self.effects[:count] if effect.state is EffectState.UNDONE]
        return undo, redo

    def forget_after(self, count: int) -> None:
        """Go on from here on another way: what was undone is nobody's any more."""
        self.effects = [e if e.number <= count else replace(e, state=EffectState.VOID) for e in self.effects]

    def _record(self, effect: Effect, state: EffectState) -> None:
        self.effects[effect.number - 1] = replace(effect, state=state)

    @property
    def states(self) -> list[EffectState]:
        return [effect.state for effect in self.effects]
