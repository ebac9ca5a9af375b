"""What is to be said of a pool: how large, how full, and of what."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from planarian_filesystem import btrfs_ioctl, pool_loop
from planarian_filesystem.btrfs_layers import STATEPOINTS
from planarian_filesystem.pool import Pool

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class PoolStatus:
    """A pool that works. Sizes in bytes; ``file`` and ``device`` only of a pool file."""

    kind: str
    layers: str
    size: int
    used: int
    free: int
    read_only: bool
    sandboxes: int
    statepoints: int
    spaces: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    file: str = ""
    allocated: int = 0
    device: str = ""
    remark: str = ""


def status(pool: Pool) -> PoolStatus:
    """What is to be said of a pool; it is mounted by this. BackendUnavailable when it can't be used."""
    layers = pool.ready()
    sandboxes, statepoints = contents(layers)
    fd = os.open(layers, _DIRECTORY)
    try:
        held = os.fstatvfs(fd)
        spaces = {name: {"total": s.total, "used": s.used} for name, s in btrfs_ioctl.spaces(fd).items()}
    finally:
        os.close(fd)
    total, free = held.f_blocks * held.f_frsize, held.f_bavail * held.f_frsize
    found = PoolStatus(
        kind=pool.kind,
        layers=str(layers),
        size=total,
        used=total - held.f_bfree * held.f_frsize,
        free=free,
        read_only=bool(held.f_flag & os.ST_RDONLY),
        sandboxes=len(sandboxes),
        statepoints=len(statepoints),
        spaces=spaces,
    )
    if found.kind != "file":
        return found
    try:
        allocated = pool.file.stat().st_blocks * 512
    except FileNotFoundError:
        allocated = 0
    device = pool_loop.device_of(pool.file)
    return replace(found, file=str(pool.file), allocated=allocated, device=device, remark=pool.limits())


def contents(layers: Path) -> tuple[list[str], list[str]]:
    """The sandboxes and the statepoints whose files a pool holds."""
    sandboxes = [name for name in os.listdir(layers) if not name.startswith(".")]
    with contextlib.suppress(FileNotFoundError):
        return sandboxes, os.listdir(layers / STATEPOINTS)
    return sandboxes, []
