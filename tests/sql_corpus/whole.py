"""Statements through everything there is: ``planarian proxy`` as a process, MCP Toolbox behind it, and rollbacks of
the sandbox.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from planarian_core.errors import PlanarianError
from planarian_core.model import Effect, EffectState
from planarian_core.testing.postgresql_service import NAME, SqlWorld
from planarian_core.testing.raw_mcp import RawClient

from .proxied import ARGUMENT, TOOL, Sent

_MAIN = "from planarian_core.cli.main import main; main()"


class WholeProxy:
    """A :class:`ProxiedSession` of processes. An undo is a rollback to the statepoint before the statement; doing it
    again is a rollback of the rollback.
    """

    def __init__(self, world: SqlWorld) -> None:
        self._world = world
        world.prepare()
        self._planarian = world.open()
        self._sandbox = self._planarian.sandbox()
        command = [sys.executable, "-c", _MAIN, "--home", str(world.home), "proxy", NAME, "--sandbox", self._sandbox.id]
        self._client = RawClient(command)
        self._client.initialize()
        self._before = ""
        self._made = 0

    def close(self) -> None:
        self._client.close()
        self._planarian.close()
        self._world.remove()

    def send(self, statement: str) -> Sent:
        self._before = self._planarian.snapshot(self._sandbox).id
        response = self._client.call(TOOL, {ARGUMENT: statement})
        if "error" in response:
            raise PlanarianError(f"a protocol error: {response['error']}", code="protocol-error")
        result = response["result"]
        effects = self._planarian.effects(self._sandbox)
        made, self._made = effects[self._made :], len(effects)
        own = _error_of(result)
        if own.get("error") == "call-refused":
            return Sent("refused", own["message"])
        if own:
            raise PlanarianError(own["message"], code=own["error"])
        text = " ".join(part.get("text", "") for part in result["content"])[:500]
        if result.get("isError"):
            return Sent("failed", text)
        return Sent("accepted", effect=made[-1]) if made else Sent("read")

    def undo(self, effect: Effect) -> Effect:
        self._planarian.rollback(self._sandbox, self._before)
        return self._is(effect, EffectState.UNDONE)

    def redo(self, effect: Effect) -> Effect:
        safety = self._planarian.registry.statepoints(self._sandbox.id)[-1]
        self._planarian.rollback(self._sandbox, safety)
        return self._is(effect, EffectState.APPLIED)

    def _is(self, effect: Effect, state: EffectState) -> Effect:
        found = self._planarian.effects(self._sandbox)[effect.number - 1]
        if found.state is not state:
            raise PlanarianError(f"the undo log says {found.state} instead of {state}", code="move-not-reported")
        return replace(effect, state=state)


def _error_of(result: dict[str, Any]) -> dict[str, Any]:
    """The proxy's own error, as data."""
    found = (result.get("_meta") or {}).get("planarian/error") or {}
    return dict(found)
