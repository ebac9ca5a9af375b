"""Follows an output file of a call with bounded memory and disk: head and tail are kept, all of it goes to a sink."""

from __future__ import annotations

import ctypes
import os
import sys

from planarian_core.interfaces import OutputSink
from planarian_sandbox.collect import Collector

PIECE = 256 * 1024
"""Bytes read at once, and handed to a sink at once."""
_PER_PUMP = 64 * 1024**2
_LAST_PUMPS = 16
_ROOM = 1024**2
"""Bytes after which what was read is taken out of the file, so that output doesn't fill the disk."""
_ROOM_BY_TRUNCATION = 8 * 1024**2
_KEEP_SIZE_PUNCH_HOLE = 3
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class OutputFile:
    """Reads what processes append (``O_APPEND``) to a file, through a descriptor of its own.

    The file belongs to the sandbox: it may shrink, grow without end or be full of holes; memory and the time of one
    :meth:`pump` stay bounded.

    Args:
        descriptor: the file, open for reading and writing; stays the caller's to close.
        name: ``"stdout"`` or ``"stderr"``, for the sink.
        limit: bytes to keep; what is beyond is cut out of the middle.
    """

    def __init__(self, descriptor: int, name: str, limit: int, sink: OutputSink | None = None) -> None:
        self.descriptor = descriptor
        self.name = name
        self.kept = Collector(limit)
        self._sink = sink
        self._limit = limit
        self._position = 0
        self._emptied = 0
        self._taken = 0

    def pump(self) -> bool:
        """Take in what was appended up to now, at most about 64 MiB; True when there was something."""
        size = os.fstat(self.descriptor).st_size
        self._position = min(self._position, size)
        self._emptied = min(self._emptied, size)
        if self._sink is None:
            self._leap(size)
        start = self._position
        end = min(size, start + _PER_PUMP)
        while self._position < end:
            piece = os.pread(self.descriptor, min(PIECE, end - self._position), self._position)
            if not piece:
                break
            self._position += len(piece)
            self._taken += len(piece)
            self.kept.feed(piece)
            if self._sink is not None:
                self._sink(self.name, piece)
            if self._position - self._emptied >= _ROOM:
                self._make_room()
        return self._position > start

    def finish(self) -> None:
        """Take in what is there when the command has ended; what exceeds 1 GiB then counts as cut."""
        for _ in range(_LAST_PUMPS):
            if not self.pump():
                return
        self.kept.skip(max(0, os.fstat(self.descriptor).st_size - self._position))

    def _leap(self, size: int) -> None:
        """Without a sink nobody needs the middle: don't read what would only be dropped."""
        needless = size - self._limit - self._position
        if self._taken > self._limit and needless > PIECE:
            self.kept.skip(needless)
            self._position += needless

    def _make_room(self) -> None:
        """Take what was read out of the file; where no hole can be made, by truncating it, seldom."""
        start, length = ctypes.c_long(self._emptied), ctypes.c_long(self._position - self._emptied)
        if _LIBC is not None and _LIBC.fallocate(self.descriptor, _KEEP_SIZE_PUNCH_HOLE, start, length) == 0:
            self._emptied = self._position
        elif self._position >= _ROOM_BY_TRUNCATION:
            # what arrives between the last read and this is lost, so the output counts as cut
            os.ftruncate(self.descriptor, 0)
            self._position = self._emptied = 0
            self.kept.skip(1)
