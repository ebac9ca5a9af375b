"""MCP servers from PyPI for tests, each in an environment of its own, pinned and installed once.

They go to ``planarian-tests/pypi`` in the user's cache directory, or to the directory that ``PLANARIAN_PYPI_CACHE``
names; several processes may ask at once.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from planarian_core.errors import BackendUnavailable

SQLITE = ("mcp-server-sqlite==2025.4.25", "mcp>=1.30,<2")
"""Opens its database anew for each statement, with Python's own ``sqlite3``; starts with mcp 1.x alone."""
_INSTALL_SECONDS = 300


def pypi_command(name: str, requirements: Sequence[str]) -> Path:
    """The command ``name`` of packages; installed when they aren't there yet.

    Raises:
        BackendUnavailable: they can't be installed.
    """
    folder = re.sub(r"[^\w.-]", "_", f"{requirements[0]}-{sys.version_info.major}.{sys.version_info.minor}")
    place = _cache() / folder
    place.parent.mkdir(parents=True, exist_ok=True)
    done = place / "installed"
    if not done.exists():
        with place.with_name(f"{folder}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                shutil.rmtree(place, ignore_errors=True)
                _run([sys.executable, "-m", "venv", str(place)])
                _run([str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", *requirements])
                done.touch()
    return place / "bin" / name


def why_no_pypi() -> str:
    """Why servers from PyPI can't be installed; empty where they can, or are there."""
    try:
        pypi_command("mcp-server-sqlite", SQLITE)
    except BackendUnavailable as error:
        return error.message
    return ""


def _cache() -> Path:
    chosen = os.environ.get("PLANARIAN_PYPI_CACHE")
    if chosen:
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_cache_dir("planarian-tests", appauthor=False)) / "pypi"


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_INSTALL_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BackendUnavailable(f"{command[0]} can't be run: {error}", remedy="install python3-venv") from error
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()[-300:]
        raise BackendUnavailable(f"an MCP server from PyPI can't be installed: {said}", remedy="see that pip works")
