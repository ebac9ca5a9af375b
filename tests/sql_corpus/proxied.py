"""Statements as the agent sends them: through the kind ``sql``, each an effect that can be undone and done again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from planarian_core.errors import PlanarianError, RemoteError
from planarian_core.interfaces import ServiceKind, ToolResult
from planarian_core.model import CallClass, Effect, EffectState, RemoteCall, Verdict

SANDBOX = "corpus"
TOOL, ARGUMENT = "execute_sql", "sql"


@dataclass(frozen=True)
class Sent:
    """What became of a statement: ``read``, ``accepted`` (with its effect), ``refused`` or ``failed`` (with why)."""

    what: str
    why: str = ""
    effect: Effect | None = None


class StatementSession(Protocol):
    """Where the agent's statements go."""

    def send(self, statement: str) -> Sent:
        """Send one statement.

        Raises:
            PlanarianError: anything but a refusal.
        """

    def undo(self, effect: Effect) -> Effect:
        """Undo the effect of the last statement; the effect as it is then."""

    def redo(self, effect: Effect) -> Effect:
        """Do it again."""

    def close(self) -> None: ...


class ProxiedSession:
    """Of the kind itself: one service, its connection, and the numbers of its effects."""

    def __init__(self, kind: ServiceKind) -> None:
        self._kind = kind
        self._target = kind.connect()
        self._number = 0

    def close(self) -> None:
        self._target.close()

    def send(self, statement: str) -> Sent:
        """Send one statement, as a :class:`RemoteSession` does.

        Raises:
            PlanarianError: anything but a refusal.
        """
        call = RemoteCall(TOOL, {ARGUMENT: statement})
        verdict = self._kind.classify(call)
        if verdict.call_class is CallClass.READ_ONLY:
            found = self._kind.read(call, self._target)
            if not isinstance(found, Verdict):
                return Sent("failed", _text(found)) if found.get("isError") else Sent("read")
            verdict = found
        if verdict.call_class is not CallClass.COMPENSABLE:
            return Sent("refused", verdict.reason)
        self._number += 1
        effect = Effect(
            SANDBOX, self._kind.name, self._number, self._number - 1, call.tool, call.digest, verdict.call_class,
            EffectState.SENT,
        )  # fmt: skip
        try:
            outcome = self._kind.run(call, effect, self._target)
        except RemoteError as error:
            if error.code == "call-refused":
                return Sent("refused", error.message)
            raise
        effect = replace(effect, state=outcome.state, summary=outcome.summary, details=outcome.details)
        if outcome.result.get("isError"):
            return Sent("failed", _text(outcome.result), effect if outcome.state is EffectState.APPLIED else None)
        return Sent("accepted", effect=effect)

    def undo(self, effect: Effect) -> Effect:
        return self._moved([effect], [])

    def redo(self, effect: Effect) -> Effect:
        return self._moved([], [effect])

    def _moved(self, undo: Sequence[Effect], redo: Sequence[Effect]) -> Effect:
        """Rehearse, then move; the effect as it is afterwards. It must be reported as the move that was asked for."""
        reported: list[Effect] = []
        wanted = EffectState.UNDONE if undo else EffectState.APPLIED
        self._kind.rehearse(undo, redo, self._target)
        self._kind.move(undo, redo, self._target, lambda effect, state: reported.append(replace(effect, state=state)))
        asked = replace((*undo, *redo)[0], state=wanted)
        if reported != [asked]:
            raise PlanarianError(f"reported {reported} where {asked} was asked for", code="move-not-reported")
        return asked


def _text(result: ToolResult) -> str:
    return " ".join(str(part.get("text", "")) for part in result.get("content", ()))[:500]
