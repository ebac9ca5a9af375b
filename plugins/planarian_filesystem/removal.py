"""Removing directory trees: however deep, never through a link, sparing what isn't state."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

from planarian_filesystem.descent import WRITE, Descent


def remove_tree(parent: Path, name: str) -> None:
    """Remove ``parent/name`` and all below it. Idempotent; what can't be removed stays, with its parents."""
    with contextlib.suppress(FileNotFoundError), Descent(parent, WRITE) as descent:
        remove(descent, name)


def remove(descent: Descent, name: str, spared: Callable[[str], bool] | None = None) -> bool:
    """Remove ``name`` from the directory that ``descent`` is in; True when it is gone.

    ``spared`` is asked for each path (as ``descent`` sees it); what it spares stays, and so do its parents.
    """
    if not _is_directory(descent.fd, name):
        return _unlink(descent.fd, name)
    try:
        descent.down(name)
    except PermissionError:
        return False
    stack = [_children(descent)]
    blocked = [False]
    here = [name]
    gone = False
    while stack:
        child = stack[-1].pop() if stack[-1] else None
        if child is None:
            stack.pop()
            descent.up()
            directory = here.pop()
            gone = not blocked.pop() and _rmdir(descent.fd, directory)
            if stack:
                blocked[-1] |= not gone
            continue
        if spared is not None and spared(descent.path(child)):
            blocked[-1] = True
        elif _is_directory(descent.fd, child):
            try:
                descent.down(child)
            except PermissionError:
                blocked[-1] = True
                continue
            stack.append(_children(descent))
            blocked.append(False)
            here.append(child)
        else:
            blocked[-1] |= not _unlink(descent.fd, child)
    return gone


def _children(descent: Descent) -> list[str]:
    return os.listdir(descent.fd)


def _is_directory(dir_fd: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _unlink(dir_fd: int, name: str) -> bool:
    try:
        os.unlink(name, dir_fd=dir_fd)
    except FileNotFoundError:
        return True
    except PermissionError:
        return False
    return True


def _rmdir(dir_fd: int, name: str) -> bool:
    try:
        os.rmdir(name, dir_fd=dir_fd)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
