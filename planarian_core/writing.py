"""Writing files below a directory in which somebody else may change every name at any moment.

Nothing outside of that directory is ever touched: each step to a name is taken from a descriptor and follows no
symlink, and what is written replaces the name itself, in one step, so that a reader sees the old file or the new one.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from planarian_core.content import blocks
from planarian_core.file_tree import FileEntry, FileKind, FileTree

WRITABLE = frozenset({FileKind.FILE, FileKind.DIRECTORY, FileKind.SYMLINK, FileKind.FIFO})
"""What can be written. Device nodes and sockets can't: they would lead out, or nowhere."""

_PATH_ONLY = getattr(os, "O_PATH", 0)
_STEP = _PATH_ONLY | os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_STRIDE = 32
_NO_XATTRS = {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


class Writer:
    """Writes below ``root``, a descriptor that stays the caller's. Methods raise OSError, about a name in its path.

    Args:
        mark: a name that nothing else has: what is written has it until it is whole. :meth:`sweep` removes such a
            name that a killed process left.
        manages: which extended attributes are set and removed; others are left as the kernel makes them.
        durable: whether a file's content is on the disk before it gets its name.
    """

    def __init__(
        self, root: int, mark: str, *, manages: Callable[[str], bool] = lambda name: True, durable: bool = False
    ) -> None:
        self._root = root
        self._mark = mark
        self._manages = manages
        self._durable = durable
        self.left_out: list[tuple[str, str]] = []
        """(path, what could not be set of it): an ordinary user can't give files away."""

    def put(self, path: str, entry: FileEntry, tree: FileTree, source: str | None = None) -> None:
        """Make ``path`` the file, symlink or fifo that ``entry`` says, with its content from ``tree`` (by ``source``
        where it is called otherwise there). A directory in its place is removed with all that is in it.
        """
        with self._parent(path) as (parent, name):
            self._drop(parent, self._mark)
            if entry.kind is FileKind.FILE:
                self._write(parent, tree, path if source is None else source, entry.size)
            elif entry.kind is FileKind.SYMLINK:
                os.symlink(entry.target, self._mark, dir_fd=parent)
            else:
                os.mkfifo(self._mark, 0o600, dir_fd=parent)
            self._dress(parent, self._mark, entry, path)
            self._rename(parent, name)

    def link(self, path: str, other: str) -> None:
        """Make ``path`` a hard link of ``other``, which is no directory."""
        with self._parent(path) as (parent, name), self._parent(other) as (from_parent, from_name):
            self._drop(parent, self._mark)
            os.link(from_name, self._mark, src_dir_fd=from_parent, dst_dir_fd=parent, follow_symlinks=False)
            self._rename(parent, name)

    def make_directory(self, path: str) -> None:
        """A directory at ``path``, in place of whatever else is there; one that is there stays. Its metadata are set by
        :meth:`mend`, when all is in it.
        """
        with self._parent(path) as (parent, name):
            found = _look(parent, name)
            if found is not None and not stat.S_ISDIR(found.st_mode):
                os.unlink(name, dir_fd=parent)
                found = None
            if found is None:
                os.mkdir(name, 0o700, dir_fd=parent)

    def mend(self, path: str, entry: FileEntry) -> None:
        """Give what is at ``path`` the owner, mode, attributes and time of ``entry``; its inode stays.

        OSError (ESTALE) when it is of another kind meanwhile.
        """
        with self._parent(path) as (parent, name):
            self._dress(parent, name, entry, path)

    def remove(self, path: str, *, whole: bool) -> None:
        """Remove a name; a directory with all in it if ``whole``, else only an empty one. Idempotent."""
        with suppress(FileNotFoundError, NotADirectoryError), self._parent(path) as (parent, name):
            if whole:
                self._drop(parent, name)
                return
            found = _look(parent, name)
            if found is not None:
                (os.rmdir if stat.S_ISDIR(found.st_mode) else os.unlink)(name, dir_fd=parent)

    def sweep(self, path: str) -> None:
        """Remove what a killed process left half-written beside ``path``."""
        with suppress(OSError), self._parent(path) as (parent, _):
            self._drop(parent, self._mark)

    # --- steps ---

    @contextmanager
    def _parent(self, path: str) -> Iterator[tuple[int, str]]:
        """The directory that ``path`` is in, as a descriptor, and its name there."""
        *above, name = path.split("/")
        if not name or any(part in ("", ".", "..") for part in (*above, name)):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        fd = os.dup(self._root)
        try:
            for part in above:
                below = os.open(part, _STEP, dir_fd=fd)
                os.close(fd)
                fd = below
            with _opened_up(fd):
                yield fd, name
        finally:
            os.close(fd)

    def _write(self, parent: int, tree: FileTree, source: str, size: int) -> None:
        fd = os.open(self._mark, _NEW, 0o600, dir_fd=parent)
        try:
            for offset, block in blocks(tree, source):
                rest = memoryview(block)
                while rest:
                    written = os.pwrite(fd, rest, offset)
                    rest, offset = rest[written:], offset + written
            os.ftruncate(fd, size)
            if self._durable:
                os.fsync(fd)
        finally:
            os.close(fd)

    def _rename(self, parent: int, name: str) -> None:
        found = _look(parent, name)
        if found is not None and stat.S_ISDIR(found.st_mode):
            self._drop(parent, name)
        os.rename(self._mark, name, src_dir_fd=parent, dst_dir_fd=parent)
        with suppress(FileNotFoundError):  # two names of one inode: renaming did nothing
            os.unlink(self._mark, dir_fd=parent)

    def _drop(self, parent: int, name: str) -> None:
        """Remove a name with all below it."""
        found = _look(parent, name)
        if found is None:
            return
        if stat.S_ISDIR(found.st_mode):
            _remove_tree(parent, name)
        else:
            os.unlink(name, dir_fd=parent)

    def _dress(self, parent: int, name: str, entry: FileEntry, path: str) -> None:
        """Owner, attributes, mode, times: in this order, because each may take from the ones before."""
        with _named(parent, name) as (at, found):
            if _kind(found) is not entry.kind:
                raise OSError(errno.ESTALE, "something else took its place meanwhile", path)
            if (found.st_uid, found.st_gid) != (entry.uid, entry.gid):
                self._try(path, "its owner", partial(os.chown, at, entry.uid, entry.gid))
            self._attributes(at, entry, path)
            if entry.kind is not FileKind.SYMLINK:
                self._try(path, "its mode", partial(os.chmod, at, entry.mode))
            os.utime(at, ns=(entry.mtime_ns, entry.mtime_ns))

    def _attributes(self, at: str, entry: FileEntry, path: str) -> None:
        if not hasattr(os, "listxattr"):
            return
        present = _attributes_at(at)
        for name in filter(self._manages, present.keys() - entry.xattrs.keys()):
            self._try(path, f"its attribute {name}", partial(os.removexattr, at, name))
        for name, value in entry.xattrs.items():
            if self._manages(name) and present.get(name) != value:
                self._try(path, f"its attribute {name}", partial(os.setxattr, at, name, value))

    def _try(self, path: str, what: str, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as error:
            if error.errno not in (errno.EPERM, *_NO_XATTRS):
                raise
            self.left_out.append((path, f"{what} can't be set: {os.strerror(error.errno)}"))


def _remove_tree(parent: int, name: str) -> None:
    try:
        shutil.rmtree(name, dir_fd=parent)
    except RecursionError:
        _remove_deep(parent, name)
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        _remove_deep(parent, name)


def _remove_deep(parent: int, name: str) -> None:
    """Directories that lie deeper in each other than descriptors or recursion go: only every so many are kept open."""
    names, anchors = [name], [os.dup(parent)]
    try:
        while names:
            while (len(anchors) - 1) * _STRIDE >= len(names):
                os.close(anchors.pop())
            with _entered(anchors[-1], names[(len(anchors) - 1) * _STRIDE : -1]) as above:
                with _entered(above, names[-1:]) as fd:
                    deeper = _emptied(fd)
                    if deeper is not None and len(names) == len(anchors) * _STRIDE:
                        anchors.append(os.dup(fd))
                if deeper is None:
                    os.rmdir(names.pop(), dir_fd=above)
                else:
                    names.append(deeper)
    finally:
        for fd in anchors:
            os.close(fd)


def _emptied(fd: int) -> str | None:
    """Remove what is in a directory, up to the first directory in it: its name."""
    with os.scandir(fd) as found:
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                return entry.name
            os.unlink(entry.name, dir_fd=fd)
    return None


@contextmanager
def _entered(root: int, names: Sequence[str]) -> Iterator[int]:
    """The directory that is reached by these names, one after the other."""
    fd = os.dup(root)
    try:
        for name in names:
            below = os.open(name, _LIST, dir_fd=fd)
            os.close(fd)
            fd = below
        yield fd
    finally:
        os.close(fd)


def _look(parent: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


@contextmanager
def _named(parent: int, name: str) -> Iterator[tuple[str, os.stat_result]]:
    """A path that means the very inode that ``name`` is now, whatever takes the name later, and what it is."""
    flags = _PATH_ONLY or os.O_RDONLY | os.O_NONBLOCK
    fd = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        yield (f"/proc/self/fd/{fd}" if _PATH_ONLY else f"/dev/fd/{fd}"), os.fstat(fd)
    finally:
        os.close(fd)


@contextmanager
def _opened_up(fd: int) -> Iterator[None]:
    """Where an ordinary user's own directory isn't writable: for this moment it is."""
    found = os.fstat(fd)
    mode = stat.S_IMODE(found.st_mode)
    if os.geteuid() == 0 or found.st_uid != os.geteuid() or mode & 0o300 == 0o300:
        yield
        return
    at = f"/proc/self/fd/{fd}" if _PATH_ONLY else fd
    os.chmod(at, mode | 0o300)
    try:
        yield
    finally:
        os.chmod(at, mode)


def _attributes_at(at: str) -> Mapping[str, bytes]:
    try:
        return {name: os.getxattr(at, name) for name in os.listxattr(at)}
    except OSError as error:
        if error.errno in _NO_XATTRS:
            return {}
        raise


def _kind(found: os.stat_result) -> FileKind | None:
    kinds = {
        stat.S_IFREG: FileKind.FILE,
        stat.S_IFDIR: FileKind.DIRECTORY,
        stat.S_IFLNK: FileKind.SYMLINK,
        stat.S_IFIFO: FileKind.FIFO,
    }
    return kinds.get(stat.S_IFMT(found.st_mode))
