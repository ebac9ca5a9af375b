"""Writes the files of a bundle into a new directory of ours, from descriptor to descriptor: no path, no symlink.

Owner, attributes, mode and time are set on each name when its content is there; on a directory when it is left.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from pathlib import Path

from planarian_core.file_tree import FileEntry, FileKind

_ENTER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_TYPES = {
    FileKind.FIFO: stat.S_IFIFO,
    FileKind.SOCKET: stat.S_IFSOCK,
    FileKind.CHARACTER: stat.S_IFCHR,
    FileKind.BLOCK: stat.S_IFBLK,
}
_REFUSED = {errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EOPNOTSUPP}


class Extraction:
    """A :class:`planarian_core.bundle_unpacking.TreeSink` into the empty directory ``root``. A context.

    An ordinary user gets what belonged to ``maker`` as their own, and of the rest what they may have; :attr:`lost`
    counts by reason what could not be set.
    """

    def __init__(self, root: Path, maker: tuple[int, int]) -> None:
        self._root = root
        self._maker = maker
        self._top = os.open(root, _ENTER)
        self._here = os.dup(self._top)
        self._depth = 0
        self._file = -1
        self.lost: Counter[str] = Counter()

    def __enter__(self) -> Extraction:
        return self

    def __exit__(self, *exc: object) -> None:
        for descriptor in (self._file, self._here, self._top):
            if descriptor >= 0:
                os.close(descriptor)

    def enter(self, entry: FileEntry) -> None:
        if self._depth:
            os.mkdir(entry.name, 0o700, dir_fd=self._here)
            self._go(entry.name)
        self._depth += 1

    def leave(self, entry: FileEntry) -> None:
        self._depth -= 1
        below = self._here
        if self._depth:
            self._here = os.open("..", _ENTER, dir_fd=below)
        else:
            self._here = -1
        try:
            self._dress(below, entry)
        finally:
            os.close(below)

    def begin(self, entry: FileEntry) -> None:
        self._file = os.open(entry.name, _NEW, 0o600, dir_fd=self._here)

    def piece(self, offset: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._file, view, offset)
            view, offset = view[written:], offset + written

    def end(self, entry: FileEntry) -> None:
        if os.fstat(self._file).st_size < entry.size:
            os.ftruncate(self._file, entry.size)
        self._dress(self._file, entry)
        os.close(self._file)
        self._file = -1

    def link(self, entry: FileEntry, first: tuple[str, ...]) -> None:
        above = os.dup(self._top)
        try:
            for name in first[:-1]:
                below = os.open(name, _ENTER, dir_fd=above)
                os.close(above)
                above = below
            os.link(first[-1], entry.name, src_dir_fd=above, dst_dir_fd=self._here, follow_symlinks=False)
        finally:
            os.close(above)

    def node(self, entry: FileEntry) -> None:
        if entry.kind is FileKind.SYMLINK:
            os.symlink(entry.target, entry.name, dir_fd=self._here)
        else:
            os.mknod(entry.name, _TYPES[entry.kind] | 0o600, entry.device, dir_fd=self._here)
        name, here = entry.name, self._here
        self._own(entry, lambda uid, gid: os.chown(name, uid, gid, dir_fd=here, follow_symlinks=False))
        path = f"/proc/self/fd/{here}/{name}"
        for key, value in entry.xattrs.items():
            self._set(path, key, value)
        if entry.kind is not FileKind.SYMLINK:
            # Made by us a moment ago in a directory of ours: nothing else is at that name.
            os.chmod(name, entry.mode, dir_fd=here)
        os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=here, follow_symlinks=False)

    def _go(self, name: str) -> None:
        below = os.open(name, _ENTER, dir_fd=self._here)
        os.close(self._here)
        self._here = below

    def _dress(self, descriptor: int, entry: FileEntry) -> None:
        """Give an open file what its entry says; the owner first, for a change of it takes others back."""
        self._own(entry, lambda uid, gid: os.fchown(descriptor, uid, gid))
        for key, value in entry.xattrs.items():
            self._set(descriptor, key, value)
        os.fchmod(descriptor, entry.mode)
        os.utime(descriptor, ns=(entry.mtime_ns, entry.mtime_ns))

    def _own(self, entry: FileEntry, change: object) -> None:
        assert callable(change)
        if os.geteuid() == 0:
            change(entry.uid, entry.gid)
        elif (entry.uid, entry.gid) != self._maker:
            self.lost["files that belonged to others are yours here"] += 1

    def _set(self, at: int | str, name: str, value: bytes) -> None:
        if not hasattr(os, "setxattr"):
            self.lost["extended attributes can't be set on this system"] += 1
            return
        try:
            if isinstance(at, int):
                os.setxattr(at, name, value)
            else:
                os.setxattr(at, name, value, follow_symlinks=False)
        except OSError as error:
            if os.geteuid() == 0 or error.errno not in _REFUSED:
                raise
            self.lost["extended attributes that only root can set are left out"] += 1
