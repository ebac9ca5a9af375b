"""Where an image is written while everything stands still: in memory, where there is enough of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from planarian_process.criu_namespaces import memory_directory
from planarian_process.criu_tasks import Task

MOST = 1 << 30
"""Bytes of memory that an image takes at most, be there ever so much."""
_SHARE = 4
_BESIDES = 16 << 20
"""Bytes of an image that are not memory of processes, and what they take meanwhile."""


def room(tasks: Sequence[Task], most: int = MOST) -> int:
    """Bytes of memory that an image of ``tasks`` may take for a moment, never more than ``most``; 0 where that is too
    few for it.
    """
    allowed = min(_available() // _SHARE, most)
    return allowed if sum(task.memory for task in tasks) + _BESIDES <= allowed else 0


@contextlib.contextmanager
def place(images: Path, size: int) -> Iterator[int]:
    """A descriptor on a directory for the image: in memory, of at most ``size`` bytes, or with 0 ``images`` itself.
    What is in memory is gone afterwards, also when we are killed.
    """
    descriptor = -1
    if size:
        with contextlib.suppress(OSError):  # Linux before 5.2: the disk serves as well, but slower
            descriptor = memory_directory(size)
    if descriptor < 0:
        descriptor = os.open(images, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _available() -> int:
    """Bytes of memory that can be had: on this host, and in the control group that holds us."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    found = [int(lines["MemAvailable"].split()[0]) * 1024]
    for most, now in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):  # no such group here, or "max"
            found.append(int(_group(most)) - int(_group(now)))
    return max(0, min(found))


def _group(name: str) -> str:
    return Path("/sys/fs/cgroup", name).read_text()
