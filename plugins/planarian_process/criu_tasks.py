"""What runs in a sandbox, read from /proc, and what in it CRIU can't capture: found out before anything is stopped.

Everything read here was written by the sandbox's processes: names and arguments are bounded and never interpreted.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from planarian_core.errors import CaptureError
from planarian_core.model import ProcessInfo

_ARGV_LIMIT = 32 * 1024
_LABEL_LIMIT = 160
_STATES = {
    "R": "running", "S": "sleeping", "D": "waiting", "T": "stopped", "t": "traced", "Z": "zombie", "I": "idle",
}  # fmt: skip
_DUMPABLE_ANONYMOUS = frozenset({"eventfd", "eventpoll", "signalfd", "timerfd", "inotify", "fanotify", "pidfd"})
_DUMPABLE_DEVICES = {1: {3, 5, 7, 8, 9, 11}, 5: {0, 1, 2}, 10: {200}}  # memory devices, terminals, tun
_OWN_MEMORY = ("RssAnon", "RssShmem", "VmSwap")
_TERMINAL_MAJORS = frozenset({4, *range(136, 144)})
_OWN_PROC = re.compile(r"/proc/\d+$")  # CRIU writes its name down wrong; what lies below it is fine


@dataclass(frozen=True)
class Task:
    """A process of the sandbox: ``host`` and ``inside`` are its pids, ``tracer`` the host pid of its tracer or 0,
    ``memory`` the bytes that it has in no file, ``huge`` whether some of it is in huge pages that it asked for."""

    host: int
    inside: int
    argv: tuple[str, ...]
    cwd: str
    state: str
    tracer: int
    nested: bool
    memory: int = 0
    huge: bool = False

    @property
    def label(self) -> str:
        """For people: ``process 12 (python3 server.py)``; control characters are replaced."""
        text = " ".join(self.argv) or "?"
        clean = "".join(c if c.isprintable() else "?" for c in text[:_LABEL_LIMIT])
        return f"process {self.inside} ({clean}{'…' if len(text) > _LABEL_LIMIT else ''})"

    def info(self) -> ProcessInfo:
        return ProcessInfo(pid=self.inside, argv=self.argv, cwd=self.cwd, state=_STATES.get(self.state, self.state))


def _status(pid: int) -> dict[str, str]:
    text = Path(f"/proc/{pid}/status").read_text(errors="replace")
    return {key: value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}


def _bytes(status: Mapping[str, str], name: str) -> int:
    return int(status.get(name, "0 kB").split()[0]) * 1024


def _argv(pid: int, name: str) -> tuple[str, ...]:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        raw = file.read(_ARGV_LIMIT)
    if not raw:  # a zombie, or one that wiped its arguments
        return (f"[{name}]",)
    return tuple(part.decode(errors="replace") for part in raw.removesuffix(b"\0").split(b"\0"))


def _link(path: str) -> str:
    try:
        return os.readlink(os.fsencode(path)).decode(errors="replace")
    except OSError:  # a zombie has none
        return ""


def read_task(pid: int, depth: int, namespace: str) -> Task | None:
    """One process, or None when it is gone. ``depth`` counts pid namespaces down to the sandbox's own."""
    try:
        status = _status(pid)
        pids = status.get("NSpid", str(pid)).split()
        own = _link(f"/proc/{pid}/ns/pid")
        return Task(
            host=pid,
            inside=int(pids[depth - 1]) if len(pids) >= depth else int(pids[-1]),
            argv=_argv(pid, status.get("Name", "?")),
            cwd=_link(f"/proc/{pid}/cwd"),
            state=status.get("State", "?")[:1],
            tracer=int(status.get("TracerPid", "0")),
            nested=bool(own) and own != namespace,
            memory=sum(_bytes(status, name) for name in _OWN_MEMORY),
            huge=_bytes(status, "HugetlbPages") > 0,
        )
    except (FileNotFoundError, ProcessLookupError):
        return None


def read_tasks(init: int, pids: Iterable[int]) -> tuple[Task, ...]:
    """The processes ``pids`` of the tree below ``init``, ordered by the pid inside; those that ended are left out.

    Raises:
        CaptureError: init itself is gone.
    """
    try:
        depth = len(_status(init)["NSpid"].split())
        namespace = os.readlink(f"/proc/{init}/ns/pid")
    except (OSError, KeyError) as failure:
        raise CaptureError("the sandbox's init is gone", state="the sandbox does not run") from failure
    tasks = (read_task(pid, depth, namespace) for pid in dict.fromkeys((init, *pids)))
    return tuple(sorted((task for task in tasks if task is not None), key=lambda task: task.inside))


def tree_of(init: int) -> tuple[int, ...]:
    """Host pids of ``init`` and all its descendants."""
    found, waiting = [], [init]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                children = Path(f"/proc/{pid}/task/{thread}/children").read_text()
                waiting += [int(child) for child in children.split()]
    return tuple(found)


def inside_pids(init: int) -> dict[int, int]:
    """Host pid -> pid inside, for ``init`` and all its descendants."""
    return {task.host: task.inside for task in read_tasks(init, tree_of(init))}


def refuse_uncapturable(tasks: Sequence[Task]) -> None:
    """Find what CRIU can't capture, or would capture and then not restore.

    Raises:
        CaptureError: names the process and the cause.
    """
    users = {task.host: _link(f"/proc/{task.host}/ns/user") for task in tasks if task.state != "Z"}
    init_user = users.get(tasks[0].host, "") if tasks else ""
    by_host = {task.host: task for task in tasks}
    for task in tasks:
        if task.tracer:
            tracer = by_host[task.tracer].label if task.tracer in by_host else "a process outside the sandbox"
            _refuse(task, f"is traced by {tracer}", "end the debugger or tracer, then take the snapshot again")
        if task.nested:
            _refuse(task, "runs in a pid namespace of its own", "end it before the snapshot")
        if users.get(task.host, "") not in ("", init_user):
            _refuse(task, "runs in a user namespace of its own", "end it before the snapshot")
        if _OWN_PROC.match(task.cwd):
            _refuse(task, f"has {task.cwd} as its working directory", "let it change to another directory")
        _refuse_descriptors(task)


def several_networks(tasks: Sequence[Task]) -> bool:
    """Whether some process has a network namespace of its own within the sandbox."""
    return len({link for task in tasks if (link := _link(f"/proc/{task.host}/ns/net"))}) > 1


def await_dumper(read: Callable[[], tuple[Task, ...]], patience: float) -> tuple[Task, ...]:
    """Read the tasks once no CRIU traces them any more: one whose caller was killed ends its dump and lets go.

    After ``patience`` seconds it is ended; its tasks run on then, too.
    """
    deadline = time.monotonic() + patience
    while True:
        tasks = read()
        inside = {task.host for task in tasks}
        dumpers = {task.tracer for task in tasks if task.tracer and task.tracer not in inside and _is_criu(task.tracer)}
        if not dumpers:
            return tasks
        if time.monotonic() > deadline:
            for pid in dumpers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            deadline = time.monotonic() + patience
        time.sleep(0.01)


def _is_criu(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "criu"
    except OSError:
        return False


def wake(tasks: Sequence[Task]) -> None:
    """Let go on what a failed dump left stopped: those that were not stopped before."""
    for task in tasks:
        if task.state not in ("T", "t", "Z"):
            with contextlib.suppress(OSError):
                if _status(task.host).get("State", "")[:1] == "T":
                    os.kill(task.host, signal.SIGCONT)


def gone(tasks: Sequence[Task]) -> list[Task]:
    """Those that have ended since."""
    return [task for task in tasks if task.state != "Z" and _ended(task)]


def _ended(task: Task) -> bool:
    try:
        status = _status(task.host)
    except (FileNotFoundError, ProcessLookupError):
        return True
    return status.get("State", "")[:1] in ("Z", "X")


def _refuse(task: Task, cause: str, remedy: str) -> None:
    raise CaptureError(
        f"{task.label} {cause}; that can't be captured",
        code="capture-process",
        state="nothing was stopped; the sandbox runs on",
        remedy=remedy,
    )


def _refuse_descriptors(task: Task) -> None:
    try:
        numbers = os.listdir(f"/proc/{task.host}/fd")
    except OSError:  # ended meanwhile
        return
    for number in numbers:
        path = f"/proc/{task.host}/fd/{number}"
        target = _link(path)
        if target.startswith(("socket:", "pipe:", "pidfd:")) or not target:
            continue
        if target.startswith("anon_inode:"):
            kind = target.removeprefix("anon_inode:").strip("[]")
            if kind not in _DUMPABLE_ANONYMOUS:
                _refuse(task, f"holds a descriptor of kind {kind} ({number})", f"end {task.label}")
            continue
        if _OWN_PROC.match(target):
            _refuse(task, f"holds {target} open (descriptor {number})", "close it before the snapshot")
        try:
            found = os.stat(path)
        except OSError:
            continue
        major, minor = os.major(found.st_rdev), os.minor(found.st_rdev)
        terminal = major in _TERMINAL_MAJORS
        character = stat.S_ISCHR(found.st_mode) and not terminal and minor not in _DUMPABLE_DEVICES.get(major, ())
        if stat.S_ISBLK(found.st_mode) or character:
            _refuse(task, f"holds the device {target[:200]} ({major}:{minor}) open", f"end {task.label}")
