"""What builds the guest (``tests/guest/machine``) leaves of the host's mounts; all else is seen to work there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from planarian_core.testing.btrfs import loop_btrfs

ALONE = Path(__file__).parents[1] / "guest" / "machine" / "alone.py"

pytestmark = pytest.mark.needs("root", "btrfs")


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A loop device's file system, at a path with a blank in it."""
    (tmp_path / "a loop").mkdir()
    with loop_btrfs(tmp_path / "a loop") as point:
        yield point


def seen(folder: Path) -> str:
    """The mounts that a command has which ``alone.py`` becomes."""
    command = ["unshare", "--mount", sys.executable, "-I", str(ALONE), str(folder), "cat", "/proc/self/mounts"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_what_the_host_may_unmount_is_not_kept(mounted: Path, tmp_path: Path) -> None:
    point = str(mounted).replace(" ", r"\040")
    assert f" {point} " in Path("/proc/self/mounts").read_text()
    assert f" {point} " not in seen(tmp_path)
    assert f" {point} " in seen(mounted / "cache")
    assert " /proc " in seen(tmp_path)
