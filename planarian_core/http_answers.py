"""Answers over HTTP that are larger than memory has room for: refused while they come. For httpx, and its successor."""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib import import_module
from typing import Any, TypeVar

from planarian_core.message_lines import TOO_LARGE

Client = TypeVar("Client")
_SEPARATORS = (b"\n\n", b"\r\n\r\n", b"\r\r")
_SEPARATOR = max(map(len, _SEPARATORS)) - 1
"""Bytes of one that may have come before."""


def bounded(client: Client, limit: int) -> Client:
    """An asynchronous client whose answers, and events of an answer that is a stream of them, have ``limit`` bytes at
    most: an error of the library's ends a longer one, and says so.
    """
    library: Any = import_module(type(client).__module__.partition(".")[0])

    class Bounded(library.AsyncByteStream):  # type: ignore[misc]  # whichever library it is
        def __init__(self, stream: Any, events: bool) -> None:
            self._stream = stream
            self._events = events

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size, before = 0, b""
            async for data in self._stream:
                size = _of_event(before, data, size) if self._events else size + len(data)
                before = (before + data)[-_SEPARATOR:]
                if size > limit:
                    error = getattr(library, "SSEError", library.StreamError) if self._events else library.StreamError
                    raise error(f"{TOO_LARGE} {limit} bytes")
                yield data

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def bind(response: Any) -> None:
        events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        response.stream = Bounded(response.stream, events)

    made: Any = client
    made.headers["accept-encoding"] = "identity"  # what is counted is what will be held
    made.event_hooks = {"request": [], "response": [bind]}
    return client


def _of_event(before: bytes, data: bytes, size: int) -> int:
    """The bytes of the event that goes on after ``data``; ``before``: the last ones that came before it."""
    text = before + data
    ends = [at + len(end) for end in _SEPARATORS if (at := text.rfind(end)) >= 0]
    return min(size + len(data), len(text) - max(ends)) if ends else size + len(data)
