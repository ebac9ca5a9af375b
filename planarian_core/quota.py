"""Quotas: what statepoints may take in all, and what must stay free on the disk. Asked before anything is frozen."""

from __future__ import annotations

import os
from pathlib import Path

from planarian_core.config import Config
from planarian_core.errors import CaptureError
from planarian_core.model import SandboxRecord
from planarian_core.registry import Registry
from planarian_core.units import parse_share, parse_size, size

_FREE_BYTES = 256 * 1024**2
_FREE_SHARE = 100
_STORED = "SELECT COALESCE(SUM(stored), 0) FROM statepoints WHERE status IN ('committed', 'pruned')"


def stored(registry: Registry, sandbox_id: str = "") -> int:
    """Bytes that the statepoints of a sandbox, or of all, take on the disk: the sum of what each capture added.

    What pruned ones left behind, because others share it, is accounted to them still.
    """
    rows = registry.rows(f"{_STORED} AND sandbox_id = ?", sandbox_id) if sandbox_id else registry.rows(_STORED)
    return int(rows[0][0])


def check(registry: Registry, config: Config, home: Path, record: SandboxRecord) -> None:
    """Refuse a snapshot while the quota is used up, or too little is free where statepoints are kept.

    What a capture will add isn't known before it, so the last one may pass the quota by what it adds.

    Raises:
        CaptureError: ``quota`` or ``disk-low``.
    """
    if config.max_bytes:
        _check_quota(stored(registry), parse_size(config.max_bytes))
    layer = Path(record.spec.layer)
    _check_free(home, config.min_free)
    if layer.is_relative_to(home) and layer.exists():  # it may lie on a pool of its own
        _check_free(layer, config.min_free)


def _check_quota(used: int, limit: int) -> None:
    if used >= limit:
        raise CaptureError(
            f"statepoints take {size(used)} and may take {size(limit)} (max_bytes)",
            code="quota",
            state="no statepoint was begun; the sandbox goes on running",
            remedy="planarian prune --all --keep-last 20, or raise max_bytes in the home's planarian.toml",
        )


def _check_free(place: Path, wanted: str) -> None:
    status = os.statvfs(place)
    whole, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    least = parse_share(wanted, whole) if wanted else min(_FREE_BYTES, whole // _FREE_SHARE)
    if free < least:
        raise CaptureError(
            f"only {size(free)} of disk space are free at {place}, and {size(least)} must stay free (min_free)",
            code="disk-low",
            state="no statepoint was begun; the sandbox goes on running",
            remedy="planarian prune --all --keep-last 20, free disk space, or lower min_free in planarian.toml",
        )
