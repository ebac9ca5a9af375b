"""Makes the place of a home in a ZFS pool, says how full it is, and removes it."""

from __future__ import annotations

import contextlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from planarian_core.errors import ConfigurationError
from planarian_filesystem import zfs_library, zfs_mount
from planarian_filesystem.zfs_command import zfs, zpool
from planarian_filesystem.zfs_errors import restore_errors, unavailable
from planarian_filesystem.zfs_notes import BESIDE, GRAVES, LAYERS, STATEPOINTS
from planarian_filesystem.zfs_pool import Where, ZfsPool

SMALLEST = 256 * 1024**2
_KEPT_BACK = 0.9
"""Of a pool file that layers may fill: going back needs a little room for its clone."""
_SETTINGS = {"compression": "lz4", "xattr": "sa", "acltype": "posix", "atime": "off", "mountpoint": "legacy"}


@dataclass(frozen=True)
class ZfsStatus:
    """Sizes in bytes."""

    base: str
    file: str
    mounted: str
    health: str
    used: int
    available: int
    sandboxes: int
    statepoints: int


def create_file(pool: ZfsPool, size: int) -> None:
    """A pool of its own in a file that grows as it is filled. Root only."""
    if size < SMALLEST:
        raise ConfigurationError(f"A pool of {size} bytes is too small.", remedy=f"at least {SMALLEST >> 20}M")
    _check_absent(pool)
    base = f"planarian-{secrets.token_hex(6)}"
    with pool.locked():
        made = os.open(pool.file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.truncate(made, size)
            settings = [text for name, value in _SETTINGS.items() for text in ("-O", f"{name}={value}")]
            zpool("create", "-o", "cachefile=none", "-o", "ashift=12", *settings, base, str(pool.file))
            try:
                room = int(zfs("get", "-H", "-p", "-o", "value", "available", base))
                zfs_library.create(f"{base}/layers", {b"quota": int(room * _KEPT_BACK)})
                pool.remember(Where(base, file=True))
            except BaseException:
                zpool("destroy", "-f", base)
                raise
        except BaseException:
            pool.file.unlink()
            raise
        finally:
            os.close(made)


def create_below(pool: ZfsPool, parent: str) -> None:
    """Datasets below one that is there."""
    _check_absent(pool)
    if not zfs_library.exists(parent):
        raise unavailable(f"there is no dataset {parent}", "zfs list names those that are there")
    base = f"{parent}/planarian-{secrets.token_hex(6)}"
    settings = [text for name, value in _SETTINGS.items() for text in ("-o", f"{name}={value}")]
    with pool.locked():
        zfs("create", *settings, base)
        try:
            zfs_library.create(f"{base}/layers")
            pool.remember(Where(base, file=False))
        except BaseException:
            zfs("destroy", "-r", base)
            raise


def _check_absent(pool: ZfsPool) -> None:
    zfs_library.library()
    if os.geteuid() != 0:
        raise unavailable("only root can make it", "run it as root")
    if pool.there:
        raise ConfigurationError(
            f"This home has a place in a ZFS pool already ({pool.where().base}).",
            state="nothing was changed",
            remedy="planarian zfs status; planarian zfs destroy",
        )


def status(pool: ZfsPool) -> ZfsStatus:
    datasets = pool.ready()
    where = pool.where()
    used, available = zfs("get", "-H", "-p", "-o", "value", "used,available", f"{where.base}/layers").split()
    return ZfsStatus(
        base=where.base,
        file=str(pool.file) if where.file else "",
        mounted=str(pool.root),
        health=zpool("list", "-H", "-o", "health", where.base.partition("/")[0]).strip(),
        used=int(used),
        available=int(available),
        sandboxes=len(datasets.notes.names(LAYERS)),
        statepoints=len(datasets.notes.names(STATEPOINTS)),
    )


def destroy(pool: ZfsPool, *, force: bool) -> tuple[int, int]:
    """Remove it; returns how many layers and statepoints went. Refused without ``force`` while there are any."""
    where = pool.where()
    datasets = pool.ready()
    layers, kept = datasets.notes.names(LAYERS), datasets.notes.names(STATEPOINTS)
    if (layers or kept) and not force:
        raise ConfigurationError(
            f"The files of {len(layers)} sandboxes and {len(kept)} statepoints are in {where.base}.",
            state="nothing was removed",
            remedy="planarian rm them, or planarian zfs destroy --force",
        )
    with pool.locked(), restore_errors("what was not removed yet is as it was; do it again"):
        for note in datasets.notes.names(BESIDE):
            datasets.give_up(*note.rpartition(":")[::2])
        for layer in layers:
            datasets.drop(layer)
        for statepoint in kept:
            datasets.release(statepoint)
        left = datasets.notes.names(GRAVES)
        if left:
            raise OSError(16, f"{len(left)} datasets are still in use, {datasets.full(left[0])} among them")
        zfs_mount.remove(pool.root)
        _remove(pool, where)
    return len(layers), len(kept)


def _remove(pool: ZfsPool, where: Where) -> None:
    if where.file:
        zpool("destroy", where.base)
        pool.file.unlink(missing_ok=True)
    else:
        zfs_library.destroy(f"{where.base}/layers")
        zfs_library.destroy(where.base)
    pool.note.unlink()
    with contextlib.suppress(OSError):
        Path(pool.root).rmdir()
