"""Walking a tree that somebody else may be changing, without ever leaving it.

A :class:`Descent` steps down by name and up again, one descriptor at a time: no step follows a symbolic link, no path
is longer than one name, and the depth is limited neither by PATH_MAX nor by the number of open descriptors.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PATH_ONLY = getattr(os, "O_PATH", 0)
_KEEP_OPEN = 64

READ = 0o500
WRITE = 0o700


class Unsettled(Exception):
    """Something changed while it was looked at. ``path`` is relative to the tree's root."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.path = path
        self.what = what


class Grants(Protocol):
    """Remembers, beyond the death of this process, which modes were widened for a while."""

    def granted(self, inode: int, mode: int) -> None:
        """Called before the mode of ``inode``, which was ``mode``, is widened."""

    def released(self, inode: int) -> None:
        """Called when it has its mode back."""


@dataclass
class _Level:
    name: str
    fd: int
    identity: tuple[int, int]
    mode_before: int | None


class Descent:
    """A position in the tree below ``root``. ``need``: permission bits that the owner must have in each directory.

    Where an ordinary user's own directory lacks them they are granted for the stay and taken back by :meth:`up`.
    """

    def __init__(self, root: Path | int, need: int = READ, grants: Grants | None = None) -> None:
        self._need = need
        self._grants = grants
        self._levels: list[_Level] = []
        fd = os.open(root, _DIRECTORY) if isinstance(root, Path) else os.open(".", _DIRECTORY, dir_fd=root)
        self._push("", fd, None)

    def __enter__(self) -> Descent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def fd(self) -> int:
        """A descriptor of the directory we are in; valid until the next step."""
        return self._levels[-1].fd

    @property
    def depth(self) -> int:
        return len(self._levels) - 1

    def path(self, name: str = "") -> str:
        """The relative path of ``name`` in this directory, for people; may be longer than the system allows."""
        names = [level.name for level in self._levels[1:]]
        return "/".join([*names, name] if name else names) or "."

    def down(self, name: str) -> None:
        """Enter the directory ``name``. OSError (ENOTDIR or ELOOP for a link) leaves the position as it is."""
        mode_before = None
        try:
            fd = os.open(name, _DIRECTORY, dir_fd=self.fd)
        except PermissionError:
            mode_before = grant(self.fd, name, self._need, self._grants)
            if mode_before is None:
                raise
            fd = os.open(name, _DIRECTORY, dir_fd=self.fd)
        self._push(name, fd, mode_before)
        if len(self._levels) > _KEEP_OPEN + 1:
            old = self._levels[-_KEEP_OPEN - 1]
            if old.fd >= 0 and old is not self._levels[0]:
                os.close(old.fd)
                old.fd = -1

    def up(self, restore_mode: bool = True) -> None:
        """Go back to the parent; Unsettled when the directory was moved meanwhile."""
        level = self._levels[-1]
        parent = self._levels[-2]
        if parent.fd < 0:
            fd = os.open("..", _DIRECTORY, dir_fd=level.fd)
            found = os.fstat(fd)
            if (found.st_dev, found.st_ino) != parent.identity:
                os.close(fd)
                raise Unsettled(self.path(), "moved while it was walked")
            parent.fd = fd
        self._levels.pop()
        self._leave(level, restore_mode)

    def close(self) -> None:
        """Leave the tree from wherever we are."""
        while len(self._levels) > 1:
            try:
                self.up()
            except (OSError, Unsettled):
                break
        while self._levels:
            with contextlib.suppress(OSError):
                self._leave(self._levels.pop(), True)

    def _push(self, name: str, fd: int, mode_before: int | None) -> None:
        found = os.fstat(fd)
        mode = stat.S_IMODE(found.st_mode)
        if mode_before is None and mode & self._need != self._need and found.st_uid == os.geteuid() != 0:
            if self._grants is not None:
                self._grants.granted(found.st_ino, mode)
            os.fchmod(fd, mode | self._need)
            mode_before = mode
        self._levels.append(_Level(name, fd, (found.st_dev, found.st_ino), mode_before))

    def _leave(self, level: _Level, restore_mode: bool) -> None:
        if level.fd < 0:
            return
        try:
            if restore_mode and level.mode_before is not None:
                os.fchmod(level.fd, level.mode_before)
                if self._grants is not None:
                    self._grants.released(level.identity[1])
        finally:
            os.close(level.fd)


def grant(dir_fd: int, name: str, bits: int, grants: Grants | None = None) -> int | None:
    """Add ``bits`` to the mode of our own file or directory; returns its mode before, None where it isn't ours."""
    found = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode) or found.st_uid != os.geteuid():
        return None
    mode = stat.S_IMODE(found.st_mode)
    if grants is not None:
        grants.granted(found.st_ino, mode)
    change_mode(dir_fd, name, mode | bits)
    return mode


def change_mode(dir_fd: int, name: str, mode: int) -> None:
    """chmod that can't be led astray: a symbolic link that takes the name's place is refused, not followed."""
    if not _PATH_ONLY:
        os.chmod(name, mode, dir_fd=dir_fd, follow_symlinks=False)
        return
    fd = os.open(name, _PATH_ONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        if stat.S_ISLNK(os.fstat(fd).st_mode):
            raise Unsettled(name, "became a symbolic link")
        os.chmod(f"/proc/self/fd/{fd}", mode)
    finally:
        os.close(fd)
