"""What the kernel tells of threads: whether they wait, where, and how often they have run."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass

_LARGEST = 64 * 1024
_FIRST_QUEUED = 32
_THREADS = 20_000

_CALLS = {
    "x86_64": {
        "read": 0, "poll": 7, "select": 23, "pause": 34, "nanosleep": 35, "accept": 43, "recvfrom": 45, "recvmsg": 47,
        "wait4": 61, "rt_sigtimedwait": 128, "rt_sigsuspend": 130, "futex": 202, "restart_syscall": 219,
        "clock_nanosleep": 230, "epoll_wait": 232, "waitid": 247, "pselect6": 270, "ppoll": 271, "epoll_pwait": 281,
        "accept4": 288,
    },
    "aarch64": {
        "epoll_pwait": 22, "read": 63, "pselect6": 72, "ppoll": 73, "waitid": 95, "futex": 98, "nanosleep": 101,
        "clock_nanosleep": 115, "restart_syscall": 128, "rt_sigsuspend": 133, "rt_sigtimedwait": 137, "accept": 202,
        "recvfrom": 207, "recvmsg": 212, "accept4": 242, "wait4": 260,
    },
}  # fmt: skip
"""System calls that only wait: cut off while they do, they have done nothing yet."""
_TIMEOUTS = {"poll": 2, "epoll_wait": 3, "epoll_pwait": 3}
"""Which argument is the time left, where it is passed by value: a thread that waits again counts it down."""
_INSTRUCTION = {"x86_64": 2, "aarch64": 4}
"""Bytes of the instruction that makes a system call: a call that is to be made anew stands before it."""


class Doubt(Exception):
    """Something can't be proven; says what."""


def machine() -> str:
    """This processor's kind, if its system calls are known here."""
    kind = platform.machine()
    if kind not in _CALLS:
        raise Doubt(f"system calls of {kind} are not known here")
    return kind


def read(path: str) -> bytes:
    """A file of /proc in one piece."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = os.read(descriptor, _LARGEST)
    finally:
        os.close(descriptor)
    if len(content) == _LARGEST:
        raise Doubt(f"{path} is too long")
    return content


def threads(pid: int) -> list[str]:
    """Names of the directories of a process's threads."""
    found = os.listdir(f"/proc/{pid}/task")
    if len(found) > _THREADS:
        raise Doubt(f"process {pid} has more than {_THREADS} threads")
    return [f"/proc/{pid}/task/{name}" for name in sorted(found)]


# --- where a thread waits -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pause:
    """A thread that doesn't run: its system call (-1: in none) with arguments, stack and instruction pointer, and how
    often it has given up the processor by itself.
    """

    call: int
    arguments: tuple[str, ...]
    stack: int
    instruction: int
    waits: int
    stopped: bool


def pause(thread: str, status: bytes = b"") -> Pause:
    """Where a thread stands; ``status`` is its status file, if that was read already. Doubt when it runs."""
    fields = read(f"{thread}/syscall").decode("ascii", "replace").split()
    if fields[0] == "running":
        raise Doubt(f"thread {os.path.basename(thread)} runs")
    status = status or read(f"{thread}/status")
    waits = status.rpartition(b"\nvoluntary_ctxt_switches:\t")[2].split(b"\n", 1)[0]
    call = int(fields[0])
    where = [int(field, 16) for field in fields[-2:]]
    return Pause(call, tuple(fields[1:-2]), where[0], where[1], int(waits), _state(status) == b"T")


def pauses(pid: int) -> dict[str, Pause]:
    """Where all threads of a process stand."""
    return {thread: pause(thread) for thread in threads(pid)}


def resumed(before: Pause, after: Pause) -> bool:
    """Whether a thread that was held at ``before`` waits at ``after`` again and has waited nowhere else since.

    Some calls the kernel makes anew, as if nothing had been. Others end with EINTR where they are cut off: in a
    capture by CRIU, every one with a timeout and epoll's. Such a thread runs a little code of its own before it makes
    the same call at the same place; so does each restored copy, because the image was taken where the call had ended.
    """
    kind = machine()
    advanced = after.instruction - before.instruction
    if after.stack != before.stack or after.waits != before.waits + 1 or advanced not in (0, _INSTRUCTION[kind]):
        return False
    if after.stopped:  # by a signal: it does not come to its own code
        return True
    names = {number: name for name, number in _CALLS[kind].items()}
    name = names.get(after.call, "")
    if not name:
        return False
    if name == "restart_syscall":
        return before.call in names
    free = _TIMEOUTS.get(name)
    same = all(x == y for i, (x, y) in enumerate(zip(before.arguments, after.arguments, strict=True)) if i != free)
    return same and before.call == after.call


# --- what a thread has done -----------------------------------------------------------------------------------------


def _state(status: bytes) -> bytes:
    at = status.find(b"\nState:\t")
    return status[at + 8 : at + 9]


def _lasting(status: bytes) -> tuple[bytes, bytes]:
    """Of a status file what stays as it is while nothing runs and nobody interferes, and the counters of its runs.

    Left out are sizes in memory, which change when memory is reclaimed, and the room for descriptors.
    """
    table, groups = status.find(b"\nFDSize:"), status.find(b"\nGroups:")
    sizes, signals = status.find(b"\nVmPeak:"), status.find(b"\nSigPnd:")
    counters = status.rfind(b"\nvoluntary_ctxt_switches:")
    if not 0 < table < groups < sizes < signals < counters:
        raise Doubt("a process ends, or its status has an unknown form")
    return status[:table] + status[groups:sizes] + status[signals:counters], status[counters:]


def _settled(status: bytes, thread: str) -> None:
    if _state(status) not in (b"S", b"T"):
        raise Doubt(f"thread {os.path.basename(thread)} does not wait")
    if b"\nTracerPid:\t0\n" not in status:
        raise Doubt(f"thread {os.path.basename(thread)} is traced")


def _pending(status: bytes) -> int:
    """The signals that wait for a thread or its process, as a mask."""
    lines = status[status.find(b"\nSigPnd:\t") :].split(b"\n", 3)[1:3]
    return int(lines[0].partition(b"\t")[2], 16) | int(lines[1].partition(b"\t")[2], 16)


def thread_evidence(thread: str) -> list[bytes]:
    """Counters, identity, signals and scheduling of one thread. Doubt when it does not stand still by itself, or when
    a signal waits for it of the kind that queues up: one more of them would not show.
    """
    status = read(f"{thread}/status")
    _settled(status, thread)
    if _pending(status) >> _FIRST_QUEUED - 1:
        raise Doubt(f"thread {os.path.basename(thread)} has a signal waiting")
    lasting, counters = _lasting(status)
    return [lasting, counters, _scheduling(int(thread.rpartition("/")[2]))]


def run_times(thread: str) -> bytes:
    """Nanoseconds on a processor, nanoseconds in a queue for one, turns. Doubt where the kernel doesn't count."""
    found = read(f"{thread}/schedstat")
    if found.startswith(b"0 "):
        raise Doubt("the kernel does not count run time")
    return found


def init_evidence(init: int) -> list[bytes]:
    """Of the sandbox's init what its children get from it, and that it waits for a call at its usual place."""
    (thread,) = threads(init)
    status = read(f"{thread}/status")
    _settled(status, thread)
    if _pending(status):
        raise Doubt("the sandbox's init has a signal waiting")
    where = pause(thread, status)
    if where.call not in (_CALLS[machine()].get("poll"), _CALLS[machine()]["ppoll"]):
        raise Doubt("the sandbox's init does not wait for a call")
    place = f"{where.call} {where.stack} {where.instruction}".encode()
    return [_lasting(status)[0], place, _scheduling(init)]


def process_evidence(pid: int) -> list[bytes]:
    """What others can change of a process as a whole without waking it, and since when it runs."""
    fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    family = fields[1:6]  # parent, group, session, terminal and its foreground group
    return [b" ".join([*family, fields[19]]), read(f"/proc/{pid}/limits"), read(f"/proc/{pid}/oom_score_adj")]


def start_time(pid: int) -> bytes:
    """Clock ticks since boot: with the pid, which process it is."""
    return read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[19]


def _scheduling(thread: int) -> bytes:
    """Priority and policy. The processors that it may use are in its status."""
    try:
        nice = os.getpriority(os.PRIO_PROCESS, thread)
        policy = os.sched_getscheduler(thread)
        return f"{nice} {policy} {os.sched_getparam(thread).sched_priority}".encode()
    except ProcessLookupError as error:
        raise Doubt("a thread ends") from error


def numbers_inside(pids: Sequence[int]) -> dict[int, int]:
    """Host pid -> the pid that each has in the innermost namespace."""
    found = {}
    for pid in pids:
        line = read(f"/proc/{pid}/status").partition(b"\nNSpid:\t")[2].split(b"\n", 1)[0]
        found[pid] = int(line.split()[-1])
    return found
