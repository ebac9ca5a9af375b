"""Ends the calls of a namespace sandbox whose runtime was killed: their commands run on, and nobody waits for them.

Such a call has left its file among those of :class:`RequestListener`, without a lock. What it started is in its control
group; or it carries the call's mark in its environment, or is below its first process, which the file names. All of
that is in the sandbox's hands, so it only ever selects among the sandbox's own processes. Detached commands have no
such file.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection

from planarian_core.errors import SandboxError
from planarian_core.model import LiveSandbox
from planarian_sandbox import cgroups
from planarian_sandbox.identity import (
    descendants,
    end_found,
    exited,
    init_handle,
    namespace_pids,
    pid_namespace,
    process_stat,
)
from planarian_sandbox.inside import Inside
from planarian_sandbox.layout import CALLS, RUNTIME
from planarian_sandbox.request_listener import abandoned_calls, forget_abandoned_calls, leaders
from planarian_sandbox.sessions import end_left

_PATIENCE = 10.0
_ENVIRONMENT = 4 * 1024 * 1024
_FILES = 10_000


def end_abandoned_calls(live: LiveSandbox) -> int:
    """End them; returns how many there were. The caller holds the sandbox's exclusive lock.

    Where the sandbox has removed or replaced Planarian's own directories, none are known. SandboxError when one can't
    be ended.
    """
    with init_handle(live) as init, contextlib.ExitStack() as stack:
        if init is None:
            return 0
        try:
            root = stack.enter_context(Inside.of_init(live.init_pid))
            place = stack.enter_context(root.directory(RUNTIME.lstrip("/")))
            calls = abandoned_calls(place)
        except OSError:
            return 0
        if not calls or exited(init):
            return 0
        end_left(live, root, calls)  # a session's own shell may run the command: it carries no mark
        if not _ended(live, calls, leaders(place, calls)):
            raise SandboxError(
                "The processes of a call whose runtime was killed do not end.",
                code="sandbox-runaway",
                state="they still run",
                remedy="stop the sandbox, or roll back: planarian rollback --no-safety",
            )
        _forget_files(root, place, calls)
        return len(calls)


def _ended(live: LiveSandbox, calls: Collection[str], leading: dict[int, int]) -> bool:
    """End all that belongs to the calls; False when something of it stays."""
    deadline = time.monotonic() + _PATIENCE
    above = cgroups.unified(live.cgroups)
    if above and not all(_group_ended(os.path.join(above, f"call-{call}"), deadline) for call in calls):
        return False
    namespace = pid_namespace(live.init_pid)
    patience = deadline - time.monotonic()
    return namespace is None or end_found(lambda: _found(live, calls, leading), patience, namespace)


def _group_ended(group: str, deadline: float) -> bool:
    """Kill a call's control group, where it has one, and remove it; False when it doesn't empty."""
    if os.path.isdir(group):
        with contextlib.suppress(FileNotFoundError):  # empty, and swept meanwhile
            cgroups.kill(group)
        while cgroups.members(group):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        cgroups.remove((group,), 0.0)
    return True


def _found(live: LiveSandbox, calls: Collection[str], leading: dict[int, int]) -> set[int]:
    """Host pids of what belongs to the calls, and all below, besides the init."""
    marks = {f"PLANARIAN_CALL={call}".encode() for call in calls}
    found = {pid for pid in namespace_pids(live.init_pid)[1:] if _is_marked(pid, marks) or _is_first(pid, leading)}
    return found.union(*(descendants(pid) for pid in found)) - {live.init_pid}


def _is_marked(pid: int, marks: set[bytes]) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return not marks.isdisjoint(file.read(_ENVIRONMENT).split(b"\0"))
    except OSError:
        return False


def _is_first(pid: int, leaders: dict[int, int]) -> bool:
    """Whether it is the first process of a call; all that the call starts stays below that one (agent's supervisor)."""
    if pid not in leaders:
        return False
    status = process_stat(pid)
    return status is not None and status[1] == leaders[pid]


def _forget_files(root: Inside, place: Inside, calls: set[str]) -> None:
    with contextlib.suppress(OSError), root.directory(CALLS.lstrip("/")) as directory:
        for name in list(directory.names(_FILES)):
            if name.partition(".")[0] in calls:
                with contextlib.suppress(OSError):
                    directory.remove(name)
    with contextlib.suppress(OSError):
        forget_abandoned_calls(place, calls)
