"""Serving harnesses over streamable HTTP, on this machine unless asked otherwise."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import anyio
import uvicorn
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from planarian_core import Planarian, Sandbox
from planarian_core.cli.output import remark
from planarian_core.errors import ConfigurationError
from planarian_mcp.serving import Proxy, opened_proxy, wait_for_signal

PATH = "/mcp"
_LARGEST_REQUEST = 256 * 1024 * 1024
_MOST_SESSIONS = 100
_SECONDS_TO_END = 2


@dataclass(frozen=True)
class Address:
    """Where to listen, and who may ask: whoever sends ``token``, or anybody on this machine if it is empty."""

    host: str
    port: int
    token: str = ""

    @property
    def shown(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


def address(text: str, token: str, *, any_host: bool) -> Address:
    """``HOST:PORT``, ``:PORT`` or ``PORT``; port 0 is any that is free.

    Raises:
        ConfigurationError: it is none, or leads beyond this machine without being meant to, or without a token.
    """
    host, _, port = text.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdecimal() or int(port) > 65535:
        raise ConfigurationError(f"{text!r} is no address", remedy="--http 127.0.0.1:8400")
    if not _is_loopback(host):
        if not any_host:
            raise ConfigurationError(
                f"{host} can be reached from other machines",
                remedy="--http 127.0.0.1:PORT; or, if that is what you want, --any-host and --token-file",
            )
        if not token:
            raise ConfigurationError(
                "whoever reaches the proxy can change what it leads to", remedy="give a token: --token-file FILE"
            )
    return Address(host, int(port), token)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def serve_http(planarian: Planarian, sandbox: Sandbox, name: str, at: Address, *, approve_all: bool) -> int:
    """Serve until a signal ends it; its number."""
    with _listening(at) as listening:
        port = listening.getsockname()[1]
        async with opened_proxy(planarian, sandbox, name, approve_all=approve_all) as proxy:
            remark(f"planarian: {name} is served at http://{at.shown}:{port}{PATH}")
            config = uvicorn.Config(
                _app(proxy, at, port),
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=_SECONDS_TO_END,
                lifespan="on",
            )
            server = _Server(config)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: server.serve(sockets=[listening]))
                ended_by = await wait_for_signal()
                server.should_exit = True
        return ended_by


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are heard elsewhere."""
        yield


def _listening(at: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in at.host else socket.AF_INET
    # With its protocol said, or asyncio would not turn off Nagle's algorithm: 40 ms for each answer.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((at.host, at.port))
        listening.listen()
        return listening
    except OSError as error:
        listening.close()
        raise ConfigurationError(
            f"{at.shown}:{at.port} can't be listened at: {error.strerror or error}", remedy="choose another port"
        ) from error


def _app(proxy: Proxy, at: Address, port: int) -> ASGIApp:
    names = {at.shown, *(("127.0.0.1", "localhost", "[::1]") if _is_loopback(at.host) else ())}
    security = TransportSecuritySettings(
        # Beyond this machine nobody knows our names; there the token keeps pages of other sites out.
        enable_dns_rebinding_protection=_is_loopback(at.host),
        allowed_hosts=[f"{host}:{port}" for host in names],
        allowed_origins=[f"http://{host}:{port}" for host in names],
    )
    manager = StreamableHTTPSessionManager(
        proxy.server,
        security_settings=security,
        max_request_body_size=_LARGEST_REQUEST,
        max_sessions=_MOST_SESSIONS,
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with manager.run():
            yield

    served: ASGIApp = StreamableHTTPASGIApp(manager)
    if at.token:
        served = _Guarded(served, at.token)
    return Starlette(routes=[Route(PATH, endpoint=served)], lifespan=lifespan)


class _Guarded:
    """Answers only requests with the bearer token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._wanted = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope["headers"]).get(b"authorization", b"")
        if hmac.compare_digest(given, self._wanted):
            await self._app(scope, receive, send)
            return
        await Response(status_code=401, headers={"WWW-Authenticate": "Bearer"})(scope, receive, send)
