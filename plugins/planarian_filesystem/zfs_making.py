"""Makes the place of a home in a ZFS pool, says how full it is, and removes it."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from planarian_core.errors import BackendUnavailable, ConfigurationError, PlanarianError
from planarian_core.faults import reach
from planarian_filesystem import zfs_library, zfs_mount
from planarian_filesystem.pool_file import check_room, extend
from planarian_filesystem.zfs_command import zfs, zpool
from planarian_filesystem.zfs_datasets import Datasets
from planarian_filesystem.zfs_errors import restore_errors, unavailable, what_happened
from planarian_filesystem.zfs_notes import BESIDE, GRAVES, LAYERS, STATEPOINTS
from planarian_filesystem.zfs_pool import GIVE_UP, Where, ZfsPool, checked
from planarian_filesystem.zfs_trial import clear_trials

SMALLEST = 256 * 1024**2
_THERE = "zfs list names those that are there"
_FOR_LAYERS = 0.9
"""Of a pool file: going back needs a little room for its clone."""
_RESERVED, _RESERVED_OF_OTHERS = 16 * 1024**2, 64 * 1024**2
"""For the notes: what is to be removed from a pool that is full must be noted first. A note takes next to nothing, but
ZFS reckons with the worst, many times that. In a pool file layers have a quota besides; other pools anybody can fill.
"""
_SETTINGS = {
    "mountpoint": "legacy",
    "readonly": "off",
    "compression": "lz4",
    "atime": "off",
    "xattr": "sa",
    "acltype": "posix",
    "casesensitivity": "sensitive",
    "normalization": "none",
    "utf8only": "off",
    "com.sun:auto-snapshot": "false",
}
"""Files as Linux has them, whatever the datasets above are like."""


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
    waiting: int
    """Datasets that nobody has any more, and that go once nothing builds on them or uses them."""


def create_file(pool: ZfsPool, size: int, *, sparse: bool = False) -> None:
    """A pool of its own in a file of ``size`` bytes. Root only; what is cut off is removed by :func:`destroy`."""
    if size < SMALLEST:
        raise ConfigurationError(f"A pool of {size} bytes is too small.", remedy=f"at least {SMALLEST >> 20}M")
    _check_possible()
    base = f"planarian-{secrets.token_hex(6)}"
    settings = _settings("-O", _RESERVED)
    # A host whose disk is full must not leave a sandbox's programs waiting for ever.
    options = ["-o", "cachefile=none", "-o", "ashift=12", "-o", "failmode=continue", *settings]
    with pool.locked():
        _check_absent(pool)
        if os.path.lexists(pool.file):
            raise ConfigurationError(
                f"There is a file {pool.file}, of which {pool.note} knows nothing.",
                state="nothing was changed",
                remedy="put that note back, or remove the file if nothing in it is needed",
            )
        check_room(pool.home, size, sparse)
        pool.remember(Where(base, file=True))
        try:
            _make_file(pool.file, size, sparse)
            reach("zfs.begun")
            zpool("create", *options, base, str(pool.file))
            reach("zfs.made")
            room = int(zfs("get", "-H", "-p", "-o", "value", "available", base)) - _RESERVED
            _make_layers(base, quota=int(room * _FOR_LAYERS))
        except BaseException:
            _forget(pool, Where(base, file=True))
            raise


def create_below(pool: ZfsPool, parent: str) -> None:
    """Datasets below one that is there. Root only; what is cut off is removed by :func:`destroy`."""
    _check_possible()
    try:
        base = checked(f"{parent}/planarian-{secrets.token_hex(6)}")
    except ValueError as error:
        raise ConfigurationError(f"{error}.", state="nothing was changed", remedy=_THERE) from error
    if not zfs_library.exists(parent):
        raise unavailable(f"there is no dataset {parent}", _THERE)
    settings = _settings("-o", _RESERVED_OF_OTHERS)
    with pool.locked():
        _check_absent(pool)
        pool.remember(Where(base, file=False))
        try:
            zfs("create", *settings, base)
            reach("zfs.made")
            _make_layers(base)
        except BaseException:
            _forget(pool, Where(base, file=False))
            raise


def _settings(option: str, reserved: int) -> list[str]:
    settings = {**_SETTINGS, "refreservation": str(reserved)}
    return [text for name, value in settings.items() for text in (option, f"{name}={value}")]


def _make_file(path: Path, size: int, sparse: bool) -> None:
    try:
        with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "r+b") as file:
            extend(file.fileno(), size, sparse)
    except OSError as error:
        raise ConfigurationError(
            f"The pool file can't be made: {error}.", state="nothing remains", remedy="planarian doctor"
        ) from error


def _make_layers(base: str, quota: int = 0) -> None:
    """What all layers lie below; together they take no more than ``quota`` bytes, if there is one."""
    try:
        zfs_library.create(f"{base}/layers", {b"quota": quota} if quota else None)
    except OSError as error:
        raise unavailable(f"datasets can't be made: {what_happened(error)}", "zpool status -v") from error


def _check_possible() -> None:
    zfs_library.library()
    if os.geteuid() != 0:
        raise unavailable("only root can make it", "run it as root")


def _check_absent(pool: ZfsPool) -> None:
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
        waiting=len(datasets.notes.names(GRAVES)),
    )


def destroy(pool: ZfsPool, *, force: bool) -> tuple[int, int]:
    """Remove it; returns how many layers and statepoints went.

    Raises:
        ConfigurationError: there are any, and no ``force``.
        BackendUnavailable: it can't be looked into. With ``force`` what isn't there any more, or can't be imported, is
            given up.
        PlanarianError: a layer is in use; nothing was removed.
    """
    _check_possible()
    where = pool.where()
    try:
        datasets = pool.ready()
    except BackendUnavailable:
        with restore_errors("nothing was removed"):
            if not force or zfs_library.exists(where.base):
                raise
            with pool.locked():
                if where.file:
                    pool.file.unlink(missing_ok=True)
                pool.note.unlink()
        return 0, 0
    layers, kept = datasets.notes.names(LAYERS), datasets.notes.names(STATEPOINTS)
    if (layers or kept) and not force:
        raise ConfigurationError(
            f"The files of {len(layers)} sandboxes and {len(kept)} statepoints are in {where.base}.",
            state="nothing was removed",
            remedy=f"planarian rm them, or {GIVE_UP}",
        )
    with pool.locked(), restore_errors("what was not removed yet is as it was; do it again"):
        _check_unused(datasets, layers)
        _empty(datasets, layers, kept)
        left = datasets.notes.names(GRAVES)
        if left:
            raise OSError(errno.EBUSY, f"{len(left)} datasets are still in use", datasets.full(left[0]))
        zfs_mount.remove(pool.root)
        _remove(pool, where)
    return len(layers), len(kept)


def _check_unused(datasets: Datasets, layers: Sequence[str]) -> None:
    """PlanarianError, with all in its place, where something besides our own mounts uses a layer."""
    used = {datasets.full(datasets.current(layer)): layer for layer in layers}
    for layer in layers:
        datasets.hide(layer)
    busy = sorted(used.keys() & zfs_mount.in_use(datasets.base.partition("/")[0]))
    if busy:
        datasets.settle_all()
        raise PlanarianError(
            f"{len(busy)} layers are in use, that of {used[busy[0]]} among them.",
            code="pool-busy",
            state="nothing was removed",
            remedy="end what runs in its sandboxes (planarian stop), and what has its directory open",
        )


def _empty(datasets: Datasets, layers: Sequence[str], kept: Sequence[str]) -> None:
    clear_trials(datasets)
    for note in datasets.notes.names(BESIDE):
        layer, _, dataset = note.rpartition(":")
        datasets.give_up(layer, dataset)
    for layer in layers:
        datasets.drop(layer)
    for statepoint in kept:
        datasets.release(statepoint)
    datasets.sweep()


def _remove(pool: ZfsPool, where: Where) -> None:
    if where.file:
        zpool("destroy", where.base)
        pool.file.unlink(missing_ok=True)
    else:
        for name in (f"{where.base}/layers", where.base):
            with contextlib.suppress(FileNotFoundError):  # it was cut off when it was made
                zfs_library.destroy(name)
    pool.note.unlink()
    with contextlib.suppress(OSError):
        Path(pool.root).rmdir()


def _forget(pool: ZfsPool, where: Where) -> None:
    """Take back what wasn't made to the end."""
    if where.file:
        with contextlib.suppress(BackendUnavailable):  # it wasn't made yet
            zpool("destroy", "-f", where.base)
        pool.file.unlink(missing_ok=True)
    else:
        for name in (f"{where.base}/layers", where.base):
            with contextlib.suppress(OSError):
                zfs_library.destroy(name)
    pool.note.unlink(missing_ok=True)
