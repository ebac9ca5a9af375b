"""ZFS pools for tests: in a file, made by the system's own tools and not by what is to be tested."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_TOOLS = ("zfs", "zpool")


@contextmanager
def file_pool(folder: Path, size: int = 2 * 1024**3) -> Iterator[str]:
    """The name of a pool in a file of ``folder`` that grows as it is filled; destroyed in the end."""
    file, name = folder / "zpool.img", f"test-{secrets.token_hex(4)}"
    with open(file, "wb") as made:
        made.truncate(size)
    _run("zpool", "create", "-o", "cachefile=none", "-O", "mountpoint=none", name, str(file))
    try:
        yield name
    finally:
        _run("zpool", "destroy", "-f", name)
        file.unlink()


def listed(name: str, kind: str = "filesystem") -> list[str]:
    """What ``zfs list`` knows below a dataset; ``kind``: ``filesystem`` or ``snapshot``."""
    command = ["zfs", "list", "-H", "-r", "-t", kind, "-o", "name", name]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return [line for line in done.stdout.splitlines() if line != name]


@cache
def why_no_zfs() -> str:
    """Why :func:`file_pool` doesn't work here; empty when it does."""
    if os.geteuid() != 0:
        return "not root"
    if not Path("/dev/zfs").exists():
        return "the kernel's module zfs isn't loaded"
    lacking = [tool for tool in _TOOLS if shutil.which(tool) is None]
    return f"{', '.join(lacking)} isn't installed" if lacking else ""


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command[:3])}: {done.stderr.strip()}")
