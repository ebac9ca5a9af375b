"""Messages of JSON-RPC, one a line, from a server that may write lines of any length. Stand-alone, for the guard.

A line that is too long isn't held in memory: its bytes are dropped as they come, and an error takes its place as the
answer to the request that it answered.
"""

from __future__ import annotations

import json
import re

TOO_LARGE = "the answer was thrown away: it is more than"
"""How the error begins."""
_CODE = -32603
_ENDS = 256
"""Bytes kept of a long line's beginning and end, where the number of its request is."""
_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"\s*'
_ID = rb'"id"\s*:\s*(?P<id>-?\d{1,18}|"(?:[^"\\]|\\.){0,100}")\s*'
_FIRST = rb"\s*\{\s*(?:" + _VERSION + rb",\s*)?"
_HEAD = re.compile(_FIRST + _ID + rb",\s*(?:" + _VERSION + rb',\s*)?"(?:result|error)"')
_TAIL = re.compile(rb"\}\s*,\s*(?:" + _VERSION + rb",\s*)?" + _ID + rb"(?:,\s*" + _VERSION + rb")?\}\s*\Z")
_TOLD = re.compile(_FIRST + rb"(?:" + _ID + rb",\s*(?:" + _VERSION + rb',\s*)?)?"method"')


class TooLong(Exception):
    """A line that was too long, and nobody knows what it answered."""


class MessageLines:
    """Takes what comes through a pipe, in pieces, and gives the lines. ``limit``: bytes of a line; 0 for any number."""

    def __init__(self, limit: int = 0) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._searched = 0
        self._head = b""
        """Of a line that is being dropped."""

    def add(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> bytes | None:
        """The next whole line, without its end; None where more must come first.

        Raises:
            TooLong: go on with nothing of this server.
        """
        end = self._buffer.find(b"\n", self._searched)
        if end < 0:
            self._drop()
            self._searched = len(self._buffer)
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._searched = 0
        if not self._head and (not self._limit or end <= self._limit):
            return line
        head, self._head = self._head or line[:_ENDS], b""
        return self._instead(head, line[-_ENDS:])

    def _drop(self) -> None:
        """Keep of a line that is too long its two ends."""
        if self._limit and (self._head or len(self._buffer) > self._limit):
            self._head = self._head or bytes(self._buffer[:_ENDS])
            del self._buffer[:-_ENDS]

    def _instead(self, head: bytes, tail: bytes) -> bytes:
        """What takes the place of a line: an error, or an empty one for what nobody waits for."""
        if _TOLD.match(head):
            return b""
        found = _HEAD.match(head) or _TAIL.search(tail)
        if found is None:
            raise TooLong
        error = {"code": _CODE, "message": f"{TOO_LARGE} {self._limit} bytes"}
        return b'{"jsonrpc": "2.0", "id": %b, "error": %b}' % (found["id"], json.dumps(error).encode())
