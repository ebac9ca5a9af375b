"""Where the ZFS of a home is: a pool in a file of the home, or a dataset of a pool that is there.

``home/zfs.json`` says which. Its base dataset is mounted at ``home/zfs`` by whoever needs it first, under a lock, and
stays mounted; the file's pool is imported by that too.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from planarian_filesystem import zfs_library, zfs_mount
from planarian_filesystem.zfs_command import zpool
from planarian_filesystem.zfs_datasets import Datasets
from planarian_filesystem.zfs_errors import STATUS, unavailable, what_happened
from planarian_filesystem.zfs_notes import LAYERS

CREATE = "planarian zfs create"


@dataclass(frozen=True)
class Where:
    """``base``: the dataset that everything lies in; ``file``: whether it is a pool of its own, in the home's file."""

    base: str
    file: bool


class ZfsPool:
    """The ZFS of one home, there or not."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.root = Path(os.path.realpath(home)) / "zfs"
        self.file = Path(os.path.realpath(home)) / "pool.zfs"
        self.note = home / "zfs.json"
        self._ready: tuple[int, Datasets] | None = None

    @property
    def there(self) -> bool:
        return os.path.lexists(self.note)

    def where(self) -> Where:
        """BackendUnavailable when there is none."""
        try:
            found = json.loads(self.note.read_text())
            return Where(str(found["base"]), bool(found["file"]))
        except FileNotFoundError as error:
            raise unavailable("this home has no place in a ZFS pool", f"as root: {CREATE}") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise unavailable(f"{self.note} can't be read: {error}", f"put it back; {STATUS}") from error

    def remember(self, where: Where) -> None:
        """Written whole or not at all."""
        passing = self.note.with_suffix(".new")
        passing.write_text(json.dumps(asdict(where)))
        os.replace(passing, self.note)

    def ready(self) -> Datasets:
        """The datasets, whose layers are mounted when this returns; BackendUnavailable says why not."""
        if self._ready is not None and self._device() == self._ready[0]:
            return self._ready[1]
        where = self.where()
        if os.geteuid() != 0:
            raise unavailable("only root can mount datasets", "run planarian as root, or use the backend copy")
        zfs_library.library()
        datasets = Datasets(where.base, self.root)
        with self.locked():
            try:
                self._mount(where)
                datasets.notes.prepare()
                for layer in datasets.notes.names(LAYERS):
                    datasets.settle(layer)
            except OSError as error:
                raise unavailable(f"{where.base} can't be used: {what_happened(error)}", STATUS) from error
        self._ready = (self._device(), datasets)
        return datasets

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time makes, imports, mounts or destroys it."""
        fd = os.open(self.home / "zfs.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _mount(self, where: Where) -> None:
        if zfs_mount.mounts().get(str(self.root)) == where.base:
            return
        if not zfs_library.exists(where.base):
            if not where.file:
                pool = where.base.partition("/")[0]
                raise unavailable(f"the dataset {where.base} isn't there", f"zpool import {pool}, if it isn't imported")
            if not self.file.is_file():
                raise unavailable(f"{self.file} is gone, and with it all that was in it", f"put it back, or {CREATE}")
            zpool("import", "-N", "-o", "cachefile=none", "-d", str(self.file), where.base)
        self.root.mkdir(mode=0o700, exist_ok=True)
        with zfs_mount.attached(where.base) as fd:
            zfs_mount.remove(self.root)
            zfs_mount.place(fd, self.root)
            os.chmod(self.root, 0o700)

    def _device(self) -> int:
        """Tells one mount of the base dataset from another, and from none; -1 for none."""
        try:
            found, above = os.lstat(self.root), os.lstat(self.root.parent)
        except OSError:
            return -1
        return found.st_dev if found.st_dev != above.st_dev else -1
