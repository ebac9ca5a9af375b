"""Writing a page to a file: whole or not at all, and never over something else.

The file may lie in a workspace, where what stands beside it was put there by an agent: no link is followed.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from planarian_core.errors import ConfigurationError

_BEGINNING = b"<!doctype html"


def write(path: Path, page: str) -> None:
    """Put ``page`` into the file, by way of ``path.partial``; an older page there is replaced.

    Raises:
        ConfigurationError: something that is no page lies there, or it can't be written. Nothing was replaced.
    """
    check(path)
    partial = path.with_name(f"{path.name}.partial")
    try:
        partial.unlink(missing_ok=True)  # of a run that was killed
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise _refused(path, f"can't be written: {error.strerror or error}") from error
    try:
        with open(descriptor, "wb") as file:
            file.write(page.encode())
            file.flush()
            os.fsync(descriptor)
        os.replace(partial, path)
    except OSError as error:
        raise _refused(path, f"can't be written: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)


def check(path: Path) -> None:
    """Refuse what :func:`write` would not replace: anything but an HTML page or an empty file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        raise _refused(path, f"can't be replaced: {error.strerror or error}") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _refused(path, "is no ordinary file")
        beginning = os.read(descriptor, 1024).lstrip().lower()
    finally:
        os.close(descriptor)
    if beginning and not beginning.startswith((_BEGINNING, b"<html")):
        raise _refused(path, "is there already and is no HTML page")


def _refused(path: Path, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"{path} {why}",
        code="page-refused",
        state="nothing was written",
        remedy="name another file: planarian log --html FILE (- for the standard output)",
    )
