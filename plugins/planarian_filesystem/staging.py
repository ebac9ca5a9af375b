"""New inodes, made complete in a directory of our own beside the layer, so that a switch only has to rename them."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from planarian_filesystem import host, metadata
from planarian_filesystem.content import write_content
from planarian_filesystem.descent import WRITE, Descent
from planarian_filesystem.exclusion import STAGING_PREFIX, Exclusion
from planarian_filesystem.plan import Plan
from planarian_filesystem.removal import remove_tree
from planarian_filesystem.store import Damaged, Store
from planarian_filesystem.tree import Entry, decode_entry, encode_entry

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Staging:
    """A private directory (0700) on the layer's filesystem, locked while it is used.

    It lies beside the layer, or in the store, or, where the layer is a mount of its own, at its top under a name that
    is never state. One that a dead process left is removed when the next is made.
    """

    def __init__(self, store: Store, layer: Path, exclusion: Exclusion) -> None:
        self._store = store
        self._exclusion = exclusion
        place = _place(store, layer)
        self._inside = place == layer
        self.path = place / f"{_prefix(layer)}{secrets.token_hex(6)}"
        with _keeping_mtime(place, self._inside):
            remove_stale(place, layer)
            self.path.mkdir(mode=0o700)
        self.fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.mkdir("trash", 0o700, dir_fd=self.fd)
        self._number = 0
        self._ready: dict[bytes, list[str]] = {}
        self._groups: dict[str, str] = {}

    def remove(self) -> None:
        """Drop everything that is still here. Idempotent."""
        if self.fd < 0:
            return
        with _keeping_mtime(self.path.parent, self._inside):
            remove_tree(self.path.parent, self.path.name)
        os.close(self.fd)
        self.fd = -1

    def fresh_name(self) -> str:
        self._number += 1
        return str(self._number)

    def prepare(self, plan: Plan) -> None:
        """Make what the plan puts and what isn't ready yet."""
        used: Counter[bytes] = Counter()
        for change in plan.changes:
            for entry in change.put:
                line = encode_entry(entry)
                used[line] += 1
                if used[line] > len(self._ready.get(line, ())):
                    path = change.path(entry.name)
                    self._ready.setdefault(line, []).append(self.make(entry, path))

    def take(self, entry: Entry) -> str:
        """The name, here, of something made ready for ``entry``."""
        return self._ready[encode_entry(entry)].pop()

    def make(self, entry: Entry, path: str) -> str:
        """Make an entry under a fresh name; of a directory all but its own metadata, which follow when it is placed."""
        name = self.fresh_name()
        if entry.is_dir:
            self._make_tree(name, entry, path)
        else:
            self._make_node(self.fd, name, entry, path)
        return name

    def _make_tree(self, name: str, top: Entry, path: str) -> None:
        os.mkdir(name, 0o700, dir_fd=self.fd)
        with Descent(self.fd, WRITE) as descent:
            descent.down(name)
            stack: list[tuple[Entry, Iterator[bytes]]] = [(top, iter(self._lines(top, path)))]
            while stack:
                entry, lines = stack[-1]
                line = next(lines, None)
                if line is None:
                    stack.pop()
                    descent.up(restore_mode=False)
                    if stack:
                        metadata.apply(descent.fd, entry.name, entry)
                    continue
                child = decode_entry(line)
                if child.unread or (self._exclusion.any and self._exclusion.excludes(_below(path, descent, child))):
                    continue
                if child.is_dir:
                    os.mkdir(child.name, 0o700, dir_fd=descent.fd)
                    descent.down(child.name)
                    stack.append((child, iter(self._lines(child, path))))
                else:
                    self._make_node(descent.fd, child.name, child, path)

    def _lines(self, entry: Entry, path: str) -> list[bytes]:
        with _naming(path):
            return self._store.lines(entry.content)

    def _make_node(self, dir_fd: int, name: str, entry: Entry, path: str) -> None:
        with _naming(path if dir_fd == self.fd else f"{path}/…/{entry.name}"):
            if not entry.link:
                self._make_inode(dir_fd, name, entry)
                return
            if entry.link not in self._groups:
                group = self.fresh_name()
                self._make_inode(self.fd, group, entry)
                self._groups[entry.link] = group
            os.link(self._groups[entry.link], name, src_dir_fd=self.fd, dst_dir_fd=dir_fd, follow_symlinks=False)

    def _make_inode(self, dir_fd: int, name: str, entry: Entry) -> None:
        kind = stat.S_IFMT(entry.mode)
        if kind == stat.S_IFREG:
            fd = os.open(name, _NEW, 0o600, dir_fd=dir_fd)
            try:
                write_content(self._store, entry, fd)
            finally:
                os.close(fd)
        elif kind == stat.S_IFLNK:
            os.symlink(entry.target, name, dir_fd=dir_fd)
        elif kind == stat.S_IFIFO:
            os.mkfifo(name, 0o600, dir_fd=dir_fd)
        else:
            os.mknod(name, kind | 0o600, entry.rdev, dir_fd=dir_fd)
        metadata.apply(dir_fd, name, entry)

    def drop_groups(self) -> None:
        """Remove our own names of linked files, which would move their ctime later. Nothing can be made after it."""
        for name in self._groups.values():
            os.unlink(name, dir_fd=self.fd)
        self._groups.clear()

    def sync(self) -> None:
        host.sync_filesystem(self.fd)


@contextlib.contextmanager
def _keeping_mtime(place: Path, wanted: bool) -> Iterator[None]:
    """Hide our coming and going in a directory that is state itself."""
    before = os.lstat(place).st_mtime_ns
    try:
        yield
    finally:
        if wanted:
            os.utime(place, ns=(before, before), follow_symlinks=False)


def _prefix(layer: Path) -> str:
    return f"{STAGING_PREFIX}{hashlib.sha256(os.fsencode(layer)).hexdigest()[:16]}-"


def remove_stale(place: Path, layer: Path) -> None:
    """Remove what dead processes staged for ``layer`` in ``place``; what is in use is locked and stays."""
    for name in os.listdir(place):
        if not name.startswith(_prefix(layer)):
            continue
        with contextlib.suppress(OSError):
            fd = os.open(place / name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(place, name)
            finally:
                os.close(fd)


def _below(path: str, descent: Descent, child: Entry) -> str:
    """Path of a child of a staged tree in the layer: the staged top stands for ``path``."""
    inside = descent.path(child.name).partition("/")[2]
    return f"{path}/{inside}" if path else inside


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Say in a Damaged which file it hits."""
    try:
        yield
    except Damaged as error:
        error.add_note(path)
        raise


def _place(store: Store, layer: Path) -> Path:
    """A directory from which a rename into the layer works; one that the layer doesn't show where there is one."""
    if not os.path.lexists(layer):
        return layer.parent
    fd = os.open(layer, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for place in (layer.parent, store.directory):
            with contextlib.suppress(OSError):
                other = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    if host.same_mount(fd, other) and os.access(place, os.W_OK | os.X_OK):
                        return place
                finally:
                    os.close(other)
    finally:
        os.close(fd)
    return layer
