"""Subvolumes by name in a directory of the pool's: opened, exchanged and removed with all that is nested in them."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterator

from planarian_filesystem import btrfs_ioctl
from planarian_filesystem.descent import WRITE, Descent

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_EXCHANGE = 2
_LIBC = ctypes.CDLL(None, use_errno=True)
_DEEPEST = 64


@contextlib.contextmanager
def opened(directory: int, name: str) -> Iterator[int]:
    """The top directory of the subvolume ``name``; FileNotFoundError when that is no subvolume."""
    fd = os.open(name, _OPEN, dir_fd=directory)
    try:
        if os.fstat(fd).st_ino != btrfs_ioctl.FIRST_INODE:
            raise FileNotFoundError(errno.ENOENT, "not a subvolume", name)
        yield fd
    finally:
        os.close(fd)


def exchange(directory: int, one: str, other: str) -> None:
    """Give two names in a directory each other's content, in one step."""
    if _LIBC.renameat2(directory, os.fsencode(one), directory, os.fsencode(other), _EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), one)


def remove(directory: int, name: str) -> None:
    """Remove a subvolume, what is nested in it included. Idempotent."""
    try:
        _destroy(directory, name)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        with opened(directory, name) as fd:
            _remove_nested(fd)
        _destroy(directory, name)


def _destroy(directory: int, name: str) -> None:
    try:
        btrfs_ioctl.destroy(directory, name)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EPERM, errno.EACCES) or os.geteuid() == 0:
            raise
        with opened(directory, name) as fd:  # an ordinary user may remove only what is writable
            btrfs_ioctl.set_read_only(fd, False)
        btrfs_ioctl.destroy(directory, name)


def _remove_nested(fd: int) -> None:
    try:
        for number, _ in btrfs_ioctl.subvolumes_below(fd):
            _remove_by_id(fd, number, 0)
    except PermissionError:
        _remove_by_walk(fd)


def _remove_by_id(fd: int, number: int, depth: int) -> None:
    """By id, not by path: the paths inside are a sandbox's."""
    try:
        btrfs_ioctl.destroy_by_id(fd, number)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY or depth > _DEEPEST:
            raise
        for below in btrfs_ioctl.children_of(fd, number):
            _remove_by_id(fd, below, depth + 1)
        btrfs_ioctl.destroy_by_id(fd, number)


def _remove_by_walk(fd: int) -> None:
    """Without privilege: find nested subvolumes by looking at every directory, and remove them from below."""
    btrfs_ioctl.set_read_only(fd, False)
    with Descent(fd, WRITE) as descent:
        todo = [_directories(descent.fd)]
        while todo:
            if todo[-1]:
                descent.down(todo[-1].pop())
                todo.append(_directories(descent.fd))
                continue
            todo.pop()
            if not todo:
                return
            name, nested = os.path.basename(descent.path()), os.fstat(descent.fd).st_ino == btrfs_ioctl.FIRST_INODE
            descent.up(restore_mode=not nested)
            if nested:
                _destroy(descent.fd, name)


def _directories(fd: int) -> list[str]:
    with os.scandir(fd) as found:
        return [entry.name for entry in found if entry.is_dir(follow_symlinks=False)]
