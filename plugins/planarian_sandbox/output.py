"""Follows a command's output file with bounded memory: its head and tail are kept, all of it goes to a sink."""

from __future__ import annotations

import os
from collections.abc import Callable

from planarian_sandbox.collect import Collector

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
        self._limit = limit
        self._kept = Collector(limit)
        self._position = 0
        self._taken = 0

    def pump(self) -> bool:
        """Take in what was appended up to now; True when there was something."""
        size = os.fstat(self._descriptor).st_size
        self._position = min(self._position, size)
        moved = False
        while self._position < size:
            if self._sink is None:
                self._leap(size)
            piece = os.pread(self._descriptor, min(PIECE, size - self._position), self._position)
            if not piece:
                break
            self._position += len(piece)
            self._kept.feed(piece)
            self._taken += len(piece)
            moved = True
            if self._sink is not None:
                self._sink(self._stream, piece)
        if self._position > LARGEST_FILE:
            # what arrives between the last read and this is lost, so the output counts as cut
            os.ftruncate(self._descriptor, 0)
            self._position = 0
            self._kept.skip(1)
        return moved

    def _leap(self, size: int) -> None:
        """Without a sink nobody needs the middle: don't read what would only be dropped."""
        needless = size - self._limit - self._position
        if self._taken > self._limit and needless > PIECE:
            self._kept.skip(needless)
            self._position += needless

    @property
    def truncated(self) -> bool:
        return self._kept.truncated

    def text(self) -> str:
        """What was kept; see :meth:`Collector.text`."""
        return self._kept.text()
