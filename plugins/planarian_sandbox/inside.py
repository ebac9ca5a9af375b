"""Files of a sandbox as the host may touch them: from a directory descriptor, step by step, through no symlink.

What lies in a layer was written by hostile code. Every look at it goes through :class:`Inside`, which stays below its
root, follows no symbolic link and no magic link, and never hangs on a FIFO.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from planarian_core.errors import SandboxError

_SAFE = os.O_NOFOLLOW | os.O_CLOEXEC
_STEP = _SAFE | os.O_DIRECTORY | getattr(os, "O_PATH", os.O_RDONLY)


def open_below(directory: int, path: str, flags: int, mode: int = 0) -> int:
    """Open ``path`` below ``directory``, one name after the other; OSError where one is a link, or leads up."""
    names = [name for name in path.split("/") if name not in ("", ".")]
    if ".." in names:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    above = directory
    try:
        for name in names[:-1]:
            below = os.open(name, _STEP, dir_fd=above)
            if above != directory:
                os.close(above)
            above = below
        return os.open(names[-1] if names else ".", flags | _SAFE, mode, dir_fd=above)
    finally:
        if above != directory:
            os.close(above)


class Inside:
    """A directory that a sandbox controls. Use it in a ``with`` statement."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def of_init(cls, init_pid: int) -> Inside:
        """The root directory of a sandbox's init, as it sees it."""
        return cls(os.open(f"/proc/{init_pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))

    @classmethod
    def of_path(cls, path: str) -> Inside:
        """A directory of the host's own, such as a layer's ``upper``."""
        return cls(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))

    def __enter__(self) -> Inside:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)

    def directory(self, path: str) -> Inside:
        """The directory ``path`` below this one."""
        return Inside(open_below(self.descriptor, path, os.O_RDONLY | os.O_DIRECTORY))

    def has(self, path: str) -> bool:
        """Whether there is something at ``path`` below this one."""
        try:
            os.close(open_below(self.descriptor, path, getattr(os, "O_PATH", os.O_RDONLY)))
        except OSError:
            return False
        return True

    def make_directory(self, path: str, mode: int) -> Inside:
        """The directory ``path``, made with ``mode`` where it is missing; its parent must exist.

        Whatever else is at that name (a symlink, a file) is removed first: the name is ours.
        """
        parent, name = os.path.split(path)
        with self.directory(parent or ".") as above:
            try:
                found = os.stat(name, dir_fd=above.descriptor, follow_symlinks=False)
            except FileNotFoundError:
                found = None
            if found is not None and not stat.S_ISDIR(found.st_mode):
                os.unlink(name, dir_fd=above.descriptor)
                found = None
            if found is None:
                os.mkdir(name, dir_fd=above.descriptor)
            made = above.directory(name)
        os.fchmod(made.descriptor, mode)
        return made

    def create(self, name: str, mode: int = 0o600, content: bytes | None = None) -> int:
        """A new file ``name`` right here, open for reading and writing; FileExistsError when the name is taken."""
        descriptor = open_below(self.descriptor, name, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        try:
            os.fchmod(descriptor, mode)
            if content:
                with open(descriptor, "wb", closefd=False) as file:
                    file.write(content)
                os.lseek(descriptor, 0, os.SEEK_SET)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def append(self, name: str) -> int:
        """The regular file ``name`` right here, open for appending."""
        return self.open_regular(name, os.O_WRONLY | os.O_APPEND)

    def open_regular(self, name: str, flags: int = os.O_RDONLY) -> int:
        """The regular file ``name`` right here; OSError when it is anything else."""
        descriptor = open_below(self.descriptor, name, flags | os.O_NONBLOCK | os.O_NOCTTY)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file", name)
        return descriptor

    def replace(self, name: str, content: bytes, mode: int, owner: tuple[int, int] | None = None) -> None:
        """Put a file at ``name`` right here in one step, over whatever is there (a directory excepted)."""
        temporary = f".{name}.new"
        self.remove(temporary)
        descriptor = self.create(temporary, mode, content)
        try:
            if owner is not None:
                os.fchown(descriptor, *owner)
        finally:
            os.close(descriptor)
        os.rename(temporary, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def remove(self, name: str) -> None:
        """Remove the file ``name`` right here; a missing one, or a directory, is left to be."""
        try:
            os.unlink(name, dir_fd=self.descriptor)
        except (FileNotFoundError, IsADirectoryError):
            return

    def read_regular(self, name: str, limit: int) -> tuple[bytes, os.stat_result]:
        """Content and status of the regular file ``name``; OSError when it is anything else, or over ``limit``."""
        descriptor = self.open_regular(name)
        try:
            status = os.fstat(descriptor)
            content = bytearray()
            while len(content) <= limit and (piece := os.read(descriptor, limit + 1 - len(content))):
                content += piece
            if len(content) > limit:
                raise OSError(errno.EFBIG, f"more than {limit} bytes", name)
            return bytes(content), status
        finally:
            os.close(descriptor)

    def settle(self) -> None:
        """Give the directory a time that never changes: names that came and went leave no trace."""
        with contextlib.suppress(OSError):  # an ordinary user's, and something inside has given it away
            os.utime(self.descriptor, ns=(0, 0))

    def names(self, bound: int) -> Iterator[str]:
        """The names right here, at most ``bound`` of them."""
        with os.scandir(self.descriptor) as entries:
            for count, entry in enumerate(entries):
                if count >= bound:
                    return
                yield entry.name


@contextmanager
def tampering(what: str) -> Iterator[None]:
    """Turn an OSError from a look inside into a SandboxError that says ``what`` could not be done."""
    try:
        yield
    except OSError as error:
        raise SandboxError(
            f"{what}: {error.strerror or error} ({error.filename or 'inside the sandbox'}).",
            code="sandbox-inside",
            state="the sandbox's own runtime files were changed from inside, or its disk is full",
            remedy="free space, or roll back to a statepoint",
        ) from error
