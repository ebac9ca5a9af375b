"""Where the ZFS of a home is: a pool in a file of the home, or a dataset of a pool that is there.

``home/zfs.json`` says which. Its base dataset is mounted at ``home/zfs`` by whoever needs it first, under a lock, and
stays mounted; the file's pool is imported by that too.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from planarian_core.durable import sync_directory
from planarian_filesystem import zfs_library, zfs_mount
from planarian_filesystem.zfs_command import zpool
from planarian_filesystem.zfs_datasets import Datasets
from planarian_filesystem.zfs_errors import STATUS, unavailable, what_happened

CREATE = "planarian zfs create"
GIVE_UP = "planarian zfs destroy --force"
_LONGEST = 160
_DATASET = re.compile(r"[A-Za-z][A-Za-z0-9_.: -]*(/[A-Za-z0-9_.: -]+)*")
"""Of what ZFS allows all, so that none is taken for an option, a snapshot or several names."""


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
            return Where(checked(str(found["base"])), bool(found["file"]))
        except FileNotFoundError as error:
            raise unavailable("this home has no place in a ZFS pool", f"as root: {CREATE}") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise unavailable(f"{self.note} can't be read: {error}", f"put it back; {STATUS}") from error

    def remember(self, where: Where) -> None:
        """Written whole or not at all; it lasts when this returns."""
        passing = self.note.with_suffix(".new")
        with open(passing, "w", encoding="utf-8") as file:
            json.dump(asdict(where), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(passing, self.note)
        sync_directory(self.home)

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
                datasets.settle_all()
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
        mounted = zfs_mount.places()
        if mounted.get(str(self.root)) == where.base:
            return
        elsewhere = [path for path, dataset in mounted.items() if dataset == where.base]
        if elsewhere:
            raise unavailable(f"{where.base} is another home's: it is mounted at {elsewhere[0]}", "use that home")
        if not zfs_library.exists(where.base):
            self._import(where)
        self.root.mkdir(mode=0o700, exist_ok=True)
        with zfs_mount.attached(where.base) as fd:
            zfs_mount.remove(self.root)
            zfs_mount.place(fd, self.root)
            os.chmod(self.root, 0o700)

    def _import(self, where: Where) -> None:
        if not where.file:
            pool = where.base.partition("/")[0]
            raise unavailable(
                f"the dataset {where.base} isn't there",
                f"zpool import {pool}, if it isn't imported; if it is gone for good: {GIVE_UP}",
            )
        if not self.file.is_file():
            raise unavailable(f"{self.file} is gone, and with it all that was in it", f"put it back, or {GIVE_UP}")
        zpool("import", "-N", "-o", "cachefile=none", "-d", str(self.file), where.base)

    def _device(self) -> int:
        """Tells one mount of the base dataset from another, and from none; -1 for none."""
        try:
            found, above = os.lstat(self.root), os.lstat(self.root.parent)
        except OSError:
            return -1
        return found.st_dev if found.st_dev != above.st_dev else -1


def checked(dataset: str) -> str:
    """The name, if it can be a dataset's; ValueError else."""
    if not _DATASET.fullmatch(dataset) or len(dataset) > _LONGEST:
        raise ValueError(f"{dataset[:_LONGEST]!r} is no name of a dataset, or too long for more below it")
    return dataset
