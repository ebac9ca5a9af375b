"""Reads the output of a call from the file into which the sandbox's init copies it."""

from __future__ import annotations

import ctypes
import os

from planarian_core.errors import SandboxError
from planarian_core.interfaces import OutputSink
from planarian_sandbox.collect import Collector

_CHUNK = 256 * 1024
_PER_TICK = 64 * 1024 * 1024
_PUNCH = 1024 * 1024
_KEEP_SIZE_PUNCH_HOLE = 3
_LIBC = ctypes.CDLL(None, use_errno=True)


class Stream:
    """One output file: read as it grows and emptied behind the reader, so that it never fills the disk."""

    def __init__(self, name: str, descriptor: int, limit: int) -> None:
        self.name = name
        self.descriptor = descriptor
        self.collector = Collector(limit)
        self._position = 0
        self._punched = 0

    def advance(self, sink: OutputSink | None) -> bool:
        """Read what is new, bounded per call; True when there was something."""
        start = self._position
        while self._position - start < _PER_TICK and (piece := os.pread(self.descriptor, _CHUNK, self._position)):
            self._position += len(piece)
            self.collector.feed(piece)
            if sink is not None:
                sink(self.name, piece)
            if self._position - self._punched >= _PUNCH:
                self._punch()
        return self._position > start

    def _punch(self) -> None:
        length = self._position - self._punched
        if _LIBC.fallocate(
            self.descriptor,
            _KEEP_SIZE_PUNCH_HOLE,
            ctypes.c_long(self._punched),
            ctypes.c_long(length),
        ):
            number = ctypes.get_errno()
            raise SandboxError(
                f"The output can't be taken out of its file: {os.strerror(number)}.",
                code="sandbox-output",
                remedy="put the home on ext4, xfs, btrfs or tmpfs, or redirect the command's output to a file",
            )
        self._punched = self._position
