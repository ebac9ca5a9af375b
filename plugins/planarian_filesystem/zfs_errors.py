"""What can go wrong with datasets, as errors that say what is true now and what to do next."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from planarian_core.errors import BackendUnavailable, CaptureError, RestoreError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_BROKEN = (errno.EROFS, errno.EIO, errno.ENXIO, errno.EAGAIN)
STATUS = "planarian zfs status"


def remedy_for(error: OSError, again: str) -> str:
    if error.errno in _FULL:
        return f"make room: planarian rm, planarian prune, or a larger pool (zpool add); then {again}"
    if error.errno == errno.EBUSY:
        return f"end what uses it (zfs holds; grep it in /proc/*/mountinfo), then {again}"
    if error.errno in _BROKEN:
        return "zpool status -v says what is wrong with the pool"
    return f"{STATUS}; mend the cause, then {again}"


def what_happened(error: OSError) -> str:
    about = f" ({error.filename})" if error.filename else ""
    if error.errno in _FULL:
        return "the ZFS pool is full"
    if error.errno == errno.EBUSY:
        return f"the dataset is busy{about}"
    if error.errno == errno.EROFS:
        return "the ZFS pool is read-only"
    return f"{error.strerror or error}{about}"


@contextlib.contextmanager
def capture_errors(layer: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CaptureError(
            f"The files of {layer} could not be captured: {what_happened(error)}.",
            code="capture-no-space" if error.errno in _FULL else "capture-files",
            state="nothing was captured; the sandbox runs on",
            remedy=remedy_for(error, "try again"),
        ) from error


@contextlib.contextmanager
def restore_errors(state: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RestoreError(
            f"The files could not be restored: {what_happened(error)}.",
            code="restore-no-space" if error.errno in _FULL else "restore-files",
            state=state,
            remedy=remedy_for(error, "try again"),
        ) from error


def gone(reference: str, where: str, why: str) -> RestoreError:
    """The error for an artefact that can't be used."""
    return RestoreError(
        f"The snapshot {reference} {why} ({where}).",
        code="restore-damaged",
        state="nothing was changed",
        remedy=f"choose another statepoint; {STATUS}",
    )


def unavailable(why: str, remedy: str) -> BackendUnavailable:
    return BackendUnavailable(f"{why}.", state="nothing was changed", remedy=remedy)
