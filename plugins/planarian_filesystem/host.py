"""What the operating system offers beneath the portable calls, each behind a guard: write-back, clones, mounts."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import mmap
import os
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from planarian_core.mounts import mounts

LINUX = sys.platform == "linux"

_CLOCK_REALTIME_COARSE = 5
_STAMP_SLACK_NS = 20_000_000
_FICLONERANGE = 0x4020940D
_NO_CLONE = {errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM, errno.ETXTBSY}


@functools.cache
def _syncfs() -> Callable[[int], int] | None:
    if not LINUX:
        return None
    function = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    return function if callable(function) else None


def sync_filesystem(fd: int) -> None:
    """Write back all that is dirty on the filesystem of ``fd``; returns when it is on the disk.

    Without syncfs (macOS) it is ``os.sync``, which may return early: there, what must be durable is also fsynced.
    """
    syncfs = _syncfs()
    if syncfs is None:
        os.sync()
    elif syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"syncfs: {os.strerror(number)}")


def syncs_whole_filesystem() -> bool:
    """Whether :func:`sync_filesystem` alone makes files durable."""
    return _syncfs() is not None


def stamp_floor() -> int:
    """A time in ns such that no file changed from now on gets an older ctime.

    Linux stamps files from the coarse clock, so that is exact there; elsewhere it is now less some slack.
    """
    if LINUX:
        return time.clock_gettime_ns(_CLOCK_REALTIME_COARSE)
    return time.time_ns() - _STAMP_SLACK_NS


def wait_past(stamp: int) -> None:
    """Wait (one clock tick, at most 50 ms) until a later change can be told from ``stamp``, a ctime in ns."""
    deadline = time.monotonic() + 0.05
    while stamp_floor() <= stamp and time.monotonic() < deadline:
        time.sleep(0.001)


def clone_range(source: int, offset: int, length: int, target: int, target_offset: int) -> bool:
    """Share extents (a reflink) instead of copying; False where the filesystem can't."""
    if not LINUX:
        return False
    import fcntl

    try:
        fcntl.ioctl(target, _FICLONERANGE, struct.pack("=qQQQ", source, offset, length, target_offset))
    except OSError as error:
        if error.errno in _NO_CLONE:
            return False
        raise
    return True


def stat_proves_content(directory: Path) -> bool:
    """Whether an unchanged ctime after a sync proves unchanged content on this filesystem; tried, not looked up.

    A page that is dirty already takes writes through a mapping without a new time stamp. Filesystems with write-back
    protect the page again when they clean it, so after a sync the next write stamps the file; tmpfs never does. The
    trial uses a file of its own that has no name in ``directory`` (where that can't be: one in its parent).
    """
    try:
        fd = _nameless_file(directory)
    except OSError:
        return False
    try:
        before = time.time_ns()
        os.ftruncate(fd, mmap.PAGESIZE)
        with mmap.mmap(fd, mmap.PAGESIZE) as page:
            page[0] = 1
            sync_filesystem(fd)
            first = os.fstat(fd).st_ctime_ns
            wait_past(first)
            page[0] = 2
            second = os.fstat(fd).st_ctime_ns
        honest_clock = before - _STAMP_SLACK_NS <= first <= time.time_ns() + _STAMP_SLACK_NS
        return second > first and honest_clock
    except (OSError, ValueError):
        return False
    finally:
        os.close(fd)


def _nameless_file(directory: Path) -> int:
    flag = getattr(os, "O_TMPFILE", 0)
    if flag:
        with contextlib.suppress(OSError):
            return os.open(directory, flag | os.O_RDWR | os.O_CLOEXEC, 0o600)
    if os.lstat(directory).st_dev != os.lstat(directory.parent).st_dev:
        raise OSError(errno.EXDEV, "no place for a trial file")
    fd, name = tempfile.mkstemp(prefix=".planarian-trial-", dir=directory.parent)
    os.unlink(name)
    return fd


def same_mount(one: int, other: int) -> bool:
    """Whether a rename between two open directories can work: same filesystem through the same mount."""
    if os.fstat(one).st_dev != os.fstat(other).st_dev:
        return False
    return _mount_id(one) == _mount_id(other)


def _mount_id(fd: int) -> str:
    try:
        text = Path(f"/proc/self/fdinfo/{fd}").read_text()
    except OSError:
        return ""
    return next((line for line in text.splitlines() if line.startswith("mnt_id:")), "")


def mounts_below(directory: Path) -> frozenset[str]:
    """Paths, relative to ``directory``, where something is mounted below it; empty where the system can't say."""
    prefix = os.path.realpath(directory) + "/"
    try:
        points = [mount.point for mount in mounts()]
    except OSError:
        return frozenset()
    return frozenset(point[len(prefix) :] for point in points if point.startswith(prefix))
