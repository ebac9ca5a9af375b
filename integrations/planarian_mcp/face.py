"""The proxy as one harness sees it: the target server's own greeting, tools, results, errors and notifications.

What is listed, forwarded and called is decided here; how a call is made so that it can be undone is the runtime's
(:class:`planarian_core.remote_session.RemoteSession`).
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping
from typing import Any

import anyio
import anyio.abc
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.subscriptions import InMemorySubscriptionBus
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND

from planarian_core import Planarian, Sandbox
from planarian_core.errors import PlanarianError, RemoteError
from planarian_core.interfaces import ServesBranches, TargetServer, ToolTarget
from planarian_core.model import CallClass, RemoteEffect
from planarian_core.remote_session import RemoteSession
from planarian_mcp import shapes
from planarian_mcp.harness import HarnessChannel, change_event
from planarian_mcp.target_connection import TargetConnection
from planarian_mcp.target_request import OnProgress
from planarian_mcp.tool_call import NeedsInput, ToolCall
from planarian_mcp.wire import Raw
from planarian_mcp.worker import Worker

_QUESTIONS = ("elicitation/create", "sampling/createMessage", "roots/list")


class Service:
    """What is proxied: a service for a sandbox. ``tasks`` is where connections live."""

    def __init__(
        self, planarian: Planarian, sandbox: Sandbox, name: str, tasks: anyio.abc.TaskGroup, *, approve_all: bool
    ) -> None:
        self.name = name
        self.tasks = tasks
        self.bus = InMemorySubscriptionBus()
        self._planarian, self._sandbox, self._approve_all = planarian, sandbox, approve_all

    def session(self, ask: Any = None) -> RemoteSession:
        return self._planarian.remote_session(self._sandbox, self.name, approve_all=self._approve_all, ask=ask)


class Face:
    """What one harness is connected to; ``connection`` is None for all of those that speak the era of 2026, which has
    no sessions: they share one.
    """

    def __init__(self, service: Service, connection: Connection | None) -> None:
        self._service = service
        self._harness = connection
        self.modern = connection is None
        self._session = service.session(self._ask)
        self._kind = service.session().kind  # one of its own: the worker's belongs to the worker
        self._worker = Worker(f"planarian-{service.name}")
        self._hello: Mapping[str, Any] = shapes.OUR_HELLO
        self._greeted = self.modern
        self._target: TargetConnection | None = None
        self._connecting = anyio.Lock()
        self._direct: ToolTarget | None = None
        self._current: ToolCall | None = None
        self._annotations: dict[str, Mapping[str, Any]] = {}

    async def close(self) -> None:
        """Let go of the target server. Idempotent."""
        self._worker.close()
        if self._target is not None:
            await self._target.close()

    # --- the beginning ---

    async def initialize(self, params: Mapping[str, Any]) -> Raw:
        self._hello = shapes.hello(params)
        if self._kind.server is None:
            return shapes.own_greeting(self._service.name, params)
        return shapes.handshake_greeting(await self._reached(), params, self._service.name)

    async def discover(self) -> Raw:
        if self._kind.server is None:
            return shapes.own_discovery(self._service.name)
        return shapes.discovery(await self._reached())

    async def harness_is_ready(self) -> None:
        """The harness has got the greeting: the target server hears it."""
        self._greeted = True
        if self._target is not None:
            await self._target.initialized()

    async def _reached(self) -> TargetConnection:
        """As :meth:`_connected`, with a failure as MCP's own error, where there is no tool to report it."""
        try:
            return await self._connected()
        except PlanarianError as error:
            raise MCPError(INTERNAL_ERROR, str(error), error.to_dict()) from error

    async def _connected(self) -> TargetConnection:
        """The connection to the target server; a new one where the last was lost."""
        async with self._connecting:
            if (target := self._at_hand()) is not None:
                return target
            again = self._target is not None
            target = TargetConnection(await self._server(), self._hello, self)
            await self._service.tasks.start(target.run)
            if again or self._greeted:
                await target.initialized()
            self._target = target
            return target

    def _at_hand(self) -> TargetConnection | None:
        """The connection that there is; from any thread."""
        target = self._target
        return target if target is not None and not target.lost else None

    async def _server(self) -> TargetServer:
        if isinstance(self._kind, ServesBranches):
            return await anyio.to_thread.run_sync(self._kind.server_for_branch)
        assert self._kind.server is not None
        return self._kind.server

    # --- tools ---

    async def list_tools(self, params: Mapping[str, Any]) -> Raw:
        """The target's own list, page by page, with our ``_meta``; without tools of which no call could succeed."""
        if self._kind.server is None:
            result: Raw = {"tools": await self._worker.run(lambda: list(self._direct_target().tools()))}
        else:
            result = await self._forwarded("tools/list", params)
        listed = []
        for tool in result.get("tools") or ():
            self._annotations[tool["name"]] = tool.get("annotations") or {}
            verdict = self._kind.describe(tool["name"], self._annotations[tool["name"]])
            if verdict.call_class is not CallClass.REFUSED:
                listed.append(shapes.described(tool, verdict))
        return {**result, "tools": listed}

    async def call_tool(self, ctx: ServerRequestContext[Any, Any], params: Mapping[str, Any]) -> Raw:
        harness = HarnessChannel(ctx)
        name = params.get("name")
        if not isinstance(name, str) or not isinstance(params.get("arguments") or {}, Mapping):
            raise MCPError(INVALID_PARAMS, "Invalid request parameters")
        call = ToolCall(harness, self._at_hand, self._connected, params, self._progress(harness, params))
        try:
            self._check_not_hidden(name)
            return dict(await self._worker.run(lambda: self._make(call)))
        except anyio.get_cancelled_exc_class():
            call.cancel()
            raise
        except NeedsInput as needed:
            return dict(needed.result)
        except RemoteError as error:
            if isinstance(error.__cause__, MCPError) and error.code in ("service-error", "service-failed"):
                raise error.__cause__ from error  # the target's own, as it came
            return shapes.tool_error(error)
        except MCPError:
            raise
        except PlanarianError as error:
            return shapes.tool_error(error)
        except Exception as error:  # a bug here or in a plugin: an agent must be able to read that it is one
            traceback.print_exception(error, file=sys.stderr)
            return shapes.tool_error(PlanarianError(f"unexpected {type(error).__name__}: {error}", code="internal"))

    def _check_not_hidden(self, tool: str) -> None:
        verdict = self._kind.describe(tool, self._annotations.get(tool, {}))
        if verdict.call_class is CallClass.REFUSED:
            raise RemoteError(f"{tool} was refused: {verdict.reason}", code="call-refused", state="nothing was changed")

    def _make(self, call: ToolCall) -> Mapping[str, Any]:
        """In the worker's thread."""
        self._current = call
        try:
            target = self._direct_target() if self._kind.server is None else call
            return self._session.call(call.name, call.arguments, target)
        except RemoteError as error:
            if error.code == "service-unreachable" and self._direct is not None:
                self._direct.close()
                self._direct = None
            raise
        finally:
            self._current = None

    def _direct_target(self) -> ToolTarget:
        if self._direct is None:
            self._direct = self._session.kind.connect()
        return self._direct

    def _ask(self, effect: RemoteEffect) -> bool | None:
        return self._current.ask(effect) if self._current is not None else None

    # --- what is only passed on ---

    async def forward(self, ctx: ServerRequestContext[Any, Any], method: str, params: Mapping[str, Any]) -> Raw:
        """A request that reads, as the target answers it."""
        if self._kind.server is None:
            raise MCPError(METHOD_NOT_FOUND, "Method not found", method)
        return await self._forwarded(method, params, self._progress(HarnessChannel(ctx), params))

    async def _forwarded(self, method: str, params: Mapping[str, Any], on_progress: OnProgress | None = None) -> Raw:
        target = await self._reached()
        try:
            return await target.request(method, params, on_progress).answer()
        except RemoteError as error:
            raise MCPError(INTERNAL_ERROR, str(error), error.to_dict()) from error

    async def tell_target(self, method: str, params: Mapping[str, Any] | None) -> None:
        if self._target is not None and not self._target.lost:
            await self._target.notify(method, params)

    def _progress(self, harness: HarnessChannel, params: Mapping[str, Any]) -> OnProgress | None:
        token = (params.get("_meta") or {}).get("progressToken")
        if token is None:
            return None

        def on_progress(progress: Mapping[str, Any]) -> None:
            self._service.tasks.start_soon(harness.tell, "notifications/progress", {**progress, "progressToken": token})

        return on_progress

    # --- what the target server says by itself (:class:`planarian_mcp.target_connection.Listener`) ---

    async def asked(self, method: str, params: Mapping[str, Any] | None) -> Raw:
        if method not in _QUESTIONS or self.modern:
            raise MCPError(METHOD_NOT_FOUND, "Method not found", method)
        if self._current is not None:
            return await self._current.harness.ask(method, params)
        assert self._harness is not None
        return await self._harness.send_raw_request(method, params)

    def told(self, method: str, params: Mapping[str, Any] | None) -> None:
        if method == "notifications/message" and (current := self._current) is not None:
            self._service.tasks.start_soon(current.harness.tell, method, params)
        elif self._harness is not None:
            self._service.tasks.start_soon(self._harness.notify, method, params)
        elif (event := change_event(method, params)) is not None:
            self._service.tasks.start_soon(self._service.bus.publish, event)
