"""A connection to an MCP server for whoever isn't a proxy: synchronous, tools only (for settling and compensating).

Through the ``mcp`` SDK, 1.30 or 2.x, in a thread of its own. Results are the server's own, as they were on the wire.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from planarian_core.errors import ConfigurationError, PlanarianError, RemoteError
from planarian_core.http_answers import bounded
from planarian_core.interfaces import TargetServer, ToolResult, ToolTarget
from planarian_core.server_process import LastWords, answered_with_error, guarded_command, shown_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp import ClientSession

_TIMED_OUT = (408, -32001)
_CLOSED = (-32000, "Connection closed")
"""The SDK's own, of 1.x and 2.x."""
_SHOWN = 500
_NO_HANDSHAKE = (-32601, -32022)
"""How a server of the 2026 era says that it knows no ``initialize``."""


def open_target(server: TargetServer) -> ToolTarget:
    """Connect to an MCP server: start its command, or speak to its URL.

    Raises:
        ConfigurationError: the ``mcp`` package isn't installed.
        RemoteError: ``service-unreachable``.
    """
    try:
        import mcp  # noqa: F401  # whether it is there
    except ImportError as error:
        raise ConfigurationError(
            "remote services that are MCP servers need the mcp package",
            code="extra-missing",
            remedy="pip install 'planarian[mcp]'",
        ) from error
    return _McpTarget(server)


class _McpTarget:
    def __init__(self, server: TargetServer) -> None:
        from anyio.from_thread import start_blocking_portal

        self._server = server
        self._name = shown_name(server)
        self._words = LastWords(server)
        self._closing = threading.Lock()
        self._lost = ""
        with ExitStack() as stack:
            stack.callback(self._words.started)
            self._portal = stack.enter_context(start_blocking_portal("asyncio"))
            with self._unreachable("nothing was changed"):
                connection = self._portal.wrap_async_context_manager(_connection(server, self._words))
                self._session = stack.enter_context(_quietly_left(connection))
            self._stack = stack.pop_all()

    def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        from mcp import types

        params = types.CallToolRequestParams(name=tool, arguments=dict(arguments))
        with self._unreachable("the call may have had its effect; the next call, snapshot or rollback finds out"):
            return self._portal.call(self._request, types.CallToolRequest(method="tools/call", params=params))

    def tools(self) -> Sequence[Mapping[str, Any]]:
        from mcp import types

        found: list[Mapping[str, Any]] = []
        cursor: str | None = None
        with self._unreachable("nothing was changed"):
            while True:
                params = types.PaginatedRequestParams(cursor=cursor) if cursor else None
                page = self._portal.call(self._request, types.ListToolsRequest(method="tools/list", params=params))
                found += page.get("tools", ())
                cursor = page.get("nextCursor")
                if not cursor:
                    return found

    def close(self) -> None:
        with self._closing:
            self._stack.close()
            self._lost = self._lost or "it was closed"

    async def _request(self, request: Any) -> dict[str, Any]:
        timeout: Any = self._server.timeout
        if _is_first_sdk():
            timeout = timedelta(seconds=timeout)
        result = await self._session.send_request(request, _wire_model(), request_read_timeout_seconds=timeout)
        return dict(result.model_dump())

    @contextmanager
    def _unreachable(self, state: str) -> Iterator[None]:
        """Every failure inside as a RemoteError; ``state`` where nobody knows how far it came."""
        if self._lost:
            raise self._gone(self._lost, "nothing was changed")
        try:
            yield
        except PlanarianError:
            raise
        except _mcp_error() as error:
            raise self._answered(error.error.code, error.error.message, state) from error
        except ValueError as error:  # pydantic's
            text = f"{self._name} sent what is no result: {error}"[:_SHOWN]
            raise RemoteError(text, code="service-failed", state=state, remedy="see the server's own log") from error
        except Exception as error:  # whatever a transport raises, and groups of it
            self._lost = f"the connection was lost ({_innermost(error)})"
            raise self._gone(self._lost, state) from error

    def _answered(self, code: int, message: str, state: str) -> RemoteError:
        """The error for an error that the server, or the SDK for it, gave as the answer."""
        if code in _TIMED_OUT:
            return self._gone(f"no answer within {self._server.timeout:g} s", state)
        if (code, message) == _CLOSED:
            self._lost = "the connection was lost"
            return self._gone(self._lost, state)
        return answered_with_error(self._name, code, message, state)

    def _gone(self, why: str, state: str) -> RemoteError:
        said = self._words.text() if self._server.command else ""
        return RemoteError(
            f"{self._name} can't be reached: {why}" + (f"; it said: {said}" if said else ""),
            code="service-unreachable",
            state=state,
            remedy="see that the server runs: its command or url in planarian.toml",
        )


@contextmanager
def _quietly_left(connection: AbstractContextManager[ClientSession, Any]) -> Iterator[ClientSession]:
    """A connection whose end raises nothing: the other side may be gone, and that is all there was to do."""
    session = connection.__enter__()
    try:
        yield session
    finally:
        with suppress(Exception):
            connection.__exit__(None, None, None)


@asynccontextmanager
async def _connection(server: TargetServer, words: LastWords) -> AsyncIterator[ClientSession]:
    import anyio
    from mcp import ClientSession

    async with AsyncExitStack() as stack:
        read, write, *_ = await stack.enter_async_context(_streams(server, words))
        words.started()
        session = await stack.enter_async_context(ClientSession(read, write))
        with anyio.fail_after(server.timeout):
            try:
                await session.initialize()
            except _mcp_error() as error:
                if error.error.code not in _NO_HANDSHAKE or not hasattr(session, "discover"):
                    raise
                await session.discover()
        yield session


def _streams(server: TargetServer, words: LastWords) -> AbstractAsyncContextManager[Any]:
    from mcp.client.stdio import StdioServerParameters, stdio_client

    if server.url:
        return _http_streams(server)
    program, *arguments = guarded_command(server, bounded=True)
    parameters = StdioServerParameters(
        command=program, args=arguments, env=dict(server.env), cwd=server.cwd or None, encoding_error_handler="replace"
    )
    return stdio_client(parameters, errlog=words.file)


@asynccontextmanager
async def _http_streams(server: TargetServer) -> AsyncIterator[Any]:
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client

    async with (
        bounded(create_mcp_http_client(headers=dict(server.headers)), server.max_message) as client,
        streamable_http_client(server.url, http_client=client, **_unlimited()) as streams,
    ):
        yield streams


@cache
def _wire_model() -> Any:
    """A result with whatever it holds, as it came."""
    from pydantic import ConfigDict, create_model

    return create_model("Wire", __config__=ConfigDict(extra="allow"))


def _unlimited() -> Any:
    """The limit is ours; mcp 1.x has none."""
    return {} if _is_first_sdk() else {"max_sse_event_size": None}


def _is_first_sdk() -> bool:
    from mcp.shared import exceptions

    return not hasattr(exceptions, "MCPError")


def _mcp_error() -> Any:
    """The SDK's error of a peer; it has another name in each generation."""
    from mcp.shared import exceptions

    return getattr(exceptions, "MCPError", None) or exceptions.McpError  # type: ignore[attr-defined]  # of mcp 1.x


def _innermost(error: BaseException) -> str:
    """What happened, out of the groups in which anyio wraps it."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}".strip(": ")[:300]
