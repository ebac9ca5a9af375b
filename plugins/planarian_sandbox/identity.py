"""Who a process is, beyond its reusable pid: its start time and the boot, and a pidfd that holds on to it."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from planarian_core.boot import boot_id
from planarian_core.errors import SandboxError
from planarian_core.model import LiveSandbox

GONE = "The sandbox's init is gone: it was stopped, killed, or the host ran out of memory or was restarted."
GONE_REMEDY = "start it again, or roll back to a statepoint"


def process_stat(pid: int) -> tuple[str, int] | None:
    """State letter and start time (clock ticks since boot) of ``pid``; None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[0].decode(), int(fields[19])


def pid_namespace(pid: int) -> int | None:
    """The inode of the pid namespace of ``pid``, None when it is gone or not ours to look at."""
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return None


def inside_pid(pid: int) -> int | None:
    """The pid that ``pid`` has in the innermost namespace it is in."""
    return _last_number(pid, b"NSpid:")


def file_system_user(pid: int) -> int | None:
    """The host user id as which ``pid`` makes files."""
    return _last_number(pid, b"Uid:")


def _last_number(pid: int, field: bytes) -> int | None:
    """The last number of a line of the process's status."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(field):
                    return int(line.split()[-1])
    except OSError:
        return None
    return None


def own_memory(pid: int) -> int:
    """Bytes of memory that ``pid`` takes beyond what lies in files, its share where it shares; 0 when it is gone."""
    fields = (b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:")
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            return sum(int(line.split()[1]) * 1024 for line in file if line.startswith(fields))
    except OSError:
        return 0


def parent_pid(pid: int) -> int | None:
    """The host pid of the parent of ``pid``."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError):
        return None


@contextmanager
def init_handle(live: LiveSandbox) -> Iterator[int | None]:
    """A pidfd of the sandbox's init, or None when that very process is gone (a reused pid is not it)."""
    descriptor: int | None = None
    try:
        if live.boot_id == boot_id():
            try:
                descriptor = os.pidfd_open(live.init_pid)
            except ProcessLookupError:
                descriptor = None
        if descriptor is not None:
            # Looked at after the pidfd was opened: if the start time fits now, the descriptor is of that process.
            found = process_stat(live.init_pid)
            if found is None or found[1] != live.init_start or found[0] in "ZX" or exited(descriptor):
                os.close(descriptor)
                descriptor = None
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


@contextmanager
def running_init(live: LiveSandbox) -> Iterator[int]:
    """As :func:`init_handle`, but SandboxError when the init is gone."""
    with init_handle(live) as descriptor:
        if descriptor is None:
            raise SandboxError(GONE, code="sandbox-gone", state="nothing runs in it", remedy=GONE_REMEDY)
        yield descriptor


def exited(pidfd: int, timeout: float = 0.0) -> bool:
    """Whether the process has ended, waiting up to ``timeout`` seconds for it."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(timeout * 1000))


def kill(pidfd: int) -> None:
    """SIGKILL through a pidfd; a process that has ended already is fine."""
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        return


def namespace_pids(init: int) -> tuple[int, ...]:
    """Host pids of all processes in the pid namespace of ``init``, ``init`` first."""
    wanted = pid_namespace(init)
    if wanted is None:
        return ()
    others = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != init]
    return (init, *sorted(pid for pid in others if pid_namespace(pid) == wanted))


def inside_chain(init: int, claimed: int, user: int) -> tuple[int, ...] | None:
    """Inside pids of the process ``claimed`` (an inside pid) and its ancestors below ``init``.

    None when the sandbox has no such process, or it isn't that user's (a host user id).
    """
    for pid in namespace_pids(init)[1:]:
        if inside_pid(pid) != claimed or file_system_user(pid) != user:
            continue
        chain: list[int] = []
        current: int | None = pid
        while current is not None and current != init and len(chain) < 10_000:
            inside = inside_pid(current)
            if inside is None:
                return None
            chain.append(inside)
            current = parent_pid(current)
        return tuple(chain) if current == init else None
    return None


def descendants(pid: int) -> set[int]:
    """Host pids below ``pid``, by one scan of /proc."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (parent := parent_pid(int(name))) is not None:
            children.setdefault(parent, []).append(int(name))
    found: set[int] = set()
    todo = [pid]
    while todo:
        for child in children.get(todo.pop(), ()):
            if child not in found:
                found.add(child)
                todo.append(child)
    return found


def end_below(root: int, namespace: int, patience: float = 5.0) -> bool:
    """End ``root`` and all below it; only processes of the pid namespace ``namespace`` are touched.

    True when nothing of it is left after ``patience`` seconds.
    """
    return end_found(lambda: {root} | descendants(root), patience, namespace)


def end_found(find: Callable[[], set[int]], patience: float, namespace: int | None = None) -> bool:
    """As :func:`end_below`, for all host pids that ``find`` gives; without ``namespace`` of any.

    First everything is stopped, until no new process shows up, so that nothing can fork away; then it is killed.
    Only what ``find`` gives twice is touched, the second time known by its start: no other that took a pid meanwhile.
    """
    deadline = time.monotonic() + patience
    stopped: set[tuple[int, int]] = set()
    while fresh := {process for process, _ in _held(find(), namespace)} - stopped:
        if time.monotonic() > deadline:
            break
        for process, pidfd in _held(find() & {pid for pid, _ in fresh}, namespace):
            if process in fresh:
                stopped.add(process)
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
    pids = {pid for pid, _ in stopped}
    for process, pidfd in _held(pids, namespace):
        if process in stopped:
            kill(pidfd)
    ends = (
        process not in stopped or exited(pidfd, max(0.0, deadline - time.monotonic()))
        for process, pidfd in _held(pids, namespace)
    )
    return all(ends) and not fresh


def _held(pids: set[int], namespace: int | None) -> Iterator[tuple[tuple[int, int], int]]:
    """Those of the processes that run in a pid namespace: pid and start of each, and a pidfd, good until the next.

    One at a time, because there may be more processes than this one may have descriptors.
    """
    for pid in pids:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            # Looked at after the pidfd was opened, as in :func:`init_handle`.
            found = process_stat(pid) if namespace in (None, pid_namespace(pid)) else None
            if found is not None and not exited(pidfd):
                yield (pid, found[1]), pidfd
        finally:
            os.close(pidfd)
