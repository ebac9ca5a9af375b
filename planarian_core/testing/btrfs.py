"""A btrfs for tests: a loop-mounted file, made by the system's own tools and not by what is to be tested."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_TOOLS = ("mkfs.btrfs", "mount", "umount")


@contextmanager
def loop_btrfs(folder: Path, size: int = 2 * 1024**3, options: str = "") -> Iterator[Path]:
    """A mounted btrfs of ``size`` bytes, in a file in ``folder`` that grows as it is filled; unmounted in the end."""
    file, point = folder / "btrfs.img", folder / "btrfs"
    with open(file, "wb") as made:
        made.truncate(size)
    point.mkdir()
    _run("mkfs.btrfs", "--quiet", str(file))
    _run("mount", "-t", "btrfs", "-o", f"loop,nosuid,nodev,noatime{options and ','}{options}", str(file), str(point))
    try:
        yield point
    finally:
        _run("umount", "--lazy", str(point))
        file.unlink()


@cache
def why_no_loop_btrfs() -> str:
    """Why :func:`loop_btrfs` doesn't work here, found by trying; empty when it does."""
    if os.geteuid() != 0:
        return "not root"
    lacking = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if lacking:
        return f"{', '.join(lacking)} isn't installed"
    with tempfile.TemporaryDirectory(prefix="planarian-btrfs-") as folder:
        try:
            with loop_btrfs(Path(folder), 256 * 1024**2) as point:
                (point / "file").write_text("x")
        except OSError as error:
            return str(error)
    return ""


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command[:3])}: {done.stderr.strip()}")
