"""The commands ``zfs`` and ``zpool``, for what libzfs_core has no call."""

from __future__ import annotations

import subprocess

from planarian_filesystem.zfs_errors import unavailable
from planarian_filesystem.zfs_library import INSTALL

_LIMIT = 120


def zfs(*arguments: str) -> str:
    return _run("zfs", *arguments)


def zpool(*arguments: str) -> str:
    return _run("zpool", *arguments)


def _run(*command: str) -> str:
    """What a command prints; BackendUnavailable with what it says when it fails."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=_LIMIT
        )
    except FileNotFoundError as error:
        raise unavailable(f"the command {command[0]} isn't installed", INSTALL) from error
    except subprocess.TimeoutExpired as error:
        message = f"{' '.join(command[:2])} did not end within {_LIMIT} s"
        raise unavailable(message, "zpool status -v says whether the pool works") from error
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise unavailable(f"{' '.join(command[:2])} failed: {said[0] if said else done.returncode}", "zpool status -v")
    return done.stdout
