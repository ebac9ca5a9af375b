"""Offers the filesystem backends, and ``planarian pool``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from planarian_core.hookspecs import BackendFactory, CommandGroup, hookimpl
from planarian_core.interfaces import FilesystemBackend


def _btrfs(home: Path) -> FilesystemBackend:
    from planarian_filesystem.btrfs import BtrfsBackend

    return BtrfsBackend(home)


def _copy(home: Path) -> FilesystemBackend:
    from planarian_filesystem.copy import CopyBackend

    return CopyBackend(home)


def _zfs(home: Path) -> FilesystemBackend:
    from planarian_filesystem.zfs import ZfsBackend

    return ZfsBackend(home)


@hookimpl
def planarian_backends() -> Sequence[BackendFactory]:
    return [
        # Where a home has a place in a ZFS pool, or a btrfs, that is because somebody made it for this.
        BackendFactory("filesystem", "zfs", _zfs, rank=25, missed=False),
        BackendFactory("filesystem", "btrfs", _btrfs, rank=20),
        BackendFactory("filesystem", "copy", _copy, rank=10),
    ]


@hookimpl
def planarian_commands() -> Mapping[str, CommandGroup]:
    from planarian_filesystem import pool_commands as pool
    from planarian_filesystem import zfs_commands as zfs

    commands: dict[str, Callable[..., None]] = {
        "create": pool.create,
        "grow": pool.grow,
        "status": pool.status,
        "destroy": pool.destroy,
    }
    datasets: dict[str, Callable[..., None]] = {"create": zfs.create, "status": zfs.status, "destroy": zfs.destroy}
    return {
        "pool": CommandGroup("Keep sandboxes where a snapshot takes no time (btrfs).", commands),
        "zfs": CommandGroup("Keep sandboxes in a ZFS pool, where a snapshot takes no time.", datasets),
    }
