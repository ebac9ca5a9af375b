"""What can go wrong with datasets, as errors that say what is true now and what to do next."""

from __future__ import annotations

import errno

from planarian_core.errors import BackendUnavailable
from planarian_filesystem.pool_errors import FULL, PoolErrors

_BROKEN = (errno.EROFS, errno.EIO, errno.ENXIO, errno.EAGAIN)
STATUS = "planarian zfs status"


def remedy_for(error: OSError, again: str) -> str:
    if error.errno in FULL:
        return f"make room: planarian rm, planarian prune, or a larger pool (zpool add); then {again}"
    if error.errno == errno.EBUSY:
        return f"end what uses it (zfs holds; grep it in /proc/*/mountinfo), then {again}"
    if error.errno in _BROKEN:
        return "zpool status -v says what is wrong with the pool"
    return f"{STATUS}; mend the cause, then {again}"


def what_happened(error: OSError) -> str:
    about = f" ({error.filename})" if error.filename else ""
    if error.errno in FULL:
        return "the ZFS pool is full"
    if error.errno == errno.EBUSY:
        return f"the dataset is busy{about}"
    if error.errno == errno.EROFS:
        return "the ZFS pool is read-only"
    return f"{error.strerror or error}{about}"


_ERRORS = PoolErrors(what_happened, remedy_for, again="try again", status=STATUS)
capture_errors, restore_errors, gone = _ERRORS.capture, _ERRORS.restore, _ERRORS.gone


def unavailable(why: str, remedy: str) -> BackendUnavailable:
    return BackendUnavailable(f"{why}.", state="nothing was changed", remedy=remedy)
