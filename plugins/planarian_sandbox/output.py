"""Follows a command's output file with bounded memory: its head and tail are kept, all of it goes to a sink."""

from __future__ import annotations

import os
from collections.abc import Callable

Sink = Callable[[str, bytes], None]

PIECE = 256 * 1024
"""Bytes read at once, and handed to a sink at once."""
LARGEST_FILE = 64 * 1024**2
"""A file that grows beyond this many bytes is emptied after it was read: runaway output doesn't fill the disk."""


class OutputReader:
    """Reads what processes append (``O_APPEND``) to a file, through a descriptor of its own.

    The file belongs to the sandbox: it may shrink, grow without end or be full of holes; memory and the time of one
    :meth:`pump` stay bounded.

    Args:
        descriptor: the file, open for reading and writing; stays the caller's to close.
        stream: ``"stdout"`` or ``"stderr"``, for the sink.
        limit: bytes to keep; what is beyond is cut out of the middle.
    """

    def __init__(self, descriptor: int, stream: str, limit: int, sink: Sink | None = None) -> None:
        self._descriptor = descriptor
        self._stream = stream
        self._sink = sink
        self._head = bytearray()
        self._tail = bytearray()
        self._head_room = limit - limit // 2
        self._tail_room = limit // 2
        self._position = 0
        self._cut = 0

    def pump(self) -> bool:
        """Take in what was appended up to now; True when there was something."""
        size = os.fstat(self._descriptor).st_size
        moved = False
        while self._position < size:
            if self._sink is None:
                self._leap(size)
            piece = os.pread(self._descriptor, min(PIECE, size - self._position), self._position)
            if not piece:
                break
            self._position += len(piece)
            self._keep(piece)
            moved = True
            if self._sink is not None:
                self._sink(self._stream, piece)
        if self._position > LARGEST_FILE:
            # what arrives between the last read and this is lost, so the output counts as cut
            os.ftruncate(self._descriptor, 0)
            self._position = 0
            self._cut += 1
        return moved

    def _leap(self, size: int) -> None:
        """Without a sink nobody needs the middle: don't read what would only be dropped."""
        needless = size - self._tail_room - self._position
        if len(self._head) == self._head_room and needless > PIECE:
            self._cut += needless + len(self._tail)
            self._tail.clear()
            self._position += needless

    def _keep(self, piece: bytes) -> None:
        room = self._head_room - len(self._head)
        self._head += piece[:room]
        self._tail += piece[room:]
        excess = len(self._tail) - self._tail_room
        if excess > 0:
            self._cut += excess
            del self._tail[:excess]

    @property
    def truncated(self) -> bool:
        return self._cut > 0

    def text(self) -> str:
        """What was kept, as UTF-8 with replacement characters; a line in the middle says how much is missing."""
        head = self._head.decode("utf-8", "replace")
        tail = self._tail.decode("utf-8", "replace")
        if not self.truncated:
            return (self._head + self._tail).decode("utf-8", "replace")
        return f"{head}\n[... {self._cut} bytes cut ...]\n{tail}"
