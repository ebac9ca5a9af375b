"""What lies waiting for a process, and settings of it that others can change while it doesn't run.

Descriptors are looked at through copies (``pidfd_getfd``), a few hundred at a time, so nothing inside can be swapped
for something else meanwhile, and nothing is opened.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import hashlib
import os
import select
import socket
import stat
import sys
import termios
from collections.abc import Iterator

from planarian_process.stillness_files import identity
from planarian_process.stillness_threads import Doubt, read
from planarian_process.stillness_watches import watched

_GETFD = 438
_BATCH = 200
_MOST = 20_000
_NEWIPC = 0x08000000
_SET_PIPE_SIZE, _PIPE_SIZE = 1031, 1032
_GET_SEALS, _SEALS = 1034, 2 | 4 | 8  # shrink, grow, write
_LARGEST_CONTENT = 64 * 1024
_UNIX_FILE = 0x89E0
_TERMINAL_MAJORS = frozenset({5, *range(136, 144)})
_LINE_DISCIPLINE, _EXCLUSIVE = 0x5424, 0x80045440
_EVENTS = select.POLLIN | select.POLLPRI | select.POLLOUT | getattr(select, "POLLRDHUP", 0)
_UNREAD = select.POLLIN | select.POLLPRI
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def holdings(pid: int, private_network: bool) -> list[bytes]:
    """Which descriptors a process has and how what lies behind them stands.

    Doubt where something unread waits for it, or where somebody could write without a trace.
    """
    names = os.listdir(f"/proc/{pid}/fd")
    if len(names) > _MOST:
        raise Doubt(f"process {pid} has more than {_MOST} descriptors")
    numbers = sorted(map(int, names))
    found = [repr(numbers).encode()]
    handle = os.pidfd_open(pid)
    try:
        for start in range(0, len(numbers), _BATCH):
            with _copies(handle, numbers[start : start + _BATCH]) as copies:
                found += _states(pid, copies, private_network)
    finally:
        os.close(handle)
    return found


@contextlib.contextmanager
def _copies(handle: int, numbers: list[int]) -> Iterator[dict[int, int]]:
    """Our copy -> the process's number."""
    copies: dict[int, int] = {}
    try:
        for number in numbers:
            copy = _LIBC.syscall(_GETFD, handle, number, 0) if _LIBC is not None else -1
            if copy < 0:
                raise Doubt(f"descriptor {number} can't be looked at: {os.strerror(ctypes.get_errno())}")
            copies[copy] = number
        yield copies
    finally:
        for copy in copies:
            os.close(copy)


def _states(pid: int, copies: dict[int, int], private_network: bool) -> list[bytes]:
    watch = select.poll()
    kinds = {}
    for copy in copies:
        kinds[copy] = os.fstat(copy)
        watch.register(copy, _EVENTS)
    ready = dict(watch.poll(0))
    found = []
    for copy, number in copies.items():
        try:
            state = _state(copy, kinds[copy], ready.get(copy, 0), private_network)
        except Doubt as doubt:
            raise Doubt(f"process {pid}, descriptor {number}: {doubt}") from None
        link = os.readlink(f"/proc/{pid}/fd/{number}")  # a file's present name
        found.append(os.fsencode(f"{number} {link} {identity(kinds[copy])} {ready.get(copy, 0)} {state}"))
        if link == "anon_inode:inotify":
            found += watched(pid, number)
    return found


def _state(copy: int, status: os.stat_result, ready: int, private_network: bool) -> str:
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFREG:
        if status.st_nlink == 0 and not _sealed(copy):  # whoever opens it through /proc can write to it
            raise Doubt("a file without a name")
        return ""
    if kind in (stat.S_IFDIR, stat.S_IFLNK):
        return ""
    if ready & select.POLLNVAL:  # opened as a name only
        return "name"
    if kind == stat.S_IFCHR and os.major(status.st_rdev) == 1:
        return ""
    if not kind:  # an event counter, a file watch, …: nobody else can open it; watches tell how much is unread
        return str(_count(copy, termios.FIONREAD))
    if kind == stat.S_IFIFO:
        return f"{fcntl.fcntl(copy, _PIPE_SIZE)} {_content(copy) if ready & select.POLLIN else ''}"
    if ready & _UNREAD:
        raise Doubt("something unread")
    if kind == stat.S_IFSOCK:
        return _socket(copy, ready, private_network)
    if kind == stat.S_IFCHR and os.major(status.st_rdev) in _TERMINAL_MAJORS:
        return _terminal(copy)
    raise Doubt("a device")


def _sealed(copy: int) -> bool:
    """Whether it is a memory file that nobody can change any more."""
    try:
        return fcntl.fcntl(copy, _GET_SEALS) & _SEALS == _SEALS
    except OSError:
        return False


def _content(pipe: int) -> str:
    """What lies in a pipe, which stays there. Whoever opens the pipe through /proc could exchange it."""
    size = _count(pipe, termios.FIONREAD)
    if size > _LARGEST_CONTENT or _LIBC is None:
        raise Doubt("much unread")
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        fcntl.fcntl(writer, _SET_PIPE_SIZE, fcntl.fcntl(pipe, _PIPE_SIZE))
        if _LIBC.tee(pipe, writer, ctypes.c_size_t(size), 2) != size:  # without waiting
            raise Doubt("something unread")
        return hashlib.blake2b(os.read(reader, size), digest_size=16).hexdigest()
    finally:
        os.close(reader)
        os.close(writer)


def _socket(copy: int, ready: int, private_network: bool) -> str:
    if ready & select.POLLERR:
        raise Doubt("an error unread")
    if not private_network:
        with socket.socket(fileno=os.dup(copy)) as held:
            if held.family != socket.AF_UNIX:
                raise Doubt("a socket in the host's network")
    queues = [_count(copy, termios.FIONREAD), _count(copy, termios.TIOCOUTQ)]
    if queues[0]:  # fewer bytes than the process waits for
        raise Doubt("something unread")
    return f"{queues} {_name(copy)}"


def _name(copy: int) -> str:
    """The file at which a Unix socket is bound: which one it is, and whether it still is there."""
    try:
        file = fcntl.ioctl(copy, _UNIX_FILE)
    except OSError:  # another kind of socket, or bound at none
        return ""
    try:
        status = os.fstat(file)
        return f"{os.readlink(f'/proc/self/fd/{file}')} {identity(status)} {status.st_nlink}"
    finally:
        os.close(file)


def _terminal(copy: int) -> str:
    """Settings, size, and what waits on either side."""
    try:
        settings = termios.tcgetattr(copy)
        size = fcntl.ioctl(copy, termios.TIOCGWINSZ, bytes(8))
    except (termios.error, OSError) as error:
        raise Doubt(f"a terminal that is gone ({error})") from error
    counts = [_count(copy, request) for request in (termios.FIONREAD, termios.TIOCOUTQ, _LINE_DISCIPLINE, _EXCLUSIVE)]
    if counts[0]:
        raise Doubt("something unread")
    return repr((settings, size, counts))


def _count(copy: int, request: int) -> int:
    """An ioctl's number; 0 where the kind has no such queue."""
    number = array.array("i", [0])
    try:
        fcntl.ioctl(copy, request, number)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTTY, errno.EOPNOTSUPP):
            raise
    return number[0]


def refuse_shared_memory(init: int) -> None:
    """Doubt when there is any System V shared memory, semaphore or message queue: anybody may use those by number.

    The kernel shows them to whoever is in their namespace, so this thread enters it for a moment.
    """
    own, theirs = -1, -1
    try:
        own, theirs = (os.open(f"/proc/{who}/ns/ipc", os.O_RDONLY | os.O_CLOEXEC) for who in ("thread-self", init))
        if os.path.sameopenfile(own, theirs):
            return  # nobody's in particular
        _enter(theirs)
        try:
            tables = [read(f"/proc/sysvipc/{name}") for name in ("shm", "sem", "msg")]
        finally:
            _enter(own)
    finally:
        for descriptor in (own, theirs):
            if descriptor >= 0:
                os.close(descriptor)
    if any(table.count(b"\n") > 1 for table in tables):
        raise Doubt("System V shared memory, semaphores or message queues")


def _enter(namespace: int) -> None:
    if _LIBC is None or _LIBC.setns(namespace, _NEWIPC) != 0:
        raise OSError(ctypes.get_errno(), "the IPC namespace can't be entered")
