"""What the CRIU backend needs of mount and network namespaces, without a helper program and without forking Python.

A namespace belongs to a thread. So a throw-away thread enters (or makes) one, does its work there (a child process
that it starts stays in it) and ends; the rest of the program never notices.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18

# The same numbers on every machine; the calls are there since Linux 5.2.
_SYS_FSOPEN, _SYS_FSCONFIG, _SYS_FSMOUNT = 430, 431, 432
_FSCONFIG_SET_STRING, _FSCONFIG_CMD_CREATE, _CLOEXEC = 1, 6, 1

_SIOCSIFFLAGS = 0x8914
_IFF_UP_LOOPBACK_RUNNING = 0x49

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Give the calling thread namespaces of its own; the pid namespace is for its children."""
    _check(_libc.unshare(flags), "unshare")


def mount(source: str | None, target: str, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    """mount(2)."""
    arguments = [None if value is None else os.fsencode(value) for value in (source, target, kind, data)]
    _check(
        _libc.mount(arguments[0], arguments[1], arguments[2], ctypes.c_ulong(flags), arguments[3]), f"mount {target}"
    )


def memory_directory(size: int) -> int:
    """A descriptor on a directory in memory that takes ``size`` bytes at most. Nobody sees it mounted anywhere, and it
    goes with its last descriptor.
    """
    context = _libc.syscall(_SYS_FSOPEN, b"tmpfs", _CLOEXEC)
    _check(context, "fsopen")
    try:
        for key, value in (("size", str(size)), ("mode", "0700")):
            set_string = _libc.syscall(_SYS_FSCONFIG, context, _FSCONFIG_SET_STRING, key.encode(), value.encode(), 0)
            _check(set_string, f"tmpfs {key}")
        _check(_libc.syscall(_SYS_FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0), "tmpfs")
        descriptor: int = _libc.syscall(_SYS_FSMOUNT, context, _CLOEXEC, 0)
        _check(descriptor, "fsmount")
    finally:
        os.close(context)
    return descriptor


def write_out(descriptor: int) -> None:
    """Begin to write a file's data to the disk; does not wait for it."""
    _check(_libc.sync_file_range(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), 2), "sync_file_range")


def begin_in_thread(action: Callable[[], T]) -> Future[T]:
    """Begin ``action`` in a thread of its own, which may change its namespaces."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(action())
        except BaseException as failure:  # handed on to whoever asks for the outcome
            outcome.set_exception(failure)

    threading.Thread(target=run, name="planarian-criu-namespace").start()
    return outcome


def in_thread(action: Callable[[], T]) -> T:
    """The same, to its end."""
    return begin_in_thread(action).result()


def own_mounts() -> None:
    """Give the calling thread (use :func:`in_thread`) a mount namespace that nothing propagates out of."""
    unshare(CLONE_NEWNS)
    mount(None, "/", None, MS_REC | MS_PRIVATE)


def enter_network(pid: int) -> None:
    """Put the calling thread (use :func:`in_thread`) into the network namespace of a process."""
    descriptor = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(descriptor, CLONE_NEWNET), "setns")
    finally:
        os.close(descriptor)


def shares_network(pid: int) -> bool:
    """Whether a process is in the network namespace of the calling thread."""
    return os.path.samestat(os.stat(f"/proc/{pid}/ns/net"), os.stat("/proc/thread-self/ns/net"))


def loopback_up(pid: int) -> None:
    """Bring ``lo`` up in the network namespace of a process: CRIU leaves it down in an empty one."""

    def up() -> None:
        enter_network(pid)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP_LOOPBACK_RUNNING))

    in_thread(up)


def stop_thread(process: int, thread: int) -> None:
    """Queue SIGSTOP for one thread of a process (tgkill); a thread that is gone is no error."""
    if _libc.tgkill(process, thread, signal.SIGSTOP) < 0 and ctypes.get_errno() != errno.ESRCH:
        _check(-1, f"tgkill {process}/{thread}")
