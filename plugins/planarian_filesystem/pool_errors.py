"""What can go wrong in a pool of either kind, as errors that say what is true now and what to do next."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from planarian_core.errors import CaptureError, RestoreError

FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class PoolErrors:
    """How one kind of pool puts it.

    Args:
        what_happened: an error of its file system, in words.
        remedy_for: the next step after one; its second argument is what to do again.
        again: what to do again after a restore.
        status: the command that shows the pool.
    """

    what_happened: Callable[[OSError], str]
    remedy_for: Callable[[OSError, str], str]
    again: str
    status: str

    @contextlib.contextmanager
    def capture(self, layer: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CaptureError(
                f"The files of {layer} could not be captured: {self.what_happened(error)}.",
                code="capture-no-space" if error.errno in FULL else "capture-files",
                state="nothing was captured; the sandbox runs on",
                remedy=self.remedy_for(error, "try again"),
            ) from error

    @contextlib.contextmanager
    def restore(self, state: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RestoreError(
                f"The files could not be restored: {self.what_happened(error)}.",
                code="restore-no-space" if error.errno in FULL else "restore-files",
                state=state,
                remedy=self.remedy_for(error, self.again),
            ) from error

    def gone(self, reference: str, where: str | Path, why: str) -> RestoreError:
        """The error for an artefact that can't be used."""
        return RestoreError(
            f"The snapshot {reference} {why} ({where}).",
            code="restore-damaged",
            state="nothing was changed",
            remedy=f"choose another statepoint; {self.status}",
        )
