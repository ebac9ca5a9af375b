"""What a path of a process leads to, as that process sees it, looked up from outside.

A path is walked name by name from the root directory of the process. Symlinks and ``..`` stay below that root, so
nothing that the sandbox put there leads to a file of the host's, and nothing is opened for reading.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from types import TracebackType

from planarian_process.observe import Seen

DELETED = " (deleted)"
"""What the kernel appends to the path of a file that has lost its name."""
_DEFAULT_PATH = "/usr/bin:/bin"
_MOST_STEPS = 128
_MOST_DIRECTORIES = 64
_MOST_ROOTS = 64
_STEP = getattr(os, "O_PATH", 0) | os.O_NOFOLLOW | os.O_CLOEXEC


class Programs:
    """Make it while the processes stand still, ask it when they run again.

    It holds their root directories meanwhile: a look at a file could hang on a file system that one of the stopped
    processes serves. Elsewhere than on Linux it finds nothing amiss.
    """

    def __init__(self, seen: Iterable[Seen]) -> None:
        self._roots: dict[str, int] = {}
        for process in seen:
            if process.root == "/" and process.mounts not in self._roots and len(self._roots) < _MOST_ROOTS:
                with contextlib.suppress(OSError):
                    root = os.open(f"/proc/{process.host_pid}/root", _STEP & ~os.O_NOFOLLOW | os.O_DIRECTORY)
                    self._roots[process.mounts] = root

    def __enter__(self) -> Programs:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for root in self._roots.values():
            os.close(root)
        self._roots.clear()

    def named(self, process: Seen) -> bool:
        """Whether starting ``argv[0]`` anew, in the directory and with the ``PATH`` of the process, runs the program
        that it runs: a process may call itself what it likes.
        """
        if sys.platform != "linux":
            return True
        real = self._find(process, process.executable)
        return real is not None and _same(real, self._program(process))

    def deleted(self, process: Seen, link: str, path: str) -> bool:
        """Whether the file behind ``/proc/PID/LINK``, whose text was ``path``, has lost its name. It may really be
        called "… (deleted)".
        """
        if not path.endswith(DELETED):
            return False
        try:
            return not _same(os.stat(f"/proc/{process.host_pid}/{link}"), self._find(process, path))
        except OSError:
            return True

    def _program(self, process: Seen) -> os.stat_result | None:
        """What ``argv[0]`` stands for, found as the sandbox's init finds it."""
        name = process.argv[0]
        if "/" in name:
            return self._find(process, name)
        path = dict(process.environment).get("PATH", _DEFAULT_PATH)
        for directory in path.split(":")[:_MOST_DIRECTORIES]:
            found = self._find(process, os.path.join(directory, name))
            if found is not None and stat.S_ISREG(found.st_mode) and found.st_mode & 0o111:
                return found
        return None

    def _find(self, process: Seen, path: str) -> os.stat_result | None:
        root = self._roots.get(process.mounts) if process.root == "/" else None
        if root is None:
            return None
        try:
            return look_up(root, os.path.join(process.cwd, path))
        except OSError:
            return None


def look_up(root: int, path: str) -> os.stat_result:
    """The status of what ``path`` leads to for somebody whose root directory is ``root``; OSError when to nothing."""
    left = path.split("/")[::-1]
    with contextlib.ExitStack() as opened:
        above = [root]
        for name in _names(left):
            if name == "..":
                del above[max(1, len(above) - 1) :]
                continue
            here = os.open(name, _STEP, dir_fd=above[-1])
            opened.callback(os.close, here)
            if not stat.S_ISLNK(os.fstat(here).st_mode):
                above.append(here)
                continue
            target = os.readlink("", dir_fd=here)
            if target.startswith("/"):
                del above[1:]
            left += target.split("/")[::-1]
        return os.fstat(above[-1])


def _names(left: list[str]) -> Iterator[str]:
    """The names of a path whose rest, last name first, may grow meanwhile; OSError when there is no end to them."""
    for _ in range(_MOST_STEPS):
        while left and left[-1] in ("", "."):
            left.pop()
        if not left:
            return
        yield left.pop()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _same(one: os.stat_result, other: os.stat_result | None) -> bool:
    return other is not None and (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
