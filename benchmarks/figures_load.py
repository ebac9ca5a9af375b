"""What the figures' sandboxes hold: a process with much memory or many files, which changes a little on request."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PAGES = 100
"""Pages of memory that change at a time."""
_PATIENCE = 600.0
_READY = "touched-"

PROGRAM = """
import ctypes, mmap, os, signal, sys
mib, files = int(sys.argv[1]), int(sys.argv[2])
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
memory = mmap.mmap(-1, mib << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for _ in range(mib):
    memory.write(os.urandom(1 << 20))
memory[:8] = bytes(8)

def write(number):
    with open(f"part-{number}", "wb") as file:
        file.write(os.urandom(1 << 20))

for number in range(files):
    write(number)
while True:
    count = int.from_bytes(memory[:8], "little")
    ctypes.CDLL(None).prctl(15, f"touched-{count}".encode())  # PR_SET_NAME
    signal.sigwait([signal.SIGUSR1])
    for page in range(count * 100, count * 100 + 100):
        at = page * 4096 % len(memory)
        memory[at + 8 : at + 16] = os.urandom(8)
    changed = -(-files // 100)
    for number in range(count * changed, count * changed + changed):
        write(number % files)
    memory[:8] = (count + 1).to_bytes(8, "little")
"""
"""Arguments: MiB of memory, and how many files of 1 MiB in the working directory, all of it random. At SIGUSR1 it
writes to the next 100 pages and rewrites the next 1 % of the files. How often it has done so is kept in that memory;
its name, which is seen from outside, says when it is done."""


@dataclass(frozen=True)
class Load:
    """How much a sandbox holds, in MiB."""

    memory: int
    files: int = 0

    @property
    def argv(self) -> list[str]:
        return ["/usr/bin/python3", "-c", PROGRAM, str(max(self.memory, 1)), str(self.files)]

    @property
    def kind(self) -> str:
        return "files" if self.files else "memory"

    @property
    def size(self) -> int:
        return self.files or self.memory


def find(candidates: Callable[[], Iterable[int]]) -> int:
    """The host pid of the program among a sandbox's processes, as soon as it holds its load."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        for pid in candidates():
            if _name(pid).startswith(_READY):
                return pid
        time.sleep(0.05)
    raise RuntimeError(f"the load isn't there after {_PATIENCE:.0f} s")


def touched(pid: int) -> int:
    """How often it has changed its share."""
    return int(_name(pid).removeprefix(_READY))


def touch(pid: int) -> int:
    """Have it change its share; returns how often it has done so since it began, as its memory says."""
    before = _name(pid)
    os.kill(pid, signal.SIGUSR1)
    deadline = time.monotonic() + _PATIENCE
    while _name(pid) == before:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{before} changes nothing for {_PATIENCE:.0f} s")
        time.sleep(0.01)
    return touched(pid)


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""
