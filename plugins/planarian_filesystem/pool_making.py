"""Making, growing and removing a home's pool."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import time
from pathlib import Path

from planarian_core.durable import sync_directory
from planarian_core.errors import BackendUnavailable, ConfigurationError, PlanarianError
from planarian_core.faults import reach
from planarian_core.units import size as shown
from planarian_filesystem import btrfs_ioctl, btrfs_subvolumes, pool_loop
from planarian_filesystem.btrfs_layers import ORIGINS, STATEPOINTS, drop
from planarian_filesystem.pool import LABEL, Pool, unavailable
from planarian_filesystem.pool_file import check_room, extend
from planarian_filesystem.pool_status import contents

LEAST = 256 * 1024**2
_MKFS = ("--quiet", "--nodiscard", "--metadata", "dup", "--data", "single")
"""Metadata twice: the disk below may have no checksums. No discard: it would give back what was set aside."""
_MKFS_SECONDS = 300
_RELEASE_SECONDS = 10.0
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def create_file(pool: Pool, size: int, *, sparse: bool = False) -> None:
    """Make a pool file of ``size`` bytes and mount it. What is cut off is begun anew by the next try.

    Raises:
        ConfigurationError: there is a pool, none is needed, or there is no room.
        BackendUnavailable: not root, no mkfs.btrfs, no loop devices, no btrfs in the kernel.
    """
    if os.geteuid() != 0:
        raise unavailable(
            "only root can make a pool file and mount it",
            "planarian pool create --path DIRECTORY, on a btrfs of yours; or use the backend copy",
        )
    if shutil.which("mkfs.btrfs") is None:
        raise unavailable("mkfs.btrfs isn't installed", "apt-get install btrfs-progs")
    if size < LEAST:
        raise ConfigurationError(f"a pool has at least {shown(LEAST)}", code="pool-size", remedy="give a larger --size")
    pool.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with pool.locked():
        _check_none(pool)
        check_room(pool.home, size, sparse)
        draft = pool.file.with_name(f"{pool.file.name}.new")
        draft.unlink(missing_ok=True)
        try:
            _make(draft, size, sparse)
            reach("pool.made")
            os.rename(draft, pool.file)
            sync_directory(pool.home)
        finally:
            draft.unlink(missing_ok=True)
    reach("pool.named")
    try:
        pool.ready()
    except BackendUnavailable:
        with pool.locked():
            if not pool.mounted():
                pool.file.unlink(missing_ok=True)  # nobody has used it
        raise


def create_directory(pool: Pool, directory: Path) -> None:
    """Use a directory of its own in ``directory``, which lies on a btrfs, as the pool.

    Raises:
        ConfigurationError: there is a pool, none is needed, or ``directory`` can't hold one.
    """
    pool.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with pool.locked():
        _check_none(pool)
        try:
            target = directory.resolve(strict=True) / f"planarian-{secrets.token_hex(4)}"
            target.mkdir(mode=0o700)
        except OSError as error:
            raise ConfigurationError(
                f"{directory} can't hold a pool: {error.strerror}", code="pool-path", remedy="name a directory of yours"
            ) from error
        try:
            if not Pool.lies_on_btrfs(target):
                raise ConfigurationError(
                    f"{directory} isn't on btrfs", code="pool-path", remedy="leave --path out: planarian pool create"
                )
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(pool.path)
            os.symlink(target, pool.path)
        except BaseException:
            os.rmdir(target)
            raise
        reach("pool.named")
    pool.ready()


def grow(pool: Pool, size: int) -> None:
    """Make a pool file larger, while it is in use. What was cut off is finished by doing it again.

    Raises:
        ConfigurationError: it isn't larger, there is no room, or the pool is no file.
    """
    if pool.kind != "file":
        raise ConfigurationError(
            "only a pool file can be grown, and this home has none",
            code="pool-kind",
            state="nothing was changed",
            remedy="planarian pool status",
        )
    layers = pool.ready()
    with pool.locked():
        known = pool.superblock()
        if size <= known.filesystem_size:
            raise ConfigurationError(
                f"the pool has {shown(known.filesystem_size)} already",
                code="pool-size",
                state="nothing was changed",
                remedy="give a larger size, or +10G for so much more",
            )
        check_room(pool.home, size - known.allocated, known.sparse)
        with open(pool.file, "r+b") as file:
            extend(file.fileno(), max(size, known.file_size), known.sparse)
        reach("pool.extended")
        pool_loop.grown(pool_loop.device_of(pool.file))
        fd = os.open(layers, _DIRECTORY)
        try:
            btrfs_ioctl.resize(fd)
        finally:
            os.close(fd)


def destroy(pool: Pool, *, force: bool = False) -> tuple[int, int]:
    """Remove a pool; returns how many sandboxes and statepoints had their files in it.

    Raises:
        ConfigurationError: there is none, or (unless ``force``) it holds something or can't be looked into.
        PlanarianError: it is in use.
    """
    kind = pool.kind
    if kind in ("", "home"):
        why = "there is no pool" if not kind else "the home lies on btrfs itself: there is no pool to remove"
        raise ConfigurationError(why, code="pool-none", state="nothing was changed", remedy="planarian pool status")
    try:
        layers: Path | None = pool.ready()
        held = contents(pool.ready())
    except BackendUnavailable:
        if not force:
            raise
        layers, held = None, ([], [])
    if any(held) and not force:
        raise ConfigurationError(
            f"the pool holds the files of {len(held[0])} sandboxes and {len(held[1])} statepoints",
            code="pool-in-use",
            state="nothing was changed",
            remedy="remove them first (planarian rm); or give them up: planarian pool destroy --force",
        )
    with pool.locked():
        if kind == "file":
            _release(pool)
            reach("pool.unmounted")
            pool.file.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                os.rmdir(pool.path)
        else:
            if layers is not None:
                _empty(layers)
            pool.path.unlink(missing_ok=True)
    return len(held[0]), len(held[1])


def _release(pool: Pool) -> None:
    """Unmount; PlanarianError, with the pool mounted as before, when a sandbox still uses it."""
    if not pool.mounted():
        return
    in_use = PlanarianError(
        "the pool is in use",
        code="pool-busy",
        state="nothing was changed",
        remedy="end what runs in its sandboxes (planarian stop), and what has its directory open",
    )
    try:
        pool_loop.unmount(pool.path)
    except OSError as error:
        raise in_use from error
    # A sandbox that runs has it mounted in its own namespace, which keeps the device; so has any that is just starting.
    deadline = time.monotonic() + _RELEASE_SECONDS
    while device := pool_loop.device_of(pool.file):
        if time.monotonic() > deadline:
            pool_loop.mount(device, pool.path, "")
            raise in_use
        time.sleep(0.02)


def _empty(layers: Path) -> None:
    base = os.open(layers, _DIRECTORY)
    try:
        for name in os.listdir(base):
            if name not in (STATEPOINTS, ORIGINS):
                drop(base, name)
        with contextlib.suppress(FileNotFoundError):
            kept = os.open(STATEPOINTS, _DIRECTORY, dir_fd=base)
            for name in os.listdir(kept):
                btrfs_subvolumes.remove(kept, name)
            os.close(kept)
    finally:
        os.close(base)
    shutil.rmtree(layers.parent)


def _check_none(pool: Pool) -> None:
    if not pool.kind:
        return
    if pool.kind == "home":
        raise ConfigurationError(
            f"the home {pool.home} lies on btrfs itself and needs no pool",
            code="pool-none",
            state="nothing was changed",
            remedy="planarian pool status",
        )
    raise ConfigurationError(
        "this home has a pool", code="pool-exists", state="nothing was changed", remedy="planarian pool status"
    )


def _make(draft: Path, size: int, sparse: bool) -> None:
    try:
        with open(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "r+b") as file:
            extend(file.fileno(), size, sparse)
        done = subprocess.run(
            ["mkfs.btrfs", *_MKFS, *_small_nodes(), "--label", LABEL, str(draft)],
            capture_output=True, text=True, timeout=_MKFS_SECONDS, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode != 0:
            raise unavailable(f"mkfs.btrfs failed: {(done.stderr or done.stdout).strip()[-300:]}", "planarian doctor")
        fd = os.open(draft, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(
            f"the pool file can't be made: {error}",
            code="pool-file",
            state="nothing remains",
            remedy="planarian doctor",
        ) from error


def _small_nodes() -> tuple[str, ...]:
    """A snapshot rewrites a few nodes whole: with the smallest ones it takes a third of the space, and less time."""
    return ("--nodesize", "4096") if os.sysconf("SC_PAGE_SIZE") == 4096 else ()
