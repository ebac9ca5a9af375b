"""What can go wrong with subvolumes, as errors that say what is true now and what to do next."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from planarian_core.errors import CaptureError, PlanarianError, RestoreError

_FULL = (errno.ENOSPC, errno.EDQUOT)


def remedy_for(error: OSError, again: str) -> str:
    """The next step after an error of the pool's file system."""
    if error.errno in _FULL:
        return f"planarian pool grow +10G, or make room: planarian rm, planarian prune; then {again}"
    if error.errno in (errno.EROFS, errno.EIO, errno.ENXIO):
        return "planarian pool status; the kernel's log says what happened (dmesg)"
    return f"planarian pool status; mend the cause, then {again}"


def what_happened(error: OSError) -> str:
    if error.errno in _FULL:
        return "the pool is full"
    if error.errno == errno.EROFS:
        return "the pool has gone read-only"
    return error.strerror or str(error)


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
            remedy=remedy_for(error, "roll back again"),
        ) from error


def gone(reference: str, where: Path, why: str) -> PlanarianError:
    """The error for an artefact that can't be used."""
    return RestoreError(
        f"The snapshot {reference} {why} ({where}).",
        code="restore-damaged",
        state="nothing was changed",
        remedy="choose another statepoint; planarian pool status",
    )
