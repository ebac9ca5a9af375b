"""MCP servers for tests: public ones from npm, pinned and installed once, and one of our own (``store_server``).

Each function gives the argument list of a stdio server that runs its entry file directly: ``npx`` would ask the network
at every start. Packages go to ``planarian-tests/npm`` in the user's cache directory, or to the directory that
``PLANARIAN_NPM_CACHE`` names; several processes may ask at once.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from planarian_core.errors import BackendUnavailable

TOOLBOX = "@toolbox-sdk/server@1.12.0"
EVERYTHING = "@modelcontextprotocol/server-everything@2026.8.31"
FILESYSTEM = "@modelcontextprotocol/server-filesystem@2026.8.31"
MEMORY = "@modelcontextprotocol/server-memory@2026.8.31"

_PINNED = re.compile(r"(?P<name>(?:@[\w.-]+/)?[\w.-]+)@(?P<version>[\w.+-]+)")
_INSTALL_SECONDS = 600


def npm_package(pinned: str) -> Path:
    """The folder of an npm package, ``name@version``; installed into the cache when it isn't there yet.

    Raises:
        BackendUnavailable: npm is missing, or can't install it.
    """
    match = _PINNED.fullmatch(pinned)
    if match is None:
        raise ValueError(f"{pinned!r} is no name@version")
    cache = _cache()
    cache.mkdir(parents=True, exist_ok=True)
    place = cache / re.sub(r"[^\w.-]", "_", pinned)
    package = place / "node_modules" / match["name"]
    if not place.exists():
        with (cache / f"{place.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not place.exists():
                _install(pinned, place)
    return package


def _cache() -> Path:
    chosen = os.environ.get("PLANARIAN_NPM_CACHE")
    if chosen:
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_cache_dir("planarian-tests", appauthor=False)) / "npm"


def _install(pinned: str, place: Path) -> None:
    """Install beside ``place`` and rename, so that what is there is whole."""
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".installing-") as scratch:
        command = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", scratch, pinned]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_INSTALL_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BackendUnavailable(
                f"{pinned} can't be installed: {error}", remedy="install nodejs and npm (apt-get install npm)"
            ) from error
        if done.returncode:
            raise BackendUnavailable(
                f"{pinned} can't be installed: {done.stderr.decode(errors='replace').strip()[-500:]}",
                remedy="see that npm reaches its registry",
            )
        whole = Path(scratch) / "whole"
        whole.mkdir()
        shutil.move(Path(scratch) / "node_modules", whole / "node_modules")
        whole.rename(place)


def _entry(pinned: str, command: str) -> list[str]:
    """How node runs a command of a package."""
    package = npm_package(pinned)
    bin_ = json.loads((package / "package.json").read_text())["bin"]
    node = shutil.which("node")
    if node is None:
        raise BackendUnavailable("node isn't installed", remedy="apt-get install nodejs")
    return [node, str(package / bin_[command])]


def toolbox(config: Path, *more: str) -> list[str]:
    """MCP Toolbox for Databases with a configuration file (``tools.yaml``)."""
    (binary,) = npm_package(TOOLBOX).parent.glob("server-*/bin/toolbox*")
    return [str(binary), "--stdio", "--config", str(config), *more]


def everything(transport: str = "stdio") -> list[str]:
    """The reference server that uses every part of the protocol; ``streamableHttp`` listens on ``$PORT``."""
    return [*_entry(EVERYTHING, "mcp-server-everything"), transport]


def filesystem(*folders: Path) -> list[str]:
    """The reference server for files in the given folders."""
    return [*_entry(FILESYSTEM, "mcp-server-filesystem"), *map(str, folders)]


def memory() -> list[str]:
    """The reference server with a knowledge graph, kept in the file that ``MEMORY_FILE_PATH`` names."""
    return _entry(MEMORY, "mcp-server-memory")


def store(database: Path, *options: str) -> list[str]:
    """Our own (:mod:`planarian_core.testing.store_server`) on a SQLite file."""
    return [sys.executable, str(Path(__file__).with_name("store_server.py")), str(database), *options]


def as_configuration(command: Sequence[str]) -> str:
    """An argument list as TOML has it."""
    return json.dumps(list(command))
