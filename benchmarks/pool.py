"""A pool for the btrfs or the zfs backend, made and destroyed as a user does it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_CLI = "from planarian_core.cli.main import main; main()"
_SECONDS = 300
_GROUPS = {"btrfs": "pool", "zfs": "zfs"}


@contextmanager
def pool(home: Path, size: str, say: Callable[[str], None], kind: str = "btrfs") -> Iterator[None]:
    """A pool file in a home; without one, and with the reason said, where this host doesn't let us."""
    group = _GROUPS[kind]
    made = _planarian(home, group, "create", "--size", size)
    if made.returncode != 0:
        say(f"no {kind}: {made.stderr.strip()}")
    try:
        yield
    finally:
        if made.returncode == 0:
            ended = _planarian(home, group, "destroy", "--force")
            if ended.returncode != 0:
                say(f"the pool stays mounted: {ended.stderr.strip()}")


def _planarian(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _CLI, *arguments]
    environment = {**os.environ, "PLANARIAN_HOME": str(home)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False)


def used(home: Path) -> tuple[int, int]:
    """Bytes of data and of metadata that a home's pool holds now, as btrfs itself counts them."""
    place = home / "pool"
    subprocess.run(["btrfs", "filesystem", "sync", str(place)], check=True, capture_output=True, timeout=_SECONDS)
    command = ["btrfs", "filesystem", "df", "--raw", str(place)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS).stdout
    kinds = {line.split(",")[0]: int(line.rpartition("used=")[2]) for line in printed.splitlines() if "used=" in line}
    return kinds.get("Data", 0) + kinds.get("Data+Metadata", 0), kinds.get("Metadata", 0)
