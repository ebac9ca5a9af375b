"""One call of a tool on its way: from the harness, through the runtime in a worker thread, to the target server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from secrets import token_hex
from typing import Any, Protocol, TypeVar

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types.methods import is_input_required

from planarian_core.errors import RemoteError
from planarian_core.interfaces import ToolResult
from planarian_core.model import RemoteCall, RemoteEffect
from planarian_core.server_process import answered_with_error
from planarian_mcp.consent import approval_request, approved
from planarian_mcp.target_connection import TargetConnection
from planarian_mcp.target_request import UNKNOWN_END, OnProgress, TargetRequest
from planarian_mcp.wire import Raw

T = TypeVar("T")

_APPROVE = "planarian/approve"
_PATIENCE = 300.0
_MOST_ASKED = 1000
_asked: dict[str, bool] = {}
"""The states of questions to harnesses of 2026 that were not answered yet, oldest first."""


class Harness(Protocol):
    """The way back to whoever made the request."""

    modern: bool
    """Whether it speaks the era of 2026, in which it can't be asked while a request is under way."""
    can_elicit: bool

    async def ask(self, method: str, params: Mapping[str, Any] | None) -> Raw:
        """Ask the harness something while its request is under way."""

    async def tell(self, method: str, params: Mapping[str, Any] | None) -> None: ...


class NeedsInput(RemoteError):
    """The call can't go on without an answer from the harness, which has to make it again with that: nothing was done.
    ``result`` is what MCP of 2026 calls an input-required result.
    """

    def __init__(self, result: Mapping[str, Any]) -> None:
        super().__init__("the harness is asked first", code="service-error", state="nothing was changed")
        self.result = result


class ToolCall:
    """A call, and the target (:class:`planarian_core.interfaces.ToolTarget`) through which it is made."""

    def __init__(
        self,
        harness: Harness,
        connected: Callable[[], TargetConnection | None],
        connect: Callable[[], Coroutine[Any, Any, TargetConnection]],
        params: Mapping[str, Any],
        on_progress: OnProgress | None,
    ) -> None:
        """``params`` are those of ``tools/call``; ``_meta`` is handed to the target with the agent's own call.
        ``connected`` gives the connection where there is one.
        """
        self.harness = harness
        self.name: str = params["name"]
        self.arguments: Mapping[str, Any] = params.get("arguments") or {}
        self._answers: Mapping[str, Any] = params.get("inputResponses") or {}
        self._state = params.get("requestState")
        self._own = {key: params[key] for key in ("_meta", "inputResponses", "requestState") if params.get(key)}
        self._connected = connected
        self._connect = connect
        self._on_progress = on_progress
        self._loop = asyncio.get_running_loop()
        self._scope = anyio.CancelScope()
        self._request: TargetRequest | None = None
        self._cancelled = False

    # --- from the worker's thread ---

    def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        own = tool == self.name
        params = {"name": tool, "arguments": dict(arguments), **(self._own if own else {})}
        while True:
            result = self._ask("tools/call", params, self._on_progress if own else None)
            if not is_input_required(result):
                return result
            if self.harness.modern:
                raise NeedsInput(result)
            questions = (result.get("inputRequests") or {}).items()
            answers = {key: self.wait_for(self._answer(asked)) for key, asked in questions}
            params |= {"inputResponses": answers, "requestState": result.get("requestState")}

    def tools(self) -> Sequence[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = []
        cursor: Any = None
        while True:
            page = self._ask("tools/list", {"cursor": cursor} if cursor else {})
            found += page.get("tools") or ()
            cursor = page.get("nextCursor")
            if not cursor:
                return found

    def close(self) -> None:
        return

    def ask(self, effect: RemoteEffect) -> bool | None:
        """Ask the person at the harness about a pivot, where the harness can; None where nobody answers."""
        if not self.harness.can_elicit:
            return None
        request = {"method": "elicitation/create", "params": approval_request(effect)}
        if not self.harness.modern:
            return approved(self.wait_for(self._elicit(request)))
        wanted = f"{_APPROVE} {RemoteCall(self.name, self.arguments).digest} "
        given = self._state if isinstance(self._state, str) and self._state.startswith(wanted) else ""
        if _APPROVE in self._answers and _asked.pop(given, False):  # good for one call: a request may come twice
            return approved(self._answers[_APPROVE])
        state = f"{wanted}{token_hex(16)}"
        _asked[state] = True
        while len(_asked) > _MOST_ASKED:
            _asked.pop(next(iter(_asked)), None)
        raise NeedsInput({"resultType": "input_required", "inputRequests": {_APPROVE: request}, "requestState": state})

    def wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Have something done in the event loop, and wait."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _ask(self, method: str, params: Mapping[str, Any], on_progress: OnProgress | None = None) -> Raw:
        connection = self._connected() or self.wait_for(self._connect())
        try:
            self._request = connection.request(method, params, on_progress)
            if self._cancelled:
                self._request.cancel()
            return self._request.result()
        except MCPError as error:
            raise answered_with_error(connection.name, error.code, error.message, UNKNOWN_END) from error

    # --- in the event loop ---

    def cancel(self) -> None:
        """The harness doesn't want it any more: what is under way at the target is cancelled, nothing more is sent."""
        self._cancelled = True
        self._scope.cancel()
        if self._request is not None:
            self._request.cancel()

    async def _elicit(self, request: Mapping[str, Any]) -> Raw:
        with anyio.move_on_after(_PATIENCE) as self._scope, suppress(MCPError):
            return await self._answer(request)
        return {}

    async def _answer(self, asked: Mapping[str, Any]) -> Raw:
        return await self.harness.ask(str(asked.get("method")), asked.get("params"))
