"""MCP over pipes: one JSON message a line, of any length, read and written without a thread or a task between.

The SDK's own stdio transports read through a thread that can't be interrupted, and collect a long line in quadratic
time. Text that is no valid Unicode (a lone surrogate, escaped) comes through.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, Self

from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCMessage, jsonrpc_message_adapter
from pydantic_core import PydanticSerializationError

from planarian_core.message_lines import MessageLines, TooLong

CHUNK = 1 << 18


def parse(line: bytes) -> SessionMessage | Exception:
    """The message of a line; an exception as a value for one that is none, as the SDK's sessions expect it."""
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        try:
            return SessionMessage(jsonrpc_message_adapter.validate_python(json.loads(line), by_name=False))
        except (ValueError, RecursionError):
            return error


def dump(message: JSONRPCMessage) -> bytes:
    """The line of a message."""
    try:
        return message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
    except PydanticSerializationError:
        return json.dumps(message.model_dump(by_alias=True, exclude_unset=True)).encode() + b"\n"


class LineReader:
    """The messages that come through a pipe; ends with it. A read stream of the SDK's sessions.

    ``limit``: bytes that a message may have (:class:`MessageLines`); 0 for any number.
    """

    def __init__(self, reader: asyncio.StreamReader, limit: int = 0) -> None:
        self._reader = reader
        self._lines = MessageLines(limit)

    async def receive(self) -> SessionMessage | Exception:
        return await self.__anext__()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        while True:
            try:
                line = self._lines.next()
            except TooLong:
                raise StopAsyncIteration from None
            if line is not None:
                if line.strip():
                    return parse(line)
                continue
            try:
                data = await self._reader.read(CHUNK)
            except OSError:
                data = b""
            if not data:
                raise StopAsyncIteration
            self._lines.add(data)

    async def aclose(self) -> None:
        return

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.aclose()


class LineWriter:
    """Sends messages into a pipe. A write stream of the SDK's sessions; ``closed`` is called once at its end."""

    def __init__(self, writer: asyncio.StreamWriter, broken: Callable[[], None] = lambda: None) -> None:
        self._writer = writer
        self._broken = broken

    async def send(self, item: SessionMessage, /) -> None:
        """Raises nothing when the other side is gone: ``broken`` is told, and the reader sees the end."""
        try:
            self._writer.write(dump(item.message))
            await self._writer.drain()
        except OSError:
            self._broken()

    async def aclose(self) -> None:
        self._writer.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.aclose()
