"""Owner, mode, times and extended attributes: read from and put back on one name, never through a symbolic link."""

from __future__ import annotations

import errno
import functools
import os
import stat
from collections.abc import Mapping

from planarian_filesystem import host
from planarian_filesystem.descent import change_mode
from planarian_filesystem.tree import Entry

HAS_XATTRS = hasattr(os, "listxattr")
_NO_XATTRS = {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_NEEDS_ROOT = ("security.", "trusted.")


def read_xattrs(at: int | str) -> dict[str, bytes]:
    """All attributes that we may see of an open file, or of a path from :func:`xattr_path`."""
    if not HAS_XATTRS:
        return {}
    try:
        names = os.listxattr(at) if isinstance(at, int) else os.listxattr(at, follow_symlinks=False)
    except OSError as error:
        if error.errno in _NO_XATTRS:
            return {}
        raise
    if not names:
        return {}
    if isinstance(at, int):
        return {name: os.getxattr(at, name) for name in names}
    return {name: os.getxattr(at, name, follow_symlinks=False) for name in names}


def xattr_path(dir_fd: int, name: str) -> str:
    """A path for the calls that know no dir_fd; its last step is not followed, the ones before are ours."""
    return f"/proc/self/fd/{dir_fd}/{name}"


@functools.cache
def _groups() -> frozenset[int]:
    return frozenset({os.getegid(), *os.getgroups()})


def restorable(entry: Entry) -> str:
    """Why an entry of this kind couldn't be put back as it is by this user; empty when it could."""
    if not HAS_XATTRS and not host.LINUX and stat.S_ISSOCK(entry.mode):
        return "a socket can't be made again on this system"
    if os.geteuid() == 0:
        return ""
    if entry.uid != os.geteuid() or entry.gid not in _groups():
        return f"its owner {entry.uid}:{entry.gid} can't be set again by an ordinary user"
    beyond = sorted(name for name in entry.xattrs if name.startswith(_NEEDS_ROOT))
    if beyond:
        return f"its attributes {', '.join(beyond)} can't be set again by an ordinary user"
    if stat.S_ISBLK(entry.mode) or (stat.S_ISCHR(entry.mode) and entry.rdev != 0):
        return "a device can't be made again by an ordinary user"
    return ""


def apply(dir_fd: int, name: str, entry: Entry, mtime: bool = True) -> None:
    """Give ``name`` the owner, attributes, mode and mtime of ``entry``. Idempotent.

    What an ordinary user can't set is left out where the entry's ``gap`` says so already; else it is an OSError.
    """
    found = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    if (found.st_uid, found.st_gid) != (entry.uid, entry.gid):
        _tolerate(entry, lambda: os.chown(name, entry.uid, entry.gid, dir_fd=dir_fd, follow_symlinks=False))
    if HAS_XATTRS:
        _apply_xattrs(xattr_path(dir_fd, name), entry)
    if not stat.S_ISLNK(entry.mode):
        found = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        if stat.S_IMODE(found.st_mode) != stat.S_IMODE(entry.mode):
            _tolerate(entry, lambda: change_mode(dir_fd, name, stat.S_IMODE(entry.mode)))
    if mtime:
        set_mtime(dir_fd, name, entry.mtime_ns)


def set_mtime(dir_fd: int, name: str, mtime_ns: int) -> None:
    os.utime(name, ns=(mtime_ns, mtime_ns), dir_fd=dir_fd, follow_symlinks=False)


def _apply_xattrs(path: str, entry: Entry) -> None:
    present: Mapping[str, bytes] = read_xattrs(path)
    for key in present.keys() - entry.xattrs.keys():
        _tolerate(entry, functools.partial(os.removexattr, path, key, follow_symlinks=False))
    for key, value in entry.xattrs.items():
        if present.get(key) != value:
            _tolerate(entry, functools.partial(os.setxattr, path, key, value, follow_symlinks=False))


def _tolerate(entry: Entry, action: object) -> None:
    assert callable(action)
    try:
        action()
    except PermissionError:
        if not entry.gap:
            raise
