"""What a directory tree is, told by the system calls alone: the judge of exactness, independent of every backend."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from pathlib import Path
from typing import Any

Description = dict[bytes, tuple[Any, ...]]


def describe(root: Path | str) -> Description:
    """All below ``root`` and itself (``b"."``): type, mode, owner, mtime, content, holes, target, device, attributes,
    and the other names of the same inode. Equal trees give equal descriptions. Reads what an ordinary user of the
    tree may read; what is unreadable is described without its content.
    """
    base = os.fsencode(root)
    found: Description = {}
    inodes: dict[tuple[int, int], list[bytes]] = {}
    todo = [b"."]
    while todo:
        relative = todo.pop()
        path = base if relative == b"." else os.path.join(base, relative)
        status = os.lstat(path)
        found[relative] = _describe(path, status)
        if stat.S_ISDIR(status.st_mode):
            with contextlib.suppress(PermissionError):
                names = os.listdir(path)
                todo.extend(name if relative == b"." else os.path.join(relative, name) for name in names)
        elif status.st_nlink > 1:
            inodes.setdefault((status.st_dev, status.st_ino), []).append(relative)
    for group in inodes.values():
        for relative in group:
            found[relative] = (*found[relative], tuple(sorted(group)))
    return found


def difference(one: Description, other: Description) -> list[str]:
    """Readable differences of two descriptions; empty when the trees are equal."""
    lines = []
    for path in sorted(one.keys() | other.keys()):
        if one.get(path) != other.get(path):
            lines.append(f"{path!r}: {one.get(path)} != {other.get(path)}")
    return lines


def assert_same(one: Description, other: Description) -> None:
    different = difference(one, other)
    assert not different, "\n".join(different[:20])


def _describe(path: bytes, status: os.stat_result) -> tuple[Any, ...]:
    common = (status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, _attributes(path))
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFREG:
        return (*common, status.st_size, *_content(path, status.st_size))
    if kind == stat.S_IFLNK:
        return (*common, os.readlink(path))
    if kind in (stat.S_IFCHR, stat.S_IFBLK):
        return (*common, status.st_rdev)
    return common


def _attributes(path: bytes) -> tuple[tuple[str, bytes], ...]:
    if not hasattr(os, "listxattr"):
        return ()
    try:
        names = sorted(os.listxattr(path, follow_symlinks=False))
        return tuple((name, os.getxattr(path, name, follow_symlinks=False)) for name in names)
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.EACCES, errno.ENODATA):
            return ()
        raise


def _content(path: bytes, size: int) -> tuple[Any, ...]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except PermissionError:
        return ("unreadable",)
    try:
        extents = _extents(fd, size)
        check = hashlib.sha256()
        for start, end in extents:
            while start < end:
                data = os.pread(fd, min(end - start, 1024 * 1024), start)
                check.update(data)
                start += len(data)
        return (check.hexdigest(), tuple(extents))
    finally:
        os.close(fd)


def _extents(fd: int, size: int) -> list[tuple[int, int]]:
    """Where the data are: (start, end) pairs, holes left out."""
    extents = []
    position = 0
    while position < size:
        try:
            start = os.lseek(fd, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break
            raise
        position = os.lseek(fd, start, os.SEEK_HOLE)
        extents.append((start, position))
    return extents
