"""Stops everything in a sandbox for an instant, and lets it go on, for the process backends without an image.

By its control group where it has one (v2 ``cgroup.freeze``, v1 freezer), and by SIGSTOP for what is not in one. What
is stopped is written down first, under the home, so that :func:`thaw` mends what a killed runtime left stopped. What
stood still before is never touched. Without a control group, a chain of processes each of which forks the next and dies
faster than one can look (some milliseconds) may get away.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from planarian_core.errors import CaptureError
from planarian_core.interfaces import RunningSandbox

PATIENCE = 10.0
"""Seconds that a sandbox has to come to a standstill."""
_CLEAN_LOOKS = 4


@dataclass(frozen=True)
class _Task:
    """A process by pid and start time; the latter as the kernel gives it, so that a set clock doesn't matter."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> _Task | None:
        """The living process ``pid``; None for a zombie, too."""
        if sys.platform == "linux":
            fields = _stat(f"/proc/{pid}/stat")
            return cls(pid, fields[19]) if fields and fields[0] not in "ZX" else None
        try:
            process = psutil.Process(pid)
            return cls(pid, repr(process.create_time())) if process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.Error:
            return None

    def signal(self, number: int) -> None:
        """Send a signal unless the process is gone or its pid belongs to another one now."""
        if _Task.of(self.pid) == self:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class _Journal:
    """The file that says what a runtime is about to stop; gone when all runs again."""

    def __init__(self, home: Path, sandbox: RunningSandbox) -> None:
        self.path = home / "sandboxes" / sandbox.spec.id / "stopped"

    def add(self, line: str) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # a killed runtime keeps the page cache, and a crashed machine keeps no stopped process: no fsync
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(line + "\n")

    def lines(self) -> list[str]:
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        return text.splitlines() if text.endswith("\n") else text.splitlines()[:-1]

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


@contextmanager
def standstill(sandbox: RunningSandbox, home: Path) -> Iterator[tuple[int, ...]]:
    """Stop all tasks of the sandbox, give their host pids, and let those go on that ran before.

    The runtime's own process and its ancestors are left out, should it have been started inside the sandbox.

    Raises:
        CaptureError: something can't be stopped; everything runs on.
    """
    thaw(sandbox, home)
    journal = _Journal(home, sandbox)
    own = _own()
    try:
        try:
            held = _freeze_group(sandbox, journal, own)
            _stop_rest(sandbox, journal, held | own, 1 if held else _CLEAN_LOOKS)
        except OSError as error:
            raise CaptureError(
                f"the sandbox can't be stopped: {error}",
                code="capture-standstill",
                state="nothing was captured; it goes on running",
            ) from error
        yield tuple(pid for pid in sandbox.tasks() if pid not in own)
    finally:
        thaw(sandbox, home)


def thaw(sandbox: RunningSandbox, home: Path) -> None:
    """Let run on whatever an instant stopped, also one of a runtime that was killed. Idempotent."""
    journal = _Journal(home, sandbox)
    lines = journal.lines()
    if not lines:
        return
    stopped = []
    for line in lines:
        kind, _, rest = line.partition(" ")
        if kind == "group" and rest in sandbox.live.cgroups:
            _set_group(Path(rest), frozen=False)
        elif kind == "task":
            pid, started = rest.split()
            stopped.append(_Task(int(pid), started))
    # children before parents, or a shell would see its job stopped; they were stopped in the opposite order
    for task in reversed(stopped):
        task.signal(signal.SIGCONT)
    journal.remove()


# --- control groups -------------------------------------------------------------------------------------------------


def _freezer(sandbox: RunningSandbox) -> Path | None:
    groups = [Path(path) for path in sandbox.live.cgroups]
    for control in ("cgroup.freeze", "freezer.state"):
        for group in groups:
            if (group / control).exists():
                return group
    return None


def _members(group: Path) -> set[int]:
    """All processes in a control group and those below it."""
    found: set[int] = set()
    for folder, _, _ in os.walk(group):
        with contextlib.suppress(OSError):
            found.update(int(line) for line in Path(folder, "cgroup.procs").read_text().split())
    return found


def _freeze_group(sandbox: RunningSandbox, journal: _Journal, own: set[int]) -> set[int]:
    """Freeze the sandbox's control group, if it has one; returns whom that holds."""
    group = _freezer(sandbox)
    if group is None or _members(group) & own:
        return set()
    journal.add(f"group {group}")
    deadline = time.monotonic() + PATIENCE
    _set_group(group, frozen=True)
    while not _is_frozen(group):
        if time.monotonic() > deadline:
            _give_up(sandbox.tasks())
        time.sleep(0.0005)
    return _members(group)


def _set_group(group: Path, *, frozen: bool) -> None:
    with contextlib.suppress(FileNotFoundError):
        if (group / "cgroup.freeze").exists():
            (group / "cgroup.freeze").write_text("1" if frozen else "0")
        elif (group / "freezer.state").exists():
            (group / "freezer.state").write_text("FROZEN" if frozen else "THAWED")


def _is_frozen(group: Path) -> bool:
    if (group / "cgroup.freeze").exists():
        return "frozen 1" in (group / "cgroup.events").read_text().splitlines() or not _members(group)
    state = (group / "freezer.state").read_text().strip()
    if state == "FREEZING":  # the legacy freezer can hang half-way until it is told again
        _set_group(group, frozen=True)
    return state == "FROZEN"


# --- signals --------------------------------------------------------------------------------------------------------


def _stop_rest(sandbox: RunningSandbox, journal: _Journal, leave: set[int], looks: int) -> None:
    """SIGSTOP everything but ``leave``, until so many looks in a row found no new task: a look can miss a process
    that is born while its parent dies.
    """
    clean = 0
    done: set[_Task] = set()
    deadline = time.monotonic() + PATIENCE
    while True:
        found = [_Task.of(pid) for pid in sandbox.tasks() if pid not in leave]
        fresh = [task for task in found if task is not None and task not in done]
        clean = 0 if fresh or None in found else clean + 1
        if time.monotonic() > deadline:
            _give_up(sandbox.tasks())
        if clean == looks:
            return
        done.update(fresh)
        running = [
            task for task in sorted(fresh, key=lambda t: (float(t.started), t.pid)) if not _stands_still(task.pid)
        ]
        for task in running:
            journal.add(f"task {task.pid} {task.started}")
            task.signal(signal.SIGSTOP)
        waiting = running
        while waiting := [task for task in waiting if not _stands_still(task.pid)]:
            if time.monotonic() > deadline:
                _give_up([task.pid for task in waiting])
            time.sleep(0.0005)


def _own() -> set[int]:
    """This process and its ancestors: whoever stops them is never heard of again."""
    own = {os.getpid()}
    with contextlib.suppress(psutil.Error):
        own.update(parent.pid for parent in psutil.Process().parents())
    return own


def _stands_still(pid: int) -> bool:
    """Whether no thread of the process can run now: stopped, dead, or waiting for a stopped vfork child."""
    if sys.platform != "linux":
        try:
            return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
        except psutil.Error:
            return True
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return True
    states = {_state(f"/proc/{pid}/task/{thread}/stat") for thread in threads} - {"T", "t", "Z", "X", ""}
    return not states or (states == {"D"} and _has_stopped_child(pid))


def _stat(path: str) -> list[str]:
    """The fields of a stat file behind the process's name (the first is the state); empty when it is gone."""
    try:
        with open(path, "rb") as stream:
            return stream.read(4096).rpartition(b")")[2].decode().split()
    except OSError:
        return []


def _state(path: str) -> str:
    return (_stat(path) or [""])[0]


def _has_stopped_child(pid: int) -> bool:
    try:
        children = psutil.Process(pid).children()
    except psutil.Error:
        return False
    return any(_state(f"/proc/{child.pid}/stat") == "T" for child in children)


def _give_up(pids: tuple[int, ...] | list[int]) -> None:
    names = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if not _stands_still(pid):
                names.append(f"{pid} ({process.name()}, {process.status()})")
    raise CaptureError(
        f"can't be stopped: {', '.join(names[:10]) or 'the control group'}",
        code="capture-standstill",
        state="nothing was captured; the sandbox goes on running",
        remedy="wait until it has finished its disk or device access, or end it",
    )
