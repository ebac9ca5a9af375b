"""How messages get to a target server and back: a process that is started, or an address."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import anyio
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from planarian_core.errors import RemoteError
from planarian_core.http_answers import bounded
from planarian_core.interfaces import TargetServer
from planarian_core.server_process import LastWords, guarded_command
from planarian_mcp.wire import CHUNK, LineReader, LineWriter

Streams = tuple[Any, Any]
"""A read and a write stream, as the SDK's sessions take them."""

_GRACE = 2.0
_LOOK = 0.01


def connected(server: TargetServer, words: LastWords) -> AbstractAsyncContextManager[Streams]:
    """The streams to a server, which ends with the context.

    Raises:
        RemoteError: ``service-unreachable``: it can't be started.
    """
    return _address(server) if server.url else _process(server, words)


@asynccontextmanager
async def _address(server: TargetServer) -> AsyncIterator[Streams]:
    async with (
        bounded(create_mcp_http_client(headers=dict(server.headers)), server.max_message) as client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=None) as streams,
    ):
        yield streams


@asynccontextmanager
async def _process(server: TargetServer, words: LastWords) -> AsyncIterator[Streams]:
    command = guarded_command(server)
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=words.file,
            cwd=server.cwd or None,
            env=get_default_environment() | dict(server.env),
            start_new_session=True,
            limit=CHUNK,
        )
    except OSError as error:
        raise RemoteError(
            f"the target server can't be started: {error}",
            code="service-unreachable",
            state="nothing was changed",
            remedy="mend command and cwd in planarian.toml",
        ) from error
    words.started()
    try:
        assert process.stdout is not None
        assert process.stdin is not None
        yield LineReader(process.stdout, server.max_message), LineWriter(process.stdin)
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """As MCP has it: close its input, then SIGTERM, then SIGKILL, each after a while; the whole group."""
    assert process.stdin is not None
    process.stdin.close()
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        deadline = anyio.current_time() + _GRACE
        while process.returncode is None and anyio.current_time() < deadline:
            await anyio.sleep(_LOOK)
        if process.returncode is not None:
            return
