"""What the exit code of ``planarian`` means. Stable: scripts may test for it."""

from __future__ import annotations

from planarian_core.errors import BackendUnavailable, LineageError, PlanarianError

OK = 0
FAILED = 1
"""The operation failed; nothing is lost. The error says what is true now."""
USAGE = 2
UNKNOWN_NAME = 3
"""A sandbox or statepoint is unknown, ambiguous, of another sandbox, or not committed."""
UNAVAILABLE = 4
"""A backend doesn't work on this host."""
UNFINISHED = 5
"""Something was left half-way; ``planarian recover`` finishes it."""
TIMED_OUT = 124
"""``run`` only: the command's time was up."""
RUN_FAILED = 125
"""``run`` only: Planarian itself failed, whatever the reason; the command's own codes stay apart from it."""
INTERRUPTED = 130
OUTPUT_CLOSED = 141
"""The reader of our output went away (``| head``), as a shell shows SIGPIPE."""

SUMMARY = """\b
Exit codes:
    0  done
    1  the operation failed; nothing is lost
    2  wrong usage
    3  a name is unknown, ambiguous, taken, or of another sandbox
    4  a backend doesn't work on this host (see: planarian doctor)
    5  something was left unfinished (next: planarian recover)
  130  interrupted
  run gives the command's own code; 124 its time was up; 125 Planarian failed
"""

_UNFINISHED_CODES = (
    "apply-unfinished",
    "prune-unfinished",
    "restore-unfinished",
    "rollback-unfinished",
    "sandbox-unfinished",
)


def code_for(error: PlanarianError) -> int:
    """The exit code that an error gives, outside of ``run``."""
    if error.code in _UNFINISHED_CODES:
        return UNFINISHED
    if isinstance(error, LineageError):
        return UNKNOWN_NAME
    if isinstance(error, BackendUnavailable):
        return UNAVAILABLE
    return FAILED
