"""What the host has mounted, as the kernel writes it of mounts that are made for this."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from planarian_core.mounts import mounts

pytestmark = pytest.mark.needs("namespaces")

NAMES = (b"plain", b"a b", b"a\tb", b"a\nb", b"a\rb", b"a\x0bb", b"a\\b", b"a\\040b", b"a - b", b"\xc3\xa4\xff", b"#")
_SHOW = """import os, sys
from planarian_core.mounts import mounts
point = os.path.realpath(sys.argv[1])
found = [mount for mount in mounts() if mount.point == point]
device = os.stat(point).st_dev
for mount in found:
    assert mount.device == f"{os.major(device)}:{os.minor(device)}", mount
    print(ascii((mount.root, mount.kind, mount.source, "size=64k" in mount.options)))
"""


def shown(script: str, *arguments: str | bytes) -> list[str]:
    """What ``_SHOW`` prints of a path after a script of the shell, in a mount namespace of its own."""
    apart = ["unshare", "--map-root-user", "--mount"]
    shell = [*apart, "sh", "-euc", script + ' exec "$0" -c "$1" "$2"', sys.executable, _SHOW, *arguments]
    done = subprocess.run(shell, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", NAMES)
def test_any_path_is_told_as_it_is(tmp_path: Path, name: bytes) -> None:
    point = os.path.join(os.fsencode(tmp_path), name)
    os.mkdir(point)
    found = shown('mount -t tmpfs -o size=64k "what for" "$2";', point)
    assert found == ["('/', 'tmpfs', 'what for', True)"]


def test_of_several_at_one_point_the_uppermost_is_last(tmp_path: Path) -> None:
    (tmp_path / "point").mkdir()
    script = 'mount -t tmpfs first "$2"; mkdir "$2/some where"; mount --bind "$2/some where" "$2";'
    assert shown(script, str(tmp_path / "point")) == [
        "('/', 'tmpfs', 'first', False)",
        "('/some where', 'tmpfs', 'first', False)",
    ]


def test_the_root_is_one_of_them() -> None:
    assert "/" in {mount.point for mount in mounts()}
