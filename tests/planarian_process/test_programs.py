"""What a path inside leads to: as the kernel finds it with chroot, and never a file of the host's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from planarian_process.programs import look_up

pytestmark = pytest.mark.needs("linux")
STAT = "import os, sys; os.chroot(sys.argv[1]); os.chdir('/'); print(os.stat(sys.argv[2]).st_ino)"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A root directory full of links; ``outside`` lies beside it."""
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    (root / "etc").mkdir()
    (tmp_path / "outside").write_text("the host's")
    (root / "bin" / "tool").write_text("tool")
    (root / "bin" / "alias").symlink_to("tool")
    (root / "absolute").symlink_to("/bin/alias")
    (root / "up").symlink_to("../../../../bin/../bin/tool")
    (root / "bin" / "here").symlink_to(".././bin//tool")
    (root / "etc" / "passwd").symlink_to("/etc/passwd")
    (root / "out").symlink_to(tmp_path / "outside")
    (root / "parent").symlink_to("../outside")
    (root / "loop").symlink_to("loop")
    (root / "folder").symlink_to("bin")
    return root


@pytest.fixture
def root(tree: Path) -> Iterator[int]:
    descriptor = os.open(tree, os.O_PATH | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


FOUND = ["bin/tool", "/bin/tool", "absolute", "up", "bin/here", "folder/alias", "../..//bin/./tool", "folder/../up"]
NOT_FOUND = ["out", "parent", "etc/passwd", "../outside", "loop", "bin/none", "bin/tool/x", "bin/../../outside"]


@pytest.mark.parametrize("path", FOUND)
def test_links_stay_below_the_root(tree: Path, root: int, path: str) -> None:
    assert look_up(root, path).st_ino == (tree / "bin" / "tool").stat().st_ino


@pytest.mark.parametrize("path", [*NOT_FOUND, "x/" * 5000, "n" * 300])
def test_nothing_leads_to_a_file_of_the_host(root: int, path: str) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match=r".+"):
        look_up(root, path)
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.needs("root")
@pytest.mark.parametrize("path", [*FOUND, *NOT_FOUND])
def test_the_kernel_finds_the_same(tree: Path, root: int, path: str) -> None:
    done = subprocess.run([sys.executable, "-c", STAT, str(tree), path], capture_output=True, check=False, timeout=30)
    if done.returncode:
        with pytest.raises(OSError, match=r".+"):
            look_up(root, path)
    else:
        assert look_up(root, path).st_ino == int(done.stdout)
