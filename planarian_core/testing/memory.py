"""A program that holds memory and writes some of it when told, and what of that can be seen from outside."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from planarian_core.testing.process import Subject, eventually, python

PAGE = 4096
TOUCHED = 100
"""Pages that are written at a signal, all over the memory."""

ADDRESS = 0x2000_0000_0000
"""Where it lies, far from everything else."""

HOLDER = f"""
import ctypes, mmap, signal, sys
pages, turn = int(sys.argv[1]), 0
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
fixed = 0x100000 | mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
place = libc.mmap(ctypes.c_void_p({ADDRESS}), ctypes.c_size_t(pages * {PAGE}), 3, fixed, -1, ctypes.c_size_t(0))
memory = memoryview((ctypes.c_char * (pages * {PAGE})).from_address(place)).cast("B")
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


AFTER_A_SIGNAL = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
signal.sigwait({signal.SIGUSR1})
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
"""
"""What goes before a program that is to begin at a signal: see :func:`awaits_signal`."""


@dataclass(frozen=True)
class Holder:
    """:data:`HOLDER` as the host sees it: ``pid`` is the host's, ``size`` what it holds, in bytes."""

    pid: int
    size: int

    @classmethod
    def begin(cls, subject: Subject, size: int, before: str = "") -> Holder:
        """Start it in a sandbox; ``before`` is what its program does first."""
        subject.spawn(python(), "-c", before + HOLDER, str(size // PAGE))
        return cls.wait(subject, size)

    @classmethod
    def wait(cls, subject: Subject, size: int) -> Holder:
        """The one that is being started, once it is ready."""
        found: list[Holder] = []

        def look() -> bool:
            found[:] = cls._all(subject, size)
            return bool(found) and found[0].turn == 1

        assert eventually(look, 120)
        return found[0]

    @classmethod
    def find(cls, subject: Subject, size: int) -> Holder:
        """The one in a sandbox that was restored."""
        (found,) = cls._all(subject, size)
        return found

    @classmethod
    def _all(cls, subject: Subject, size: int) -> list[Holder]:
        wanted = f"{ADDRESS:x}-{ADDRESS + size:x} rw-p "
        return [cls(pid, size) for pid in subject.running.tasks() if wanted in Path(f"/proc/{pid}/maps").read_text()]

    @property
    def turn(self) -> int:
        """How often it has written."""
        return int.from_bytes(read(self.pid, ADDRESS, 8), "little")

    @property
    def may_have_huge_pages(self) -> bool:
        """Whether the kernel may put its memory into transparent huge pages."""
        return _field(Path(f"/proc/{self.pid}/status"), "THP_enabled") == 1

    @property
    def huge(self) -> int:
        """Kilobytes of its memory that are in transparent huge pages."""
        return _field(Path(f"/proc/{self.pid}/smaps_rollup"), "AnonHugePages")

    def touch(self) -> None:
        """Let it write, and wait until it has."""
        before = self.turn
        os.kill(self.pid, signal.SIGUSR1)
        assert eventually(lambda: self.turn == before + 1)

    def memory(self) -> bytes:
        """All of it."""
        return read(self.pid, ADDRESS, self.size)


def awaits_signal(pid: int) -> bool:
    """Whether a process is in :data:`AFTER_A_SIGNAL`."""
    return "sigtimedwait" in Path(f"/proc/{pid}/wchan").read_text()  # its mask says nothing: it waits with another one


def _field(path: Path, name: str) -> int:
    return int(path.read_text().partition(f"{name}:")[2].split()[0])


def read(pid: int, start: int, size: int) -> bytes:
    """Memory of a process, as it is now."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(start)
        found = b""
        while len(found) < size:
            found += memory.read(min(size - len(found), 1 << 28))
        return found
