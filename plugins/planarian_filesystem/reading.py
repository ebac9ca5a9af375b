"""Reading one entry of a layer: its metadata, and its content into a sink, without trusting that it stands still."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from dataclasses import replace

from planarian_filesystem import metadata
from planarian_filesystem.content import Changing, read_content
from planarian_filesystem.descent import Descent, Grants, Unsettled, grant
from planarian_filesystem.index import Index
from planarian_filesystem.sinks import Sink
from planarian_filesystem.tree import CHANGED, Entry

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NOATIME = getattr(os, "O_NOATIME", 0)
_REPLACED = {errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.ENODEV, errno.ENODATA, errno.ESTALE}


class Reader:
    """Reads entries during one scan. Content of a linked file is read once for all its names."""

    def __init__(self, index: Index, sink: Sink, proof: bool) -> None:
        self._index = index
        self._sink = sink
        self._proof = proof
        self._linked: dict[tuple[int, int], Entry] = {}
        self.hashed = 0

    def read(self, descent: Descent, name: str, found: os.stat_result, tree: str) -> tuple[Entry, bool]:
        """Read what ``found`` was seen of; ``tree`` is the digest of a directory's content.

        The flag says whether an unchanged stamp will prove an unchanged entry. Unsettled when it isn't what was seen.
        """
        linked = found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode)
        key = (found.st_ino, found.st_ctime_ns)
        clean = self._proof or not stat.S_ISREG(found.st_mode) or found.st_size == 0
        if linked and key in self._linked:
            return replace(self._linked[key], name=name), clean
        try:
            entry, untouched = self._read(descent, name, found, tree)
        except PermissionError as error:
            return Entry(name, found.st_mode, unread=True, gap=f"it can't be read: {error.strerror}"), False
        except (OSError, Changing) as error:
            if isinstance(error, OSError) and error.errno not in _REPLACED:
                raise
            raise Unsettled(descent.path(name), CHANGED) from error
        gap = metadata.restorable(entry)
        label = self._index.label(*key) if linked else ""
        if gap or label:
            entry = replace(entry, gap=gap, link=label)
        if linked:
            self._linked[key] = entry
        return entry, clean and untouched

    def _read(self, descent: Descent, name: str, found: os.stat_result, tree: str) -> tuple[Entry, bool]:
        if stat.S_ISREG(found.st_mode):
            return self._read_file(descent, name, found)
        entry = replace(described(name, found), xattrs=metadata.read_xattrs(metadata.xattr_path(descent.fd, name)))
        if stat.S_ISLNK(found.st_mode):
            entry = replace(entry, target=os.readlink(name, dir_fd=descent.fd))
        elif stat.S_ISDIR(found.st_mode):
            entry = replace(entry, content=tree)
        elif stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode):
            entry = replace(entry, rdev=found.st_rdev)
        return entry, True

    def _read_file(self, descent: Descent, name: str, found: os.stat_result) -> tuple[Entry, bool]:
        fd, untouched = _open_file(descent.fd, name, found, self._index)
        try:
            opened = os.fstat(fd)
            if not stat.S_ISREG(opened.st_mode) or (untouched and _identity(opened) != _identity(found)):
                raise Unsettled(descent.path(name), CHANGED)
            digest, mapped = read_content(fd, opened.st_size, self._sink)
            xattrs = metadata.read_xattrs(fd)
            if _identity(os.fstat(fd)) != _identity(opened):
                raise Unsettled(descent.path(name), CHANGED)
        finally:
            os.close(fd)
        self.hashed += 1
        return replace(described(name, found), content=digest, mapped=mapped, xattrs=xattrs), untouched


def _open_file(dir_fd: int, name: str, found: os.stat_result, grants: Grants) -> tuple[int, bool]:
    """Open a file to read, without blocking and without following; False when its mode had to be changed for it."""
    owned = found.st_uid == os.geteuid()
    if owned and _NOATIME:
        with contextlib.suppress(PermissionError):
            return os.open(name, _FILE | _NOATIME, dir_fd=dir_fd), True
    try:
        return os.open(name, _FILE, dir_fd=dir_fd), True
    except PermissionError:
        mode = grant(dir_fd, name, 0o400, grants)
        if mode is None:
            raise
    fd = os.open(name, _FILE, dir_fd=dir_fd)
    os.fchmod(fd, mode)
    grants.released(found.st_ino)
    return fd, False


def _identity(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def described(name: str, found: os.stat_result) -> Entry:
    size = found.st_size if stat.S_ISREG(found.st_mode) else 0
    return Entry(name, found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns, size)
