"""Offers the filesystem backends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from planarian_core.hookspecs import BackendFactory, hookimpl
from planarian_core.interfaces import FilesystemBackend


def _btrfs(home: Path) -> FilesystemBackend:
    from planarian_filesystem.btrfs import BtrfsBackend

    return BtrfsBackend(home)


def _copy(home: Path) -> FilesystemBackend:
    from planarian_filesystem.copy import CopyBackend

    return CopyBackend(home)


@hookimpl
def planarian_backends() -> Sequence[BackendFactory]:
    return [
        BackendFactory("filesystem", "btrfs", _btrfs, rank=20),
        BackendFactory("filesystem", "copy", _copy, rank=10),
    ]
