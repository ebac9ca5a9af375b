"""What can go wrong with files, as errors that say what is true now and what to do next."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from planarian_core.errors import CaptureError, RestoreError
from planarian_core.interfaces import Layer
from planarian_filesystem.descent import Unsettled
from planarian_filesystem.plan import Blocked
from planarian_filesystem.store import Damaged, Store

_RUNS_ON = "nothing was captured; the sandbox runs on"


@contextlib.contextmanager
def capture_errors(layer: Layer) -> Iterator[None]:
    try:
        yield
    except Unsettled as error:
        raise CaptureError(
            f"{error.path} keeps changing while it is read.",
            code="capture-unsettled",
            state=_RUNS_ON,
            remedy="stop what writes there, or exclude it",
        ) from error
    except Damaged as error:
        raise CaptureError(
            f"The stored blob {error.digest} {error.what}.",
            code="capture-damaged",
            state=_RUNS_ON,
            remedy="try again; check the disk that holds the Planarian home",
        ) from error
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise CaptureError(
            f"The files of {layer.path} could not be captured: {error}.",
            code="capture-no-space" if full else "capture-files",
            state=_RUNS_ON,
            remedy="free some space (planarian rm)" if full else "mend the cause, then try again",
        ) from error


@contextlib.contextmanager
def restore_errors(store: Store, state: str) -> Iterator[None]:
    """Turn what can go wrong below into a RestoreError that says what is true now."""
    try:
        yield
    except Damaged as error:
        store.distrust(error)
        where = "".join(f" (needed for {note})" for note in getattr(error, "__notes__", ()))
        raise RestoreError(
            f"The stored blob {error.digest} {error.what}{where}.",
            code="restore-damaged",
            state=state,
            remedy="choose another statepoint; check the disk that holds the Planarian home",
        ) from error
    except Blocked as error:
        raise RestoreError(
            f"{error.path} stands in the way and was never captured: {error.why}.",
            code="restore-blocked",
            state=state,
            remedy=f"move {error.path} away or give yourself access to it, then try again",
        ) from error
    except Unsettled as error:
        raise RestoreError(
            f"{error.path} keeps changing during the restore.",
            code="restore-unsettled",
            state=state,
            remedy="stop what writes there, then roll back again",
        ) from error
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise RestoreError(
            f"The files could not be restored: {error}.",
            code="restore-no-space" if full else "restore-files",
            state=state,
            remedy="free some space, then roll back again" if full else "mend the cause, then roll back again",
        ) from error
