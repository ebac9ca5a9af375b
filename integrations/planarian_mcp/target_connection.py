"""A live connection to the target server, raw: results, errors and notifications are passed on as they come."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
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
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PROTOCOL_VERSION_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
)
from mcp_types.version import LATEST_MODERN_VERSION, MODERN_PROTOCOL_VERSIONS

from planarian_core.errors import RemoteError
from planarian_core.interfaces import TargetServer
from planarian_core.server_process import LastWords, shown_name
from planarian_mcp.target_transport import connected

Raw = dict[str, Any]
"""Params or a result, as they are on the wire."""
OnProgress = Callable[[Mapping[str, Any]], None]

_LOSS_SECONDS = 0.1
_HTTP_LOSSES = ((INVALID_REQUEST, "Session terminated"), (INTERNAL_ERROR, "Server returned an error response"))
"""What the SDK makes of a status that is an error: the server was started anew and knows nothing of our session."""
_UNKNOWN_END = "the call may have had its effect; the next call, snapshot or rollback finds out"


class Listener(Protocol):
    """What hears the target server."""

    async def asked(self, method: str, params: Mapping[str, Any] | None) -> Raw:
        """Answer a request of the server's (elicitation, sampling, roots); MCPError where that can't be."""

    async def told(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Hear a notification; in the order in which they come."""


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
        self._progress: dict[str, OnProgress] = {}
        self._scopes: dict[str, anyio.CancelScope] = {}

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
            async with connected(self.server, self._words) as (read, write), anyio.create_task_group() as tasks:
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
            self.lost = True
            self._words.started()
            self._stopped.set()

    async def _drive(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        try:
            await self._dispatcher.run(
                lambda _, method, params: self._on_request(method, params),
                lambda _, method, params: self._listener.told(method, params),
                self._intercept,
                task_status=task_status,
            )
        finally:
            self.lost = True
            self._stop.set()

    async def close(self) -> None:
        """End it, its process too. Idempotent."""
        self._stop.set()
        await self._stopped.wait()

    async def _greet(self) -> None:
        try:
            greeting = await self._dispatcher.send_raw_request("initialize", self.hello, {"cancel_on_abandon": False})
            self.version = str(greeting.get("protocolVersion"))
        except MCPError as error:
            if error.code not in (METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION):
                raise
            self.version = LATEST_MODERN_VERSION
            greeting = await self._dispatcher.send_raw_request(*self._enveloped("server/discover", {}))
        self.greeting = greeting

    async def initialized(self) -> None:
        """Tell a server of the handshake era that its greeting has arrived."""
        if not self.modern:
            await self.notify("notifications/initialized", None)

    # --- talking to it ---

    async def request(self, method: str, params: Mapping[str, Any], on_progress: OnProgress | None = None) -> Raw:
        """Make a request and wait; a cancelled one is cancelled there too.

        The time that a request may take counts from the last sign of life: progress, or a question to the harness.

        Raises:
            MCPError: the server's own error.
            RemoteError: ``service-unreachable``: lost on the way, or no answer in time.
        """
        token = f"planarian-{next(self._tokens)}"
        if on_progress is not None:
            self._progress[token] = on_progress
            params = {**params, "_meta": {**(params.get("_meta") or {}), "progressToken": token}}
        try:
            with anyio.move_on_after(self.server.timeout) as scope:
                self._scopes[token] = scope
                return await self._dispatcher.send_raw_request(*self._enveloped(method, params))
        except MCPError as error:
            if await self._means_loss(error):
                raise self.unreachable("the connection was lost", _UNKNOWN_END) from error
            raise
        finally:
            self._progress.pop(token, None)
            self._scopes.pop(token, None)
        raise self.unreachable(f"no answer within {self.server.timeout:g} s", _UNKNOWN_END)

    async def _means_loss(self, error: MCPError) -> bool:
        """Whether an error is the SDK's word for a lost connection; a server may use its code for other things."""
        if self.server.url and (error.code, error.message) in _HTTP_LOSSES:
            self.lost = True
            self._stop.set()
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
        for scope in self._scopes.values():  # whoever is asked may take his time
            scope.deadline = float("inf")
        try:
            return await self._listener.asked(method, params)
        finally:
            self._postpone(*self._scopes)

    def _intercept(self, method: str, params: Mapping[str, Any] | None) -> bool:
        """Progress goes to whoever waits for it, in the order in which it came."""
        if method != "notifications/progress":
            return False
        token = (params or {}).get("progressToken")
        on_progress = self._progress.get(token) if isinstance(token, str) else None
        if on_progress is not None:
            self._postpone(str(token))
            on_progress(params or {})
        return True

    def _postpone(self, *tokens: str) -> None:
        for token in tokens:
            if token in self._scopes:
                self._scopes[token].deadline = anyio.current_time() + self.server.timeout


def _innermost(error: BaseException) -> str:
    """What happened, out of the groups in which anyio wraps it."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    if isinstance(error, TimeoutError):
        return "it didn't greet in time"
    return f"{type(error).__name__}: {error}".strip(": ")[:300]
