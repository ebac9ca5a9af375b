"""Control groups of a sandbox: limits, freezing and killing where the host lets us.

A version 2 group (``freeze``, ``kill``, and limits where its controllers are there) and the version 1 ``memory`` and
``pids`` groups on hosts that have those.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass

from planarian_core.errors import SandboxError
from planarian_core.model import Limits
from planarian_core.mounts import mounts

_NAME = "planarian"
_OLD = 900.0
"""Seconds after which an empty group counts as left behind."""


@dataclass(frozen=True)
class Hierarchies:
    """Directories below which we may make groups; empty where there is none."""

    unified: str = ""
    controllers: tuple[str, ...] = ()
    memory: str = ""
    pids: str = ""

    def missing(self) -> tuple[str, ...]:
        """The limits that can't be enforced."""
        return tuple(name for name in ("memory", "pids") if name not in self.controllers and not getattr(self, name))


def hierarchies() -> Hierarchies:
    """What this host offers to this user."""
    if os.geteuid() != 0:
        return Hierarchies(unified=_delegated())
    unified, memory, pids = "", "", ""
    for mount in mounts():
        if mount.kind == "cgroup2":
            unified = mount.point
        elif mount.kind == "cgroup" and "memory" in mount.options:
            memory = mount.point
        elif mount.kind == "cgroup" and "pids" in mount.options:
            pids = mount.point
    unified, memory, pids = (point if point and os.access(point, os.W_OK) else "" for point in (unified, memory, pids))
    controllers: tuple[str, ...] = ()
    if unified:
        there = _read(os.path.join(unified, "cgroup.controllers")).split()
        controllers = tuple(name for name in ("memory", "pids") if name in there)
    return Hierarchies(unified, controllers, memory, pids)


def _delegated() -> str:
    """The version 2 group that this process is in, when an ordinary user may make groups below it."""
    point = next((mount.point for mount in mounts() if mount.kind == "cgroup2"), "")
    own = next((line[3:].strip() for line in _read("/proc/self/cgroup").splitlines() if line.startswith("0::")), "")
    path = os.path.join(point, own.lstrip("/")) if point and own else ""
    writable = path and os.access(path, os.W_OK) and os.access(os.path.join(path, "cgroup.procs"), os.W_OK)
    return path if writable else ""


def make(sandbox_id: str, limits: Limits) -> tuple[str, ...]:
    """Make the groups of a sandbox, with its limits; a stale group of that name is used again. Version 2 first."""
    found = hierarchies()
    made: list[str] = []
    try:
        for name in ("unified", "memory", "pids"):
            base = getattr(found, name)
            if not base or (name in found.controllers):
                continue
            path = os.path.join(base, _NAME, sandbox_id)
            os.makedirs(path, exist_ok=True)
            made.append(path)
            os.utime(path)
            _sweep(os.path.dirname(path))
            if name == "unified":
                with contextlib.suppress(OSError):  # Linux before 5.2 has no freezer here
                    thaw(path)  # one that a killed runtime left behind
                _unified_limits(base, path, found.controllers, limits)
            else:
                _write_limit(path, name, limits)
    except BaseException as error:
        remove(tuple(made), 0.0)
        if not isinstance(error, OSError):
            raise
        raise SandboxError(
            f"The control groups of {sandbox_id} can't be made: {error.strerror} ({error.filename}).",
            code="sandbox-cgroup",
        ) from error
    return tuple(made)


def keep(sandbox_id: str, groups: tuple[str, ...], limits: Limits) -> None:
    """Before the groups of a sandbox that has no init are used again: make anew what was swept, or will be soon."""
    try:
        for group in groups:
            os.utime(group)
    except FileNotFoundError:
        make(sandbox_id, limits)


def _sweep(directory: str) -> None:
    """Remove empty groups of sandboxes that nobody stopped. Young ones may be about to be joined.

    A group with an init in it is never empty; where there is none, :func:`keep` goes before each use.
    """
    with os.scandir(directory) as entries:
        groups = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    if len(groups) < 32:
        return
    for group in groups:
        with contextlib.suppress(OSError):
            if time.time() - group.stat().st_mtime > _OLD and not members(group.path):
                remove((group.path,), 0.0)


def _unified_limits(base: str, path: str, controllers: tuple[str, ...], limits: Limits) -> None:
    for name in controllers:
        for above in (base, os.path.dirname(path)):
            with contextlib.suppress(
                OSError
            ):  # already on, or a group with processes of its own: the write below tells
                _write(os.path.join(above, "cgroup.subtree_control"), f"+{name}")
    if "memory" in controllers:
        _write(os.path.join(path, "memory.max"), str(limits.memory or "max"))
    if "pids" in controllers:
        _write(os.path.join(path, "pids.max"), str(limits.pids or "max"))


def _write_limit(path: str, name: str, limits: Limits) -> None:
    if name == "memory":
        _write(os.path.join(path, "memory.limit_in_bytes"), str(limits.memory or -1))
    else:
        _write(os.path.join(path, "pids.max"), str(limits.pids or "max"))


def unified(groups: tuple[str, ...]) -> str:
    """The version 2 group among ``groups``, or an empty string."""
    return next((group for group in groups if os.path.exists(os.path.join(group, "cgroup.kill"))), "")


def make_for_call(above: str, call_id: str) -> str:
    """A version 2 group below ``above``, to be entered. Those of ended calls are swept when there are many."""
    calls = [name for name in os.listdir(above) if name.startswith("call-")]
    if len(calls) > 64:
        for name in calls:
            with contextlib.suppress(OSError):  # background processes are in it
                os.rmdir(os.path.join(above, name))
    path = os.path.join(above, f"call-{call_id}")
    os.makedirs(path, exist_ok=True)
    return path


def enter(group: str, pid: int) -> None:
    """Put a process into a group that was just made; made anew where another call swept it in between."""
    for attempt in range(5):
        try:
            _write(os.path.join(group, "cgroup.procs"), str(pid))
        except FileNotFoundError:
            if attempt == 4:
                raise
            os.makedirs(group, exist_ok=True)
        else:
            return


def members(group: str) -> set[int]:
    """Host pids in a group and all groups below it."""
    found: set[int] = set()
    for directory, _, _ in os.walk(group):
        found.update(int(pid) for pid in _read(os.path.join(directory, "cgroup.procs")).split())
    return found


def kill(group: str) -> None:
    """SIGKILL everything in a version 2 group and below, at once."""
    _write(os.path.join(group, "cgroup.kill"), "1")


def thaw(group: str) -> None:
    """Let everything in a version 2 group and below run."""
    _write(os.path.join(group, "cgroup.freeze"), "0")


def remove(groups: tuple[str, ...], patience: float = 5.0) -> None:
    """Remove groups that hold no process any more, waiting for the last to leave. Idempotent.

    A group that doesn't empty is left; the next sandbox of that name uses it again.
    """
    deadline = time.monotonic() + patience
    for group in groups:
        for directory, _, _ in os.walk(group, topdown=False):
            while not _removed(directory) and time.monotonic() < deadline:
                time.sleep(0.002)


def _removed(directory: str) -> bool:
    try:
        os.rmdir(directory)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def of_sandbox(sandbox_id: str) -> tuple[str, ...]:
    """The groups that exist for a sandbox of this name."""
    found = hierarchies()
    paths = (os.path.join(base, _NAME, sandbox_id) for base in (found.unified, found.memory, found.pids) if base)
    return tuple(path for path in paths if os.path.isdir(path))


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
