"""Which process has which memory: told by its start, and by where the kernel put its program when that was executed.

CRIU tells processes apart by pid and start. A process that executes another program keeps both, while all of its memory
is new, and not all of that is marked as written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path

Members = Mapping[str, str]
"""By pid inside, as text: the process and the program in it."""

_TOLD_BY = (22, 26, 27, 28, *range(45, 52))
"""Fields of ``/proc/PID/stat``: start time; code, stack, data, heap, arguments and environment. The kernel places these
at random at each execution.
"""


def members(processes: Iterable[tuple[int, int]]) -> Members:
    """Of processes by host pid and pid inside; those that ended are left out."""
    found = {}
    for host, inside in processes:
        with contextlib.suppress(OSError, IndexError):
            fields = Path(f"/proc/{host}/stat").read_text().rpartition(")")[2].split()
            found[str(inside)] = " ".join(fields[number - 3] for number in _TOLD_BY)
    return found


def unchanged(before: Members, now: Members) -> frozenset[str]:
    """The pids inside of those that are the same process with the same program."""
    return frozenset(pid for pid, told in now.items() if before.get(pid) == told)
