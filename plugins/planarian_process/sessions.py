"""Which of a sandbox's processes are Planarian's own: its init, and the holders and shells of sessions.

Recognised by their argument lists: what pretends to be one only keeps itself out of the list.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from planarian_core.model import Domain, Gap
from planarian_process.observe import Seen


def _session(process: Seen) -> str:
    """The name of the session that a holder keeps; empty when the process is no holder."""
    names = [os.path.basename(word) for word in process.argv[1:5]]
    if "session_holder.py" in names and os.path.basename(process.argv[0]).startswith("python"):
        return os.path.basename(process.argv[-1].rstrip("/"))
    return ""


def own_processes(seen: Sequence[Seen], init_pid: int) -> frozenset[int]:
    """Inside pids of what belongs to Planarian itself; ``init_pid`` is the host pid of the sandbox's init."""
    holders = {process.pid for process in seen if _session(process)}
    init = {process.pid for process in seen if process.host_pid == init_pid}
    shells = {
        process.pid
        for process in seen
        if process.parent in holders and process.argv[:3] == ("bash", "--noprofile", "--norc")
    }
    return frozenset(holders | init | shells)


def session_gaps(seen: Sequence[Seen]) -> tuple[Gap, ...]:
    """What a rollback without memory does to sessions."""
    return tuple(
        Gap(Domain.PROCESSES, f"session {name}", "its directory, variables and functions are lost; it starts afresh")
        for process in seen
        if (name := _session(process))
    )
