"""A program that holds memory and writes some of it when told, and what of that can be seen from outside."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from planarian_core.testing.process import Subject, eventually, python

PAGE = 4096
TOUCHED = 100
"""Pages that are written at a signal, all over the memory."""

HOLDER = f"""
import mmap, signal, sys
pages, turn = int(sys.argv[1]), 0
memory = mmap.mmap(-1, pages * {PAGE}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(1, pages):
    memory[page * {PAGE}:page * {PAGE} + 8] = page.to_bytes(8, "little")
def touch(*unused):
    global turn
    turn += 1
    for number in range({TOUCHED}):
        page = 1 + (turn * 7919 + number * 104729) % (pages - 1)
        memory[page * {PAGE} + 8:page * {PAGE} + 16] = turn.to_bytes(8, "little")
    memory[0:8] = turn.to_bytes(8, "little")
signal.signal(signal.SIGUSR1, touch)
touch()
while True:
    signal.pause()
"""


@dataclass(frozen=True)
class Holder:
    """:data:`HOLDER` as the host sees it: ``pid`` is the host's."""

    pid: int
    start: int
    end: int

    @classmethod
    def begin(cls, subject: Subject, size: int) -> Holder:
        """Start it in a sandbox with ``size`` bytes."""
        subject.spawn(python(), "-c", HOLDER, str(size // PAGE))
        found: list[Holder] = []

        def look() -> bool:
            found[:] = cls.all(subject, size)
            return bool(found) and found[0].turn == 1

        assert eventually(look, 120)
        return found[0]

    @classmethod
    def find(cls, subject: Subject, size: int) -> Holder:
        """The one in a sandbox that was restored."""
        (found,) = cls.all(subject, size)
        return found

    @classmethod
    def all(cls, subject: Subject, size: int) -> list[Holder]:
        return [
            cls(pid, *place) for pid in subject.running.tasks() for place in anonymous(pid) if _length(place) >= size
        ]

    @property
    def turn(self) -> int:
        """How often it was told to write."""
        return int.from_bytes(read(self.pid, self.start, 8), "little")

    def touch(self) -> None:
        """Let it write, and wait until it has."""
        before = self.turn
        os.kill(self.pid, signal.SIGUSR1)
        assert eventually(lambda: self.turn == before + 1)

    def memory(self) -> bytes:
        """All of it."""
        return read(self.pid, self.start, self.end - self.start)


def anonymous(pid: int) -> Iterator[tuple[int, int]]:
    """Beginning and end of the writable memory of a process that is of no file and has no name."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        place, rights, *rest = line.split()
        if rights == "rw-p" and len(rest) == 3:
            start, end = place.split("-")
            yield int(start, 16), int(end, 16)


def read(pid: int, start: int, size: int) -> bytes:
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(start)
        found = b""
        while len(found) < size:
            found += memory.read(min(size - len(found), 1 << 26))
        return found


def _length(place: tuple[int, int]) -> int:
    return place[1] - place[0]
