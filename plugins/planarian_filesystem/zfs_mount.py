"""Mounts of datasets without the ``mount`` command: first a descriptor, then, where wanted, a place in the tree."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from planarian_core.mounts import mounts

_LIBC = ctypes.CDLL(None, use_errno=True)
_MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT = 429, 430, 431, 432  # the same on every architecture
_CLOSE_ON_EXEC = 1
_SET_FLAG, _SET_STRING, _CREATE = 0, 1, 6
_READ_ONLY, _NO_SUID, _NO_DEVICES, _NO_ATIME = 1, 2, 4, 0x10
_FROM_EMPTY_PATH = 4
_HERE = -100
_DETACH, _NO_FOLLOW = 2, 8


def attach(dataset: str, *, read_only: bool = False) -> int:
    """A descriptor of the top directory of a dataset or snapshot, mounted nowhere: gone when it is closed."""
    context = _call(_FSOPEN, b"zfs", _CLOSE_ON_EXEC, about=dataset)
    try:
        _call(_FSCONFIG, context, _SET_STRING, b"source", dataset.encode(), 0, about=dataset)
        if "@" in dataset:  # a file system is the same for all its mounts: a snapshot is read-only, a dataset isn't
            _call(_FSCONFIG, context, _SET_FLAG, b"ro", None, 0, about=dataset)
        _call(_FSCONFIG, context, _CREATE, None, None, 0, about=dataset)
        flags = _NO_SUID | _NO_DEVICES | _NO_ATIME | (_READ_ONLY if read_only else 0)
        return _call(_FSMOUNT, context, _CLOSE_ON_EXEC, flags, about=dataset)
    finally:
        os.close(context)


@contextlib.contextmanager
def attached(dataset: str, *, read_only: bool = False) -> Iterator[int]:
    fd = attach(dataset, read_only=read_only)
    try:
        yield fd
    finally:
        os.close(fd)


def place(fd: int, path: Path) -> None:
    """Give what :func:`attach` returned its place in the tree; the descriptor stays."""
    _call(_MOVE_MOUNT, fd, b"", _HERE, os.fsencode(path), _FROM_EMPTY_PATH, about=str(path))


def remove(path: Path) -> None:
    """Take whatever is mounted at a path out of the tree, also while it is used. Idempotent."""
    while os.path.ismount(path):
        if _LIBC.umount2(os.fsencode(path), _DETACH | _NO_FOLLOW) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))


def places() -> dict[str, str]:
    """What is mounted where: the dataset by path, of ZFS only; the uppermost where several are."""
    found = {}
    for mount in mounts():
        if mount.kind == "zfs":
            found[mount.point] = mount.source
        else:
            found.pop(mount.point, None)
    return found


def in_use(pool: str) -> set[str]:
    """The datasets of a pool that are mounted anywhere, in whatever mount namespace, or kept by an open file."""
    found = set()
    for counters in Path("/proc/spl/kstat/zfs", pool).glob("objset-*"):
        with contextlib.suppress(FileNotFoundError):  # it was the last use of that one
            for line in counters.read_text().splitlines():
                if line.startswith("dataset_name"):
                    found.add(line.split(maxsplit=2)[2])
    return found


def _call(number: int, *arguments: int | bytes | None, about: str) -> int:
    # Each argument as wide as a register: without its type ctypes would pass an int's lower half only.
    wide = [ctypes.c_char_p(a) if isinstance(a, bytes) or a is None else ctypes.c_long(a) for a in arguments]
    result = int(_LIBC.syscall(ctypes.c_long(number), *wide))
    if result < 0:
        failed = ctypes.get_errno()
        raise OSError(failed, os.strerror(failed), about)
    return result
