"""What only a process itself can bring about, so that it is looked for once, after a capture: things that would change
its state later without a thread of it running, or let others change it without a trace.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from planarian_process.stillness_files import mappings
from planarian_process.stillness_threads import Doubt, numbers_inside, pause, read, threads

_ANONYMOUS = frozenset({"eventfd", "eventpoll", "signalfd", "inotify", "pidfd", "timerfd"})
_ARMED = re.compile(rb"^it_value: \((?!0, 0\))", re.MULTILINE)
_SHARED = re.compile(rb"^[0-9a-f]+-[0-9a-f]+ .w.s [0-9a-f]+ [0-9a-f:]+ [1-9]\d* +/(?!.* \(deleted\)$)", re.MULTILINE)
_FUTEXES = frozenset({202, 449, 455} if os.uname().machine == "x86_64" else {98, 449, 455})
_MAGIC = (0x54564319).to_bytes(4, "little"), (0x55053847).to_bytes(4, "little")
_TASK, _TIMERS, _POSIX, _SECONDS, _MICROSECONDS = 3, 7, 4, 3, 4


def refuse_doubtful(init: int, pids: Sequence[int], images: Path) -> None:
    """Doubt, naming the first thing that speaks against a proof.

    Args:
        init: host pid of the sandbox's init.
        pids: the other processes.
        images: CRIU's image of them, just taken: the one place where a process's alarms can be seen.
    """
    _refuse_writable_memory(init, pids)
    inside = numbers_inside(pids)
    for pid in pids:
        if _alarms(images / f"core-{inside[pid]}.img"):
            raise Doubt(f"process {pid} has set an alarm")
        if read(f"/proc/{pid}/timers"):
            raise Doubt(f"process {pid} has a timer")
        _refuse_mappings(pid)
        _refuse_descriptors(pid)


def _refuse_writable_memory(init: int, pids: Sequence[int]) -> None:
    """Nobody inside may write into another process's memory unseen. By ``ptrace`` it shows: the other one is woken.

    A sandbox whose ``/proc`` is read-only was started with the filter that refuses ``process_vm_writev``, too.
    """
    if not proc_is_read_only(init):
        raise Doubt("the sandbox's /proc is writable: memory could be changed through it")
    for pid in pids:
        if b"\nSeccomp:\t2\n" not in read(f"/proc/{pid}/status"):
            raise Doubt(f"process {pid} has no system-call filter")


def proc_is_read_only(init: int) -> bool:
    """Whether nothing in a sandbox can change a process, its own included, through the sandbox's ``/proc``."""
    root = os.open(f"/proc/{init}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        proc = os.open("proc", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root)
        try:
            return bool(os.fstatvfs(proc).f_flag & os.ST_RDONLY)
        finally:
            os.close(proc)
    finally:
        os.close(root)


def _refuse_mappings(pid: int) -> None:
    maps = mappings(pid)
    if b" /[aio]" in maps:
        raise Doubt(f"process {pid} has asynchronous input or output, which needs no thread of it")
    # A waiter in a file's memory can be moved to another place of that file by whoever maps it.
    if _SHARED.search(maps) and any(pause(thread).call in _FUTEXES for thread in threads(pid)):
        raise Doubt(f"process {pid} waits in memory that it shares through a file")


def _refuse_descriptors(pid: int) -> None:
    for name in os.listdir(f"/proc/{pid}/fd"):
        link = os.readlink(f"/proc/{pid}/fd/{name}")
        if not link.startswith("anon_inode:"):
            continue
        kind = link.removeprefix("anon_inode:").strip("[]")
        if kind not in _ANONYMOUS:
            raise Doubt(f"process {pid} has a descriptor of kind {kind}")
        if kind == "timerfd" and _ARMED.search(read(f"/proc/{pid}/fdinfo/{name}")):
            raise Doubt(f"process {pid} has a timer")


def _alarms(image: Path) -> bool:
    """Whether a process's image has an interval timer (``alarm``, ``setitimer``) or POSIX timer that is set."""
    content = image.read_bytes()
    if (content[:4], content[4:8]) != _MAGIC:
        raise Doubt(f"{image.name} has an unknown form")
    length = int.from_bytes(content[8:12], "little")
    for number, timer in _fields(_message(_message(content[12 : 12 + length], _TASK), _TIMERS)):
        if number == _POSIX or any(field in (_SECONDS, _MICROSECONDS) and value for field, value in _fields(timer)):
            return True
    return False


def _message(data: bytes, wanted: int) -> bytes:
    for number, value in _fields(data):
        if number == wanted and isinstance(value, bytes):
            return value
    raise Doubt("the image of a process has an unknown form")


def _fields(data: bytes | int) -> Iterator[tuple[int, bytes | int]]:
    """Numbers and values of a protobuf message's fields."""
    if isinstance(data, int):
        raise Doubt("the image of a process has an unknown form")
    position = 0
    while position < len(data):
        key, position = _number(data, position)
        kind = key & 7
        if kind == 0:
            value, position = _number(data, position)
            yield key >> 3, value
            continue
        size, position = _number(data, position) if kind == 2 else ({1: 8, 5: 4}[kind], position)
        yield key >> 3, data[position : position + size]
        position += size


def _number(data: bytes, position: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
