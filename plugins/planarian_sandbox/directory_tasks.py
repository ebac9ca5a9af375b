"""Which processes belong to a ``directory`` sandbox, and how all of them are ended.

Where a control group can be had (root on Linux, or a delegated group) it knows exactly. Elsewhere a process belongs
when its environment carries the sandbox's mark, when it is in the session of a command that was started, or when it
descends from one that belongs. What clears its environment, starts a session of its own *and* loses its parent gets
away; ``doctor`` and the documentation say so.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from planarian_core.errors import SandboxError
from planarian_sandbox import cgroups
from planarian_sandbox.directory_run import INSIDE

PATIENCE = 10.0
_LARGEST_ENVIRONMENT = 4 * 1024 * 1024


class Tasks:
    """The processes of one sandbox.

    Args:
        sandbox_id: its mark.
        groups: its control groups, if any.
        leaders: file with a line for each started command, ``PID STARTED CALL``.
    """

    def __init__(self, sandbox_id: str, groups: tuple[str, ...], leaders: Path) -> None:
        self._mark = f"{INSIDE}={sandbox_id}".encode()
        self._group = cgroups.unified(groups)
        self._groups = groups
        self._leaders = leaders

    def all(self) -> tuple[int, ...]:
        """Host pids, oldest first; without zombies, this process and its ancestors."""
        if self._group:
            return _alive(cgroups.members(self._group))
        sessions = self._sessions()
        # the newest first: a chain of short-lived processes is caught before it has moved on
        found = {pid for pid in reversed(psutil.pids()) if self._mark in _marks(pid) or _session(pid) in sessions}
        return _alive(_with_descendants(found))

    def of_calls(self, *calls: str) -> tuple[int, ...]:
        """What calls started."""
        marks = {f"PLANARIAN_CALL={call}".encode() for call in calls}
        sessions = self._sessions(*calls)
        found = {pid for pid in self.all() if not marks.isdisjoint(_marks(pid)) or _session(pid) in sessions}
        if self._group:
            found.update(*(cgroups.members(os.path.join(self._group, f"call-{call}")) for call in calls))
        return _alive(_with_descendants(found))

    def of_session(self, name: str) -> tuple[int, ...]:
        """A session's holder, its shell and what that started."""
        mark = f"PLANARIAN_SESSION={name}".encode()
        return _alive(_with_descendants({pid for pid in self.all() if mark in _marks(pid)}))

    def chain(self, pid: int, user: int) -> tuple[int, ...] | None:
        """A process and its ancestors as far as they belong here; None when it doesn't, or isn't that user's."""
        members = set(self.all())
        chain: list[int] = []
        try:
            if pid not in members or psutil.Process(pid).uids().effective != user:
                return None
            while pid in members and pid not in chain:
                chain.append(pid)
                pid = psutil.Process(pid).ppid()
        except psutil.Error:  # it has ended
            return tuple(chain) or None
        return tuple(chain)

    def enter(self, call: str, pid: int) -> None:
        """Take in a process that is about to become a command."""
        if self._group:
            cgroups.enter(cgroups.make_for_call(self._group, call), pid)
            for group in self._groups:
                if group != self._group:
                    Path(group, "cgroup.procs").write_text(str(pid), encoding="ascii")
        else:
            with contextlib.suppress(psutil.Error), self._leaders.open("a", encoding="ascii") as stream:
                stream.write(f"{pid} {psutil.Process(pid).create_time()} {call}\n")

    @property
    def exact(self) -> bool:
        return bool(self._group)

    def _sessions(self, *calls: str) -> set[int]:
        """Session ids that began with one of our commands, or those of calls, and can't be anybody else's by now."""
        try:
            lines = self._leaders.read_text(encoding="ascii").splitlines()
        except OSError:
            return set()
        found = set()
        for line in lines:
            pid, started, call = line.split()
            if calls and call not in calls:
                continue
            try:
                ours = abs(psutil.Process(int(pid)).create_time() - float(started)) < 1
            except psutil.Error:
                ours = True  # the leader has gone, and its pid can't be given out while its session lives
            if ours:
                found.add(int(pid))
        return found


def end(what: Callable[[], Iterable[int]]) -> None:
    """Kill all processes that ``what`` gives, until it gives none; returns when they are gone.

    They are stopped first, so that none forks away. SandboxError when one stays.
    """
    deadline = time.monotonic() + PATIENCE
    stopped: dict[int, psutil.Process] = {}
    while True:
        fresh = [pid for pid in what() if pid not in stopped]
        for pid in fresh:
            with contextlib.suppress(psutil.Error):
                stopped[pid] = psutil.Process(pid)
                stopped[pid].suspend()
        if fresh and time.monotonic() < deadline:
            continue
        for process in stopped.values():
            with contextlib.suppress(psutil.Error):
                process.kill()
        while any(_lives(process) for process in stopped.values()) and time.monotonic() < deadline:
            time.sleep(0.002)
        left = tuple(what())
        if not left:
            return
        if time.monotonic() > deadline:
            raise SandboxError(
                f"processes can't be ended: {', '.join(map(str, left[:10]))}",
                code="sandbox-processes",
                state="they still run",
                remedy="end them by hand, then try again",
            )
        stopped.clear()


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _own() -> set[int]:
    """This process and its ancestors: a runtime that was started inside a sandbox must not end itself."""
    return {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}


def _alive(pids: Iterable[int]) -> tuple[int, ...]:
    own = _own()
    found: list[tuple[float, int]] = []
    for pid in pids:
        if pid not in own:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append((process.create_time(), pid))
    return tuple(pid for _, pid in sorted(found))


def _with_descendants(pids: set[int]) -> set[int]:
    if not pids:
        return pids
    children: dict[int, list[int]] = {}
    for process in psutil.process_iter(["ppid"]):
        children.setdefault(process.info["ppid"], []).append(process.pid)
    found, waiting = set(pids), list(pids)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def _marks(pid: int) -> frozenset[bytes]:
    """The variables of a process that begin with PLANARIAN_; none when it isn't ours to look at."""
    if sys.platform == "linux":
        try:
            with open(f"/proc/{pid}/environ", "rb") as stream:
                variables = stream.read(_LARGEST_ENVIRONMENT).split(b"\0")
        except OSError:
            return frozenset()
    else:
        try:
            pairs = psutil.Process(pid).environ().items()
        except (psutil.Error, OSError):
            return frozenset()
        variables = [os.fsencode(f"{name}={value}") for name, value in pairs]
    return frozenset(item for item in variables if item.startswith(b"PLANARIAN_"))


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1
