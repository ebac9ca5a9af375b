"""What a command wrote, kept within a bound: the beginning and the end, the middle cut out."""

from __future__ import annotations


class Collector:
    """Takes a stream piece by piece; holds at most about ``limit`` bytes however much comes."""

    def __init__(self, limit: int) -> None:
        self._head_room = limit // 2
        self._tail_room = limit - limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._cut = 0

    def feed(self, piece: bytes) -> None:
        room = self._head_room - len(self._head)
        self._head += piece[:room]
        self._tail += piece[room:]
        excess = len(self._tail) - self._tail_room
        if excess > 0:
            self._cut += excess
            del self._tail[:excess]

    def skip(self, count: int) -> None:
        """Note that ``count`` bytes are missing here."""
        self._cut += count

    @property
    def truncated(self) -> bool:
        return self._cut > 0

    def text(self) -> str:
        """What was kept, undecodable bytes replaced, with a notice where something is missing."""
        if not self._cut:
            return (self._head + self._tail).decode("utf-8", "replace")
        notice = f"\n[planarian: {self._cut} bytes cut here]\n"
        return self._head.decode("utf-8", "replace") + notice + self._tail.decode("utf-8", "replace")
