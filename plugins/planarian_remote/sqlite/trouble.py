"""Why something can't be done with a database; turned into Planarian's errors where the kind is called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import apsw


class Trouble(Exception):
    """It can't be done, and nothing was changed. ``uncertain``: nobody knows whether it was."""

    rows: tuple[str, ...] = ()
    missing = False
    """Whether undo data isn't there."""

    def __init__(self, message: str, remedy: str = "", *, uncertain: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.uncertain = uncertain


class Refused(Trouble):
    """The statement can't be undone exactly, or may not be run."""


class Conflict(Trouble):
    """Somebody else changed what an effect had left; ``rows`` says which, one line each."""

    def __init__(self, rows: Sequence[str]) -> None:
        shown = "; ".join(rows[:10])
        more = f" and {len(rows) - 10} more" if len(rows) > 10 else ""
        super().__init__(f"somebody else changed: {shown}{more}")
        self.rows = tuple(rows)


_REMEDIES: tuple[tuple[type[apsw.Error], str, str], ...] = (
    (apsw.BusyError, "another connection holds a lock on it", "wait until that one has ended, or raise busy_timeout"),
    (apsw.LockedError, "another connection holds a lock on it", "wait until that one has ended"),
    (apsw.ReadOnlyError, "it can't be written", "make the file and its folder writable, then try again"),
    (apsw.PermissionsError, "it can't be written", "make the file and its folder writable, then try again"),
    (apsw.FullError, "the disk is full", "make room, then try again"),
    (apsw.CantOpenError, "it can't be opened", "see that the file is there and may be read and written"),
    (apsw.NotADBError, "it is no SQLite database", "see that path names the right file"),
    (apsw.CorruptError, "it is damaged", "restore it from a backup"),
    (apsw.IOError, "it can't be read or written", "check the disk"),
    (apsw.NoMemError, "there is no memory left", "try a statement that changes less"),
)


def trouble_of(error: apsw.Error, path: str) -> Trouble | None:
    """A failure of the file, not of the statement; None where it is the statement's own."""
    for kind, what, remedy in _REMEDIES:
        if isinstance(error, kind):
            return Trouble(f"the database {path}: {what} ({error})", remedy)
    return None


@contextmanager
def translated(path: str) -> Iterator[None]:
    """SQLite's errors as :class:`Trouble`."""
    try:
        yield
    except apsw.Error as error:
        raise trouble_of(error, path) or Trouble(f"the database {path}: {error}") from error
    except UnicodeDecodeError as error:
        raise Refused(f"the database {path} holds text that isn't UTF-8") from error
