"""How a failure is shown: what happened, what is true now, what to do next; never a traceback unless asked for."""

from __future__ import annotations

import os
import sys
import traceback

from planarian_core.cli import output
from planarian_core.errors import PlanarianError

DEBUG = "PLANARIAN_DEBUG"


def internal(error: Exception) -> PlanarianError:
    """An error that nobody foresaw, as one that can be shown."""
    reason = getattr(error, "strerror", None) or str(error) or "no reason given"
    shown = PlanarianError(
        f"unexpected {type(error).__name__}: {reason}",
        code="internal",
        remedy=f"{DEBUG}=1 shows where; if it is not the disk or a permission, please report it",
    )
    shown.__cause__ = error
    return shown


def report(error: PlanarianError, *, as_json: bool) -> None:
    """Show an error: as JSON on stdout, or in plain words on stderr."""
    if os.environ.get(DEBUG, "") not in ("", "0"):
        traceback.print_exception(error, file=sys.stderr)
    if as_json:
        output.print_json(error.to_dict())
    else:
        output.remark(f"planarian: {error}")


def silence() -> None:
    """After the reader of stdout went away: what is still in the buffers goes nowhere, without a complaint."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BrokenPipeError:
                os.dup2(nowhere, stream.fileno())
    finally:
        os.close(nowhere)
