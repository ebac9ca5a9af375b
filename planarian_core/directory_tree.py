"""A :class:`planarian_core.file_tree.FileTree` of a directory as it lies on the disk, whoever writes there."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from planarian_core.errors import RestoreError
from planarian_core.file_tree import FileEntry, FileKind

Identify = Callable[[int, os.stat_result], str]
"""Gives :attr:`FileEntry.identity` from a descriptor that only names the file (O_PATH) and what it says of itself."""

_PATH_ONLY = getattr(os, "O_PATH", 0)
_STEP = _PATH_ONLY | os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NOTHING = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ESTALE}
_NO_XATTRS = {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
KINDS = {
    stat.S_IFREG: FileKind.FILE,
    stat.S_IFDIR: FileKind.DIRECTORY,
    stat.S_IFLNK: FileKind.SYMLINK,
    stat.S_IFIFO: FileKind.FIFO,
    stat.S_IFSOCK: FileKind.SOCKET,
    stat.S_IFCHR: FileKind.CHARACTER,
    stat.S_IFBLK: FileKind.BLOCK,
}
"""By the file type bits of a mode."""

_PIECE = 1024 * 1024


class DirectoryTree:
    """The files below a directory, read as they are at each call. Use it as a context, or :meth:`close` it.

    What lies there may be hostile and may change meanwhile: no step follows a symlink, nothing outside is reached,
    no fifo or device is opened. ``size`` is given of regular files only; ``links`` of regular files with several names.

    Args:
        root: the directory, or a descriptor of it, which stays the caller's.
        identify: gives the entries their ``identity``; without it they have none.

    Raises:
        RestoreError: the directory isn't there, is a symlink, or can't be read; so does every method that meets
            something that this user may not look at.
    """

    def __init__(self, root: Path | int, identify: Identify | None = None) -> None:
        self._root = root if isinstance(root, Path) else _place(root)
        self._identify = identify
        try:
            self._fd = os.open(root, _STEP) if isinstance(root, Path) else os.open(".", _STEP, dir_fd=root)
        except OSError as error:
            raise _unreadable(self._root, "", error) from error

    def __enter__(self) -> DirectoryTree:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the directory back. Idempotent; nothing else works afterwards."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def entry(self, path: str) -> FileEntry | None:
        names = _names(path)
        if names is None:
            return None
        parent = self._enter(names[:-1], path)
        if parent is None:
            return None
        try:
            return self._look(parent, names[-1] if names else "", path)
        finally:
            os.close(parent)

    def children(self, path: str) -> Sequence[FileEntry]:
        names = _names(path)
        fd = self._enter(names, path) if names is not None else None
        if fd is None:
            return ()
        try:
            found = self._list(fd, path)
            entries = (self._look(fd, name, f"{path}/{name}" if path else name) for name in found)
            return [entry for entry in entries if entry is not None]
        finally:
            os.close(fd)

    def read(self, path: str) -> Iterator[bytes]:
        fd = self._open_file(path)
        try:
            while piece := os.read(fd, _PIECE):
                yield piece
        except OSError as error:
            raise _unreadable(self._root, path, error) from error
        finally:
            os.close(fd)

    def stretches(self, path: str) -> Iterator[tuple[int, bytes]]:
        """The content without its holes; see :class:`planarian_core.file_tree.ReadsHoles`."""
        fd = self._open_file(path)
        try:
            end = 0
            while (start := _next_data(fd, end)) is not None:
                end = os.lseek(fd, start, os.SEEK_HOLE)
                while start < end and (piece := os.pread(fd, min(end - start, _PIECE), start)):
                    yield start, piece
                    start += len(piece)
        except OSError as error:
            raise _unreadable(self._root, path, error) from error
        finally:
            os.close(fd)

    def _enter(self, names: Sequence[str], path: str) -> int | None:
        """A descriptor of the directory that is reached by ``names``; None when there is none."""
        fd = os.dup(self._fd)
        for name in names:
            try:
                below = os.open(name, _STEP, dir_fd=fd)
            except OSError as error:
                if error.errno in _NOTHING:
                    return None
                raise _unreadable(self._root, path, error) from error
            finally:
                os.close(fd)
            fd = below
        return fd

    def _list(self, fd: int, path: str) -> list[str]:
        try:
            listed = os.open(".", _LIST, dir_fd=fd)
            try:
                return sorted(os.listdir(listed))
            finally:
                os.close(listed)
        except FileNotFoundError:  # removed since we stepped into it
            return []
        except OSError as error:
            raise _unreadable(self._root, path, error) from error

    def _look(self, parent: int, name: str, path: str) -> FileEntry | None:
        """What ``name`` in a directory is, or the directory itself when it is empty; all of it from one inode."""
        try:
            if not _PATH_ONLY:
                found = os.stat(name or ".", dir_fd=parent, follow_symlinks=False)
                target = os.readlink(name, dir_fd=parent) if stat.S_ISLNK(found.st_mode) else ""
                return _entry(name, found, target, {}, "")
            fd = os.open(name or ".", _PATH_ONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
            try:
                found = os.fstat(fd)
                target = os.readlink("", dir_fd=fd) if stat.S_ISLNK(found.st_mode) else ""
                identity = self._identify(fd, found) if self._identify is not None else ""
                return _entry(name, found, target, _xattrs(fd), identity)
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno in _NOTHING:
                return None
            raise _unreadable(self._root, path, error) from error

    def _open_file(self, path: str) -> int:
        names = _names(path)
        parent = self._enter(names[:-1], path) if names else None
        if not names or parent is None:
            raise _no_file(self._root, path)
        try:
            if not _PATH_ONLY:
                return _regular(os.open(names[-1], _READ | os.O_NOFOLLOW, dir_fd=parent), self._root, path)
            named = os.open(names[-1], _PATH_ONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
            try:
                _regular(named, self._root, path, keep=True)
                return os.open(f"/proc/self/fd/{named}", _READ)
            finally:
                os.close(named)
        except OSError as error:
            raise _unreadable(self._root, path, error) from error
        finally:
            os.close(parent)


def _next_data(fd: int, position: int) -> int | None:
    """Where the next data of an open file begin; None when a hole, or nothing, is all that follows."""
    try:
        return os.lseek(fd, position, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        raise


def _place(fd: int) -> Path:
    """Where a descriptor's directory is, for messages."""
    try:
        return Path(os.readlink(f"/proc/self/fd/{fd}"))
    except OSError:
        return Path(".")


def _names(path: str) -> list[str] | None:
    """The steps of a path; None for one that can't be in a tree."""
    names = path.split("/") if path else []
    return None if any(name in ("", ".", "..") or "\0" in name for name in names) else names


def _xattrs(fd: int) -> Mapping[str, bytes]:
    """The extended attributes of what a descriptor names, a symlink's own included."""
    named = f"/proc/self/fd/{fd}"
    try:
        names = os.listxattr(named)
        return {name: os.getxattr(named, name) for name in sorted(names)}
    except OSError as error:
        if error.errno in _NO_XATTRS:
            return {}
        if error.errno == errno.ENODATA:  # removed since it was listed
            return _xattrs(fd)
        raise


def _entry(name: str, found: os.stat_result, target: str, xattrs: Mapping[str, bytes], identity: str) -> FileEntry:
    kind = KINDS[stat.S_IFMT(found.st_mode)]
    regular = kind is FileKind.FILE
    return FileEntry(
        name=name,
        kind=kind,
        mode=stat.S_IMODE(found.st_mode),
        uid=found.st_uid,
        gid=found.st_gid,
        size=found.st_size if regular else 0,
        mtime_ns=found.st_mtime_ns,
        target=target,
        device=found.st_rdev if kind in (FileKind.CHARACTER, FileKind.BLOCK) else 0,
        xattrs=xattrs,
        identity=identity,
        links=f"{found.st_dev}:{found.st_ino}" if regular and found.st_nlink > 1 else "",
    )


def _regular(fd: int, root: Path, path: str, keep: bool = False) -> int:
    """The descriptor, if it is of a regular file; else it is closed, unless it is the caller's to ``keep``."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        if not keep:
            os.close(fd)
        raise _no_file(root, path)
    return fd


def _no_file(root: Path, path: str) -> RestoreError:
    return RestoreError(f"{root / path} is no regular file.", code="tree-no-file", remedy="name a file")


def _unreadable(root: Path, path: str, error: OSError) -> RestoreError:
    return RestoreError(
        f"{root / path} can't be read: {error.strerror}.",
        code="tree-unreadable",
        state="nothing was changed",
        remedy="give yourself access to it, then try again" if isinstance(error, PermissionError) else "",
    )
