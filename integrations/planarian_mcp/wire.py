"""MCP over pipes: one JSON message a line, of any length, read and written without a thread or a task between.

The SDK's own stdio transports read through a thread that can't be interrupted, and collect a long line in quadratic
time. Text that is no valid Unicode (a lone surrogate, escaped) comes through.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Self

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import (
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, from_json, to_json

from planarian_core.message_lines import MessageLines, TooLong

Raw = dict[str, Any]
"""Params or a result, as they are on the wire."""

_MOST_WAITING = 1000
"""Messages that are held for a session before no more are read."""
_MOST_UNWRITTEN = 1 << 18
"""Bytes that a session may send ahead of the other side."""
_PARTING = 1.0
"""Seconds for what is still to be written at the end."""
_LOOK = 0.005


def parse(line: bytes) -> SessionMessage | Exception:
    """The message of a line; an exception as a value for one that is none, as the SDK's sessions expect it."""
    try:
        raw = _from_json(line)
        try:
            return SessionMessage(_kind(raw).model_validate(raw, by_name=False))
        except ValidationError:
            return SessionMessage(jsonrpc_message_adapter.validate_python(raw, by_name=False))
    except (ValueError, RecursionError) as error:
        return error


def _from_json(line: bytes) -> Any:
    try:
        return from_json(line)
    except ValueError:
        return json.loads(line)


def _kind(raw: Any) -> type[JSONRPCRequest | JSONRPCNotification | JSONRPCResponse | JSONRPCError]:
    """What a message looks like; the SDK's union tries each in turn, which takes several times as long."""
    if not isinstance(raw, dict):
        return JSONRPCNotification  # it is none of them: any will say so
    if "method" in raw:
        return JSONRPCRequest if "id" in raw else JSONRPCNotification
    return JSONRPCResponse if "result" in raw else JSONRPCError


def line(method: str, params: Mapping[str, Any], **number: int) -> bytes:
    """The line of a request (``id=…``) or a notification; params that came as JSON need no model to go on as JSON."""
    message = {"jsonrpc": "2.0", **number, "method": method, **({"params": params} if params else {})}
    try:
        return to_json(message) + b"\n"
    except PydanticSerializationError:
        return json.dumps(message).encode() + b"\n"


def dump(message: JSONRPCMessage) -> bytes:
    """The line of a message."""
    try:
        return message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
    except PydanticSerializationError:
        return json.dumps(message.model_dump(by_alias=True, exclude_unset=True)).encode() + b"\n"


class LineReader(asyncio.Protocol):
    """The messages that come through a pipe (``loop.connect_read_pipe``); ends with it. A read stream of the SDK's
    sessions.

    Args:
        limit: bytes that a message may have (:class:`MessageLines`); 0 for any number.
        take: gets each message first, where it comes in; true for one that it keeps.
        ended: called once, at the end.
    """

    def __init__(
        self,
        limit: int = 0,
        take: Callable[[SessionMessage], bool] = lambda _: False,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._lines = MessageLines(limit)
        self._take = take
        self._ended = ended
        self._held: deque[SessionMessage | Exception] = deque()
        self._changed = asyncio.Event()
        self._over = False
        self._transport: asyncio.ReadTransport | None = None

    # --- what comes in ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.ReadTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._lines.add(data)
        try:
            while not self._over and (line := self._lines.next()) is not None:
                if line.strip():
                    self._came(parse(line))
        except TooLong:
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def _came(self, message: SessionMessage | Exception) -> None:
        if isinstance(message, SessionMessage) and self._take(message):
            return
        self._held.append(message)
        self._changed.set()
        if len(self._held) == _MOST_WAITING and self._transport is not None:
            self._transport.pause_reading()

    def _end(self) -> None:
        if self._over:
            return
        self._over = True
        self._changed.set()
        self.close()
        self._ended()

    def close(self) -> None:
        """Read no more. Idempotent."""
        if self._transport is not None:
            self._transport.close()

    # --- as a session reads it ---

    async def receive(self) -> SessionMessage | Exception:
        return await self.__anext__()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        while not self._held:
            if self._over:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        if len(self._held) == _MOST_WAITING and self._transport is not None and not self._over:
            self._transport.resume_reading()
        return self._held.popleft()

    async def aclose(self) -> None:
        return

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.aclose()


class LineWriter:
    """Sends messages into a pipe, from any thread; without waiting where the pipe has room, else the event loop writes
    the rest. A write stream of the SDK's sessions.

    Raises nothing when the other side is gone: whoever reads from it sees the end.
    """

    def __init__(self, descriptor: int) -> None:
        """Takes over the descriptor. In the event loop."""
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._unwritten = bytearray()
        self._closed = False

    def write(self, line: bytes) -> None:
        """Have a message's line sent, after those before it."""
        with self._lock:
            if self._closed:
                return
            first = not self._unwritten
            self._unwritten += line
            if not first:
                return
            self._write()
            if not self._unwritten:
                return
        with suppress(RuntimeError):  # the loop is closed: so is everything
            self._loop.call_soon_threadsafe(self._watch)

    def _write(self) -> None:
        """As much as there is room for; the lock is held."""
        try:
            del self._unwritten[: os.write(self._descriptor, self._unwritten)]
        except BlockingIOError:
            return
        except OSError:
            self._unwritten.clear()

    def _watch(self) -> None:
        with self._lock:
            if not self._closed:
                self._loop.add_writer(self._descriptor, self._on_room)

    def _on_room(self) -> None:
        with self._lock:
            self._write()
            if not self._unwritten:
                self._loop.remove_writer(self._descriptor)

    async def flush(self, most: int = 0) -> None:
        """Wait until at most so many bytes are still to be written."""
        while len(self._unwritten) > most:
            await anyio.sleep(_LOOK)

    def close(self) -> None:
        """Close the pipe, whatever is still to be written. In the event loop; idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._unwritten.clear()
            self._loop.remove_writer(self._descriptor)
            os.close(self._descriptor)

    # --- as a session writes to it ---

    async def send(self, item: SessionMessage, /) -> None:
        self.write(dump(item.message))
        await self.flush(_MOST_UNWRITTEN)

    async def aclose(self) -> None:
        with anyio.move_on_after(_PARTING, shield=True):  # nobody may be there to read it
            await self.flush()
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.aclose()
