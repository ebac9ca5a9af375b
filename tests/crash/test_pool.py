"""kill -9, and a full disk, at every point of making, growing and removing a pool."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from planarian_core.interfaces import Layer
from planarian_core.testing.filesystem import fill
from planarian_core.testing.oracle import assert_same, describe
from planarian_filesystem import pool_status
from planarian_filesystem.btrfs import BtrfsBackend
from planarian_filesystem.pool import Pool

pytestmark = pytest.mark.needs("btrfs")

SIZE = 256 * 1024**2
CREATE = ["create", "--size", "256M", "--sparse"]
PLANARIAN = Path(sys.executable).with_name("planarian")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    yield home
    while subprocess.run(["umount", str(home / "pool")], capture_output=True, check=False).returncode == 0:
        pass


def pool(home: Path, *arguments: str, fault: str = "") -> int:
    env = {**os.environ, "PLANARIAN_HOME": str(home), "PLANARIAN_FAULT": fault}
    done = subprocess.run([str(PLANARIAN), "pool", *arguments], env=env, capture_output=True, timeout=60, check=False)
    assert fault or done.returncode == 0, done.stderr.decode()
    return done.returncode


@pytest.mark.parametrize("action", ["kill", "fail"])
@pytest.mark.parametrize("point", ["pool.made", "pool.named"])
def test_cut_off_while_it_is_made(home: Path, point: str, action: str) -> None:
    assert pool(home, *CREATE, fault=f"{point}={action}") == (-9 if action == "kill" else 1)
    if point == "pool.made":
        assert not (home / "pool.btrfs").exists()
        assert Pool(home).kind == ""
        pool(home, *CREATE)
        assert sorted(os.listdir(home)) == ["pool", "pool.btrfs", "pool.lock"]
    pool(home, "status")
    assert BtrfsBackend(home).probe().available


@pytest.mark.parametrize("action", ["kill", "fail"])
def test_cut_off_while_it_grows(home: Path, action: str) -> None:
    pool(home, *CREATE)
    backend = BtrfsBackend(home)
    layer = Layer(backend.place("sb-1"))
    backend.create(layer)
    fill(layer.path)
    before = describe(layer.path)
    artefact = backend.capture(layer, "sp-1")
    assert pool(home, "grow", "512M", fault=f"pool.extended={action}") == (-9 if action == "kill" else 1)
    assert_same(describe(layer.path), before)
    subprocess.run(["umount", str(home / "pool")], check=True)
    BtrfsBackend(home).verify(artefact)
    pool(home, "grow", "512M")
    assert pool_status.status(Pool(home)).size == 512 * 1024**2
    assert_same(describe(layer.path), before)


@pytest.mark.parametrize("action", ["kill", "fail"])
def test_cut_off_while_it_is_removed(home: Path, action: str) -> None:
    """It is unmounted and whole: the next command that needs it mounts it, and it can be removed again."""
    pool(home, *CREATE)
    backend = BtrfsBackend(home)
    layer = Layer(backend.place("sb-1"))
    backend.create(layer)
    artefact = backend.capture(layer, "sp-1")
    assert pool(home, "destroy", "--force", fault=f"pool.unmounted={action}") == (-9 if action == "kill" else 1)
    BtrfsBackend(home).verify(artefact)
    pool(home, "destroy", "--force")
    assert Pool(home).kind == ""
