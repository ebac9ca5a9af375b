"""Where the btrfs of a home is: a pool file that is mounted in it, a directory elsewhere, or the home's own.

``home/pool`` is the directory in which everything lies, in its directory ``layers``:

- a mount point, of the file ``home/pool.btrfs``, wherever that file is there;
- a symbolic link to a directory on a btrfs;
- else a plain directory, of a home that lies on btrfs itself.

Any process that needs it mounts it, under a lock; it stays mounted when that process ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from planarian_core.errors import BackendUnavailable
from planarian_filesystem import btrfs_ioctl, pool_loop

LABEL = "planarian-pool"
LAYERS = "layers"

_SUPERBLOCK = 64 * 1024
_FIELDS = struct.Struct("<32s16sQQ8s")  # checksum, file system id, address, flags, magic
_MAGIC = b"_BHRfS_M"
_SIZE_AT, _LABEL_AT, _LABEL_LONG = 0x70, 0x12B, 256
_SPARSE_BELOW = 0.9
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True)
class PoolFile:
    """What the superblock of a pool file says, and the file itself: sizes in bytes."""

    filesystem_id: str
    filesystem_size: int
    file_size: int
    allocated: int

    @property
    def sparse(self) -> bool:
        return self.allocated < self.filesystem_size * _SPARSE_BELOW


class Pool:
    """The pool of one home, there or not."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.path = home / "pool"
        self.file = home / "pool.btrfs"
        self._ready: tuple[str, Path] | None = None

    @property
    def kind(self) -> str:
        """``file``, ``directory``, ``home``; empty when there is none."""
        if self.path.is_symlink():
            return "directory"
        if os.path.lexists(self.file) or self.mounted():
            return "file"
        return "home" if self.lies_on_btrfs(self.home) else ""

    def ready(self) -> Path:
        """The directory of layers, which is there and on btrfs when this returns.

        Raises:
            BackendUnavailable: why it isn't, and what mends that.
        """
        if self._ready is not None and self._identity(self._ready[1]) == self._ready[0]:
            return self._ready[1]
        kind = self.kind
        if kind == "file":
            with self.locked():
                self._mount()
        elif kind == "directory":
            self._check_directory()
        elif not kind:
            raise self._none()
        layers = Path(os.path.realpath(self.path)) / LAYERS
        try:
            layers.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise unavailable(f"{layers} can't be made: {error.strerror}", "planarian pool status") from error
        self._ready = (self._identity(layers), layers)
        return layers

    def limits(self) -> str:
        """What is worth knowing of a pool that works; empty for nothing."""
        if self.kind == "file" and not os.path.lexists(self.file):
            return f"{self.file} was deleted: what it holds is lost when it is unmounted"
        return ""

    def superblock(self) -> PoolFile:
        """What the pool file holds; BackendUnavailable when that isn't, or isn't all of, a pool of ours."""
        try:
            with open(self.file, "rb") as file:
                status = os.fstat(file.fileno())
                file.seek(_SUPERBLOCK)
                block = file.read(4096)
        except OSError as error:
            raise unavailable(f"{self.file} can't be read: {error.strerror}", "put it back") from error
        if len(block) < 4096 or _FIELDS.unpack_from(block)[4] != _MAGIC:
            raise unavailable(f"{self.file} holds no btrfs: it was cut off or overwritten", _BACK)
        size = struct.unpack_from("<Q", block, _SIZE_AT)[0]
        label = block[_LABEL_AT : _LABEL_AT + _LABEL_LONG].partition(b"\0")[0].decode("utf-8", "replace")
        if label != LABEL:
            raise unavailable(f"{self.file} is a btrfs, but no pool of Planarian's (it is called {label!r})", _BACK)
        if status.st_size < size:
            raise unavailable(f"{self.file} was cut off: {status.st_size} bytes of {size}", _BACK)
        return PoolFile(_FIELDS.unpack_from(block)[1].hex(), size, status.st_size, status.st_blocks * 512)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time makes, mounts, grows or destroys it."""
        fd = os.open(self.home / "pool.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def mounted(self) -> bool:
        """Whether anything is mounted at ``home/pool``."""
        return not self.path.is_symlink() and self.path.is_dir() and os.path.ismount(self.path)

    def _mount(self) -> None:
        """Mount the pool file, unless it is. Another mount in its place is refused, and so is a directory in use."""
        if self.mounted():
            self._check_mount()
            return
        known = self.superblock()
        if os.geteuid() != 0:
            raise unavailable(f"{self.file} isn't mounted, and only root can do that", "planarian pool status, as root")
        try:
            self.path.mkdir(mode=0o700, exist_ok=True)
            if os.listdir(self.path):
                raise unavailable(f"{self.path}, where the pool is to be mounted, isn't empty", f"ls {self.path}")
            with pool_loop.attached(self.file) as device:
                pool_loop.mount(device, self.path, "discard=async" if known.sparse else "nodiscard")
        except OSError as error:
            raise unavailable(*self._no_mount(error)) from error
        self._check_mount()

    def _no_mount(self, error: OSError) -> tuple[str, str]:
        if error.filename == "/dev/loop-control":
            return "this host has no loop devices", "modprobe loop; or planarian pool create --path DIRECTORY"
        if error.errno == errno.ENODEV:
            return "this kernel has no btrfs", "modprobe btrfs, or use the backend copy"
        if error.errno == errno.EEXIST:
            return f"a copy of {self.file} is mounted already", "unmount the other one"
        return f"{self.file} can't be mounted: {error.strerror}", "dmesg says why; planarian pool status"

    def _check_mount(self) -> None:
        identity = self._identity(self.path)
        try:
            expected = self.superblock().filesystem_id
        except BackendUnavailable:
            # The file was deleted or cut off under the mount. What is mounted lives on, if it is a pool at all.
            if identity and (self.path / LAYERS).is_dir():
                return
            raise
        if identity != expected:
            raise unavailable(f"something else than {self.file} is mounted at {self.path}", f"umount {self.path}")

    def _check_directory(self) -> None:
        target = Path(os.path.realpath(self.path))
        try:
            status = target.stat()
        except OSError as error:
            raise unavailable(
                f"the directory {target} of the pool can't be reached: {error.strerror}",
                "mount the file system that it is on",
            ) from error
        if not self.lies_on_btrfs(target):
            raise unavailable(f"the directory {target} of the pool isn't on btrfs", "mount the btrfs that it was on")
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise unavailable(f"the directory {target} of the pool isn't yours alone", f"chmod 700 {target}")

    def _none(self) -> BackendUnavailable:
        if os.geteuid() != 0:
            return unavailable("the home isn't on btrfs", "as root: planarian pool create; or use the backend copy")
        return unavailable("there is no pool, and the home isn't on btrfs", "planarian pool create")

    @staticmethod
    def lies_on_btrfs(path: Path) -> bool:
        """Whether a directory is there and on btrfs."""
        return Pool._identity(path) != ""

    @staticmethod
    def _identity(path: Path) -> str:
        """The id of the btrfs that a directory lies on; empty when it is missing or on something else."""
        try:
            fd = os.open(path, _DIRECTORY)
        except OSError:
            return ""
        try:
            return btrfs_ioctl.filesystem_id(fd)
        except OSError:
            return ""
        finally:
            os.close(fd)


_BACK = "put back a copy of it; or give up what it held: planarian pool destroy --force"


def unavailable(message: str, remedy: str) -> BackendUnavailable:
    return BackendUnavailable(f"{message}.", remedy=remedy)
