"""Serving a harness: over our standard streams, or over HTTP to any number of them."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
import warnings
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
import anyio.abc
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import ListenHandler
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp_types import INVALID_REQUEST, METHOD_NOT_FOUND
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from planarian_core import Planarian, Sandbox, __version__
from planarian_mcp import shapes
from planarian_mcp.face import Face, Service
from planarian_mcp.wire import LineReader, LineWriter

_THE_SDKS_OWN = ("ping", "subscriptions/listen")
_READS = (
    "completion/complete",
    "logging/setLevel",
    "prompts/get",
    "prompts/list",
    "resources/list",
    "resources/read",
    "resources/subscribe",
    "resources/templates/list",
    "resources/unsubscribe",
)
"""What is passed on. Anything else that a server might offer beside tools is refused: it could change something."""
_STATE = "planarian"


class Proxy:
    """One service of one sandbox, offered to harnesses."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._modern: Face | None = None
        self.server: Server[Any] = Server(
            service.name, version=__version__, on_subscriptions_listen=ListenHandler(service.bus)
        )
        self.server.middleware[:] = [self._route]

    async def close(self) -> None:
        if self._modern is not None:
            await self._modern.close()

    async def _route(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Every message of a harness comes by here; what we answer is not looked at any further by the SDK."""
        modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        params = ctx.params or {}
        if ctx.request_id is None:
            await self._notified(ctx, modern)
        if ctx.request_id is None or ctx.method in _THE_SDKS_OWN:
            return await call_next(ctx)
        face = self._face(ctx, modern)
        if ctx.method == "initialize":
            return await face.initialize(params)
        if ctx.method == "server/discover":
            return await face.discover()
        if not modern and ctx.session.client_params is None:
            raise MCPError(INVALID_REQUEST, "Received request before initialization was complete")
        answered = await self._answered(face, ctx, shapes.without_envelope(params) if modern else params)
        return shapes.for_era(ctx.method, answered, modern=modern)

    async def _answered(
        self, face: Face, ctx: ServerRequestContext[Any, Any], params: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        if ctx.method == "tools/list":
            return await face.list_tools(params)
        if ctx.method == "tools/call":
            return await face.call_tool(ctx, params)
        if ctx.method in _READS:
            return await face.forward(ctx, ctx.method, params)
        raise MCPError(METHOD_NOT_FOUND, "Method not found", ctx.method)

    async def _notified(self, ctx: ServerRequestContext[Any, Any], modern: bool) -> None:
        if ctx.method == "notifications/initialized" and not modern:
            await self._face(ctx, modern).harness_is_ready()
        elif ctx.method == "notifications/roots/list_changed" and not modern:
            await self._face(ctx, modern).tell_target(ctx.method, ctx.params)

    def _face(self, ctx: ServerRequestContext[Any, Any], modern: bool) -> Face:
        """The harness's own, kept with its connection; those of 2026 have none, and share one."""
        if modern:
            self._modern = self._modern or Face(self._service, None)
            return self._modern
        connection: Connection = ctx.session._connection  # not public, though its state and exit_stack are meant to be
        face: Face | None = connection.state.get(_STATE)
        if face is None:
            face = connection.state[_STATE] = Face(self._service, connection)
            connection.exit_stack.push_async_callback(face.close)
        return face


@asynccontextmanager
async def opened_proxy(planarian: Planarian, sandbox: Sandbox, name: str, *, approve_all: bool) -> AsyncIterator[Proxy]:
    """A proxy, whose connections end with it."""
    warnings.filterwarnings("ignore", category=MCPDeprecationWarning)
    planarian.remote_session(sandbox, name)  # that there is no such service is said before anything is served
    async with anyio.create_task_group() as tasks:
        service = Service(planarian, sandbox, name, tasks, approve_all=approve_all)
        proxy = Proxy(service)
        try:
            yield proxy
        finally:
            with anyio.CancelScope(shield=True):
                await proxy.close()
            tasks.cancel_scope.cancel()


async def serve_stdio(planarian: Planarian, sandbox: Sandbox, name: str, *, approve_all: bool) -> int | None:
    """Serve until the harness closes our standard input (None), or a signal ends it (its number)."""
    ended_by: list[int] = []
    async with (
        opened_proxy(planarian, sandbox, name, approve_all=approve_all) as proxy,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(_cancel_at_signal, tasks.cancel_scope, ended_by)
        async with _standard_streams() as (read, write):
            await proxy.server.run(read, write, proxy.server.create_initialization_options())
        tasks.cancel_scope.cancel()
    return ended_by[0] if ended_by else None


async def _cancel_at_signal(scope: anyio.CancelScope, ended_by: list[int]) -> None:
    ended_by.append(await wait_for_signal())
    scope.cancel()


async def wait_for_signal() -> int:
    """The number of the next signal that means that we are to end."""
    heard = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    with anyio.open_signal_receiver(*(s for s in heard if signal.getsignal(s) is not signal.SIG_IGN)) as signals:
        async for number in signals:
            return number
    raise AssertionError("signals never end")


def _standard_streams() -> AbstractAsyncContextManager[Any]:
    """Our standard input and output; the SDK's own where they are files."""
    kinds = [os.fstat(descriptor).st_mode for descriptor in (0, 1)]
    if all(stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) for kind in kinds):
        return _pipes()
    return stdio_server()


@asynccontextmanager
async def _pipes() -> AsyncIterator[tuple[LineReader, LineWriter]]:
    """The pipes at 0 and 1, which whatever else prints meanwhile doesn't get at."""
    loop = asyncio.get_running_loop()
    sys.stdout.flush()
    source, sink = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.dup2(2, 1)
    os.close(nowhere)
    reader, writer = LineReader(), LineWriter(sink)
    await loop.connect_read_pipe(lambda: reader, os.fdopen(source, "rb", buffering=0))
    try:
        yield reader, writer
    finally:
        reader.close()
        await writer.aclose()
