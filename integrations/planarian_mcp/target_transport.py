"""How messages get to a target server and back: a process that is started, or an address."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import anyio
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.message import SessionMessage

from planarian_core.errors import RemoteError
from planarian_core.http_answers import bounded
from planarian_core.interfaces import TargetServer
from planarian_core.server_process import LastWords, guarded_command
from planarian_mcp.pipe_requests import PipeRequests
from planarian_mcp.wire import LineReader, LineWriter

Streams = tuple[Any, Any, PipeRequests | None]
"""A read and a write stream, as the SDK's sessions take them; and how to ask, where that isn't a session's task."""

_GRACE = 2.0
_LOOK = 0.01


def connected(
    server: TargetServer, words: LastWords, hear: Callable[[SessionMessage], bool], ended: Callable[[], None]
) -> AbstractAsyncContextManager[Streams]:
    """The streams to a server, which ends with the context. Of pipes, ``hear`` gets each message as it comes in (true:
    it keeps it), and ``ended`` is called at the end.

    Raises:
        RemoteError: ``service-unreachable``: it can't be started.
    """
    return _address(server) if server.url else _process(server, words, hear, ended)


@asynccontextmanager
async def _address(server: TargetServer) -> AsyncIterator[Streams]:
    async with (
        bounded(create_mcp_http_client(headers=dict(server.headers)), server.max_message) as client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=None) as streams,
    ):
        yield (*streams, None)


@asynccontextmanager
async def _process(
    server: TargetServer, words: LastWords, hear: Callable[[SessionMessage], bool], ended: Callable[[], None]
) -> AsyncIterator[Streams]:
    command = guarded_command(server)
    its_input, to_it = os.pipe()
    from_it, its_output = os.pipe()
    writer = LineWriter(to_it)
    requests = PipeRequests(writer)

    def take(message: SessionMessage) -> bool:
        return hear(message) or requests.take(message)

    def over() -> None:
        ended()
        requests.end()

    reader = LineReader(server.max_message, take, over)
    await asyncio.get_running_loop().connect_read_pipe(lambda: reader, os.fdopen(from_it, "rb", buffering=0))
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=its_input,
            stdout=its_output,
            stderr=words.file,
            cwd=server.cwd or None,
            env=get_default_environment() | dict(server.env),
            start_new_session=True,
        )
    except OSError as error:
        writer.close()
        reader.close()
        raise RemoteError(
            f"the target server can't be started: {error}",
            code="service-unreachable",
            state="nothing was changed",
            remedy="mend command and cwd in planarian.toml",
        ) from error
    finally:
        os.close(its_input)
        os.close(its_output)
    words.started()
    try:
        yield reader, writer, requests
    finally:
        writer.close()
        with anyio.CancelScope(shield=True):
            await _end(process)
        reader.close()


async def _end(process: asyncio.subprocess.Process) -> None:
    """As MCP has it: its input was closed; then SIGTERM, then SIGKILL, each after a while; the whole group."""
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        deadline = anyio.current_time() + _GRACE
        while process.returncode is None and anyio.current_time() < deadline:
            await anyio.sleep(_LOOK)
        if process.returncode is not None:
            return
