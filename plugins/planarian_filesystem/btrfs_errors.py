"""What can go wrong with subvolumes, as errors that say what is true now and what to do next."""

from __future__ import annotations

import errno

from planarian_filesystem.pool_errors import FULL, PoolErrors


def remedy_for(error: OSError, again: str) -> str:
    """The next step after an error of the pool's file system."""
    if error.errno in FULL:
        return f"planarian pool grow +10G, or make room: planarian rm, planarian prune; then {again}"
    if error.errno in (errno.EROFS, errno.EIO, errno.ENXIO):
        return "planarian pool status; the kernel's log says what happened (dmesg)"
    return f"planarian pool status; mend the cause, then {again}"


def what_happened(error: OSError) -> str:
    if error.errno in FULL:
        return "the pool is full"
    if error.errno == errno.EROFS:
        return "the pool has gone read-only"
    return error.strerror or str(error)


_ERRORS = PoolErrors(what_happened, remedy_for, again="roll back again", status="planarian pool status")
capture_errors, restore_errors, gone = _ERRORS.capture, _ERRORS.restore, _ERRORS.gone
