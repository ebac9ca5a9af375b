"""Ends the calls of a namespace sandbox whose runtime was killed: their commands run on, and nobody waits for them.

Such a call has left its file among those of :class:`RequestListener`, without a lock. What it started is in its control
group, or carries its mark in the environment, or still writes to the call's output files; all of that is in the
sandbox's hands, so it only ever selects among the sandbox's own processes. Detached commands have no such file.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Collection

from planarian_core.errors import SandboxError
from planarian_core.model import LiveSandbox
from planarian_sandbox import cgroups
from planarian_sandbox.identity import descendants, end_found, exited, init_handle, namespace_pids, pid_namespace
from planarian_sandbox.inside import Inside
from planarian_sandbox.layout import CALLS, RUNTIME
from planarian_sandbox.request_listener import abandoned_calls, forget_abandoned_calls
from planarian_sandbox.sessions import end_left

_PATIENCE = 10.0
_ENVIRONMENT = 4 * 1024 * 1024
_FILES = 10_000
_OUTPUT = re.compile(r".*/([0-9a-f]{16})\.std(out|err)")


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
        if not _ended(live, calls):
            raise SandboxError(
                "The processes of a call whose runtime was killed do not end.",
                code="sandbox-runaway",
                state="they still run",
                remedy="stop the sandbox, or roll back: planarian rollback --no-safety",
            )
        _forget_files(root, place, calls)
        return len(calls)


def _ended(live: LiveSandbox, calls: Collection[str]) -> bool:
    """End all that belongs to the calls; False when something of it stays."""
    deadline = time.monotonic() + _PATIENCE
    above = cgroups.unified(live.cgroups)
    if above and not all(_group_ended(os.path.join(above, f"call-{call}"), deadline) for call in calls):
        return False
    namespace = pid_namespace(live.init_pid)
    while namespace is not None and _found(live, calls):
        if time.monotonic() > deadline:
            return False
        end_found(lambda: _found(live, calls), namespace, deadline - time.monotonic())
    return True


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


def _found(live: LiveSandbox, calls: Collection[str]) -> set[int]:
    """Host pids of what belongs to the calls, and all below, besides the init."""
    marks = {f"PLANARIAN_CALL={call}".encode() for call in calls}
    found = {pid for pid in namespace_pids(live.init_pid)[1:] if _is_marked(pid, marks) or _writes(pid, calls)}
    return found.union(*(descendants(pid) for pid in found)) - {live.init_pid}


def _is_marked(pid: int, marks: set[bytes]) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return not marks.isdisjoint(file.read(_ENVIRONMENT).split(b"\0"))
    except OSError:
        return False


def _writes(pid: int, calls: Collection[str]) -> bool:
    """Whether its output goes to the files of one of the calls: so does that of a command without an environment."""
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            matched = _OUTPUT.fullmatch(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
            if matched is not None and matched[1] in calls:
                return True
    return False


def _forget_files(root: Inside, place: Inside, calls: set[str]) -> None:
    with contextlib.suppress(OSError), root.directory(CALLS.lstrip("/")) as directory:
        for name in list(directory.names(_FILES)):
            if name.partition(".")[0] in calls:
                with contextlib.suppress(OSError):
                    directory.remove(name)
    with contextlib.suppress(OSError):
        forget_abandoned_calls(place, calls)
