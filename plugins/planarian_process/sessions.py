"""Which of a sandbox's processes are Planarian's own: its init, and the holders and shells of sessions.

A holder is known by all that can be seen of it: who started it, what it is and its exact arguments. A hostile program
can still write such arguments over its own; all that it gains is to be left out of the list and never started again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from planarian_core.interfaces import RunningSandbox
from planarian_core.model import Domain, Gap
from planarian_process.observe import Seen

_RUNTIME = "/run/planarian"
_HOLDER = "session_holder.py"
_SHELL = ("bash", "--noprofile", "--norc", "--noediting", "+H", "-i")


def _sessions(seen: Sequence[Seen], sandbox: RunningSandbox) -> dict[int, str]:
    """Inside pid of each session's holder, and the session's name."""
    init = {process.pid for process in seen if process.host_pid == sandbox.live.init_pid}
    holders: dict[int, str] = {}
    for process in seen:
        # without an init Planarian is above it, or, when that has ended, possibly the holder of another session
        started_by_us = process.parent in (init or {0, *holders})
        if started_by_us and _is_holder(process, sandbox, bool(init)):
            holders[process.pid] = os.path.basename(process.argv[-1])
    return holders


def _is_holder(process: Seen, sandbox: RunningSandbox, has_init: bool) -> bool:
    """Whether it runs the runtime's own program, as the sandbox backends start it."""
    if len(process.argv) != 5 or process.argv[1:3] != ("-I", "-S"):
        return False
    python, script, folder = process.argv[0], process.argv[3], process.argv[4]
    if not all(os.path.basename(path).lower().startswith("python") for path in (python, process.executable)):
        return False
    if has_init:
        return script == f"{_RUNTIME}/{_HOLDER}" and os.path.dirname(folder) == f"{_RUNTIME}/sessions"
    spec = sandbox.spec
    ours = str(Path(spec.home, "sandboxes", spec.id, "run", "sessions"))
    outside = os.path.isabs(script) and not script.startswith(spec.workspace.rstrip("/") + "/")
    return outside and os.path.basename(script) == _HOLDER and os.path.dirname(folder) == ours


def own_processes(seen: Sequence[Seen], sandbox: RunningSandbox) -> frozenset[int]:
    """Inside pids of what belongs to Planarian itself."""
    holders = _sessions(seen, sandbox)
    init = {process.pid for process in seen if process.host_pid == sandbox.live.init_pid}
    shells = {process.pid for process in seen if process.parent in holders and process.argv == _SHELL}
    return frozenset(init | set(holders) | shells)


def session_gaps(seen: Sequence[Seen], sandbox: RunningSandbox) -> tuple[Gap, ...]:
    """What a rollback without memory does to sessions."""
    return tuple(
        Gap(Domain.PROCESSES, f"session {name}", "its directory, variables and functions are lost; it starts afresh")
        for name in _sessions(seen, sandbox).values()
    )
