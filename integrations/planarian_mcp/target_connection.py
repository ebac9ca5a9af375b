"""A live connection to the target server, raw: results, errors and notifications are passed on as they come."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Protocol

import anyio
import anyio.abc
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
)
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.message import SessionMessage
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PROTOCOL_VERSION_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
    JSONRPCNotification,
)
from mcp_types.version import LATEST_MODERN_VERSION, MODERN_PROTOCOL_VERSIONS

from planarian_core.errors import RemoteError
from planarian_core.interfaces import TargetServer
from planarian_core.server_process import LastWords, shown_name
from planarian_mcp.pipe_requests import Lost, PipeRequests
from planarian_mcp.target_request import OnProgress, TargetRequest
from planarian_mcp.target_transport import connected
from planarian_mcp.wire import Raw

_CANCELLED = "notifications/cancelled"
_LOSS_SECONDS = 0.1
_HTTP_LOSSES = ((INVALID_REQUEST, "Session terminated"), (INTERNAL_ERROR, "Server returned an error response"))
"""What the SDK makes of a status that is an error: the server was started anew and knows nothing of our session."""


class Listener(Protocol):
    """What hears the target server."""

    async def asked(self, method: str, params: Mapping[str, Any] | None) -> Raw:
        """Answer a request of the server's (elicitation, sampling, roots); MCPError where that can't be."""

    def told(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Hear a notification; in the order in which they come, and before an answer that comes after it."""


class TargetConnection:
    """One connection. :meth:`run` holds it; any task of the same event loop may use it meanwhile."""

    def __init__(self, server: TargetServer, hello: Mapping[str, Any], listener: Listener) -> None:
        """``hello`` are the params of ``initialize``."""
        self.server = server
        self.hello = hello
        self.greeting: Raw = {}
        """The result of ``initialize``, or of ``server/discover`` from a server that knows no other."""
        self.version = ""
        self.lost = False
        self._listener = listener
        self._words = LastWords(server, echo=True)
        self._stop = anyio.Event()
        self._stopped = anyio.Event()
        self._tokens = itertools.count(1)
        self._under_way: dict[str, TargetRequest] = {}
        self._requests: PipeRequests | None = None
        """Where None, they are made through the dispatcher."""
        self._loop = asyncio.get_running_loop()

    @property
    def modern(self) -> bool:
        """Whether the server speaks the era of 2026, without handshakes."""
        return self.version in MODERN_PROTOCOL_VERSIONS

    @property
    def name(self) -> str:
        return shown_name(self.server)

    # --- its life ---

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Connect, say so, and stay until :meth:`close` or until the server is gone.

        Raises:
            RemoteError: ``service-unreachable``; only before it is connected.
        """
        try:
            streams = connected(self.server, self._words, self._hear, self._lose)
            async with streams as (read, write, self._requests), anyio.create_task_group() as tasks:
                self._dispatcher: JSONRPCDispatcher = JSONRPCDispatcher(read, write)
                await tasks.start(self._drive)
                with anyio.fail_after(self.server.timeout):
                    await self._greet()
                task_status.started()
                await self._stop.wait()
                tasks.cancel_scope.cancel()
        except RemoteError:
            raise
        except Exception as error:  # whatever a transport raises, and groups of it
            if not self.version:
                raise self.unreachable(_innermost(error), "nothing was changed") from error
        finally:
            self._lose()
            self._words.started()
            self._stopped.set()

    async def _drive(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        try:
            await self._dispatcher.run(
                lambda _, method, params: self._on_request(method, params),
                _never,
                self._notified,
                task_status=task_status,
            )
        finally:
            self._lose()

    def _lose(self) -> None:
        self.lost = True
        self._stop.set()

    async def close(self) -> None:
        """End it, its process too. Idempotent."""
        self._stop.set()
        await self._stopped.wait()

    async def _greet(self) -> None:
        try:
            greeting = await asyncio.wrap_future(self._send("initialize", self.hello, {"cancel_on_abandon": False}))
            self.version = str(greeting.get("protocolVersion"))
        except MCPError as error:
            if error.code not in (METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION):
                raise
            self.version = LATEST_MODERN_VERSION
            greeting = await asyncio.wrap_future(self._send(*self._enveloped("server/discover", {})))
        self.greeting = greeting

    async def initialized(self) -> None:
        """Tell a server of the handshake era that its greeting has arrived."""
        if not self.modern:
            await self.notify("notifications/initialized", None)

    # --- talking to it ---

    def request(self, method: str, params: Mapping[str, Any], on_progress: OnProgress | None = None) -> TargetRequest:
        """Make a request; from any thread.

        The time that it may take (``timeout`` of the server) counts from the last sign of life: progress, or a
        question to the harness.
        """
        token = f"planarian-{next(self._tokens)}"
        if on_progress is not None:
            params = {**params, "_meta": {**(params.get("_meta") or {}), "progressToken": token}}
        future = self._send(*self._enveloped(method, params))
        made = self._under_way[token] = TargetRequest(future, self.server.timeout, self.unreachable, on_progress)
        future.add_done_callback(lambda _: self._under_way.pop(token, None))
        return made

    def _send(self, method: str, params: Mapping[str, Any], options: CallOptions) -> Future[Raw]:
        if self._requests is not None:
            return self._requests.send(method, params)
        return asyncio.run_coroutine_threadsafe(self._send_by_dispatcher(method, params, options), self._loop)

    async def _send_by_dispatcher(self, method: str, params: Mapping[str, Any], options: CallOptions) -> Raw:
        try:
            return await self._dispatcher.send_raw_request(method, params, options)
        except MCPError as error:
            if await self._means_loss(error):
                raise Lost from error
            raise

    async def _means_loss(self, error: MCPError) -> bool:
        """Whether an error is the SDK's word for a lost connection; a server may use its code for other things."""
        if (error.code, error.message) in _HTTP_LOSSES:
            self._lose()
        if error.code == CONNECTION_CLOSED:
            with anyio.move_on_after(_LOSS_SECONDS):
                await self._stop.wait()
        return self.lost

    async def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Tell it something; lost where it is gone."""
        await self._dispatcher.notify(method, params, {"headers": self._headers()})

    def unreachable(self, why: str, state: str) -> RemoteError:
        said = self._words.text() if self.server.command else ""
        return RemoteError(
            f"{self.name} can't be reached: {why}" + (f"; it said: {said}" if said else ""),
            code="service-unreachable",
            state=state,
            remedy="see that the server runs: its command or url in planarian.toml; the next call tries again",
        )

    def _headers(self) -> dict[str, str]:
        return {MCP_PROTOCOL_VERSION_HEADER: self.version} if self.version else {}

    def _enveloped(self, method: str, params: Mapping[str, Any]) -> tuple[str, Mapping[str, Any], CallOptions]:
        """A request as the server's era wants it."""
        headers = self._headers()
        if self.modern:
            envelope = {
                PROTOCOL_VERSION_META_KEY: self.version,
                CLIENT_INFO_META_KEY: self.hello["clientInfo"],
                CLIENT_CAPABILITIES_META_KEY: self.hello["capabilities"],
            }
            params = {**params, "_meta": {**(params.get("_meta") or {}), **envelope}}
            headers[MCP_METHOD_HEADER] = method
            name = params.get(NAME_BEARING_METHODS.get(method, ""))
            if isinstance(name, str):
                headers[MCP_NAME_HEADER] = encode_header_value(name)
        return method, params, {"headers": headers}

    # --- hearing it ---

    async def _on_request(self, method: str, params: Mapping[str, Any] | None) -> Raw:
        if method == "ping":
            return {}
        for waiting in list(self._under_way.values()):  # whoever is asked may take his time
            waiting.wait_on()
        try:
            return await self._listener.asked(method, params)
        finally:
            for waiting in list(self._under_way.values()):
                waiting.lives()

    def _hear(self, message: SessionMessage) -> bool:
        """Notifications, where they come in: not after an answer that a thread waits for."""
        heard = message.message
        if not isinstance(heard, JSONRPCNotification) or heard.method == _CANCELLED:  # the dispatcher looks at that
            return False
        return self._notified(heard.method, heard.params)

    def _notified(self, method: str, params: Mapping[str, Any] | None) -> bool:
        """Progress goes to whoever waits for it."""
        if method != "notifications/progress":
            self._listener.told(method, params)
            return True
        token = (params or {}).get("progressToken")
        waiting = self._under_way.get(token) if isinstance(token, str) else None
        if waiting is not None:
            waiting.progressed(params or {})
        return True


async def _never(*_: Any) -> None:
    """For notifications that nobody took."""


def _innermost(error: BaseException) -> str:
    """What happened, out of the groups in which anyio wraps it."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    if isinstance(error, TimeoutError):
        return "it didn't greet in time"
    if isinstance(error, Lost):
        return str(error)
    return f"{type(error).__name__}: {error}".strip(": ")[:300]
