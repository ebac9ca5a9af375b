"""Fixtures of the filesystem backends' tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from planarian_core.interfaces import Layer
from planarian_core.testing.btrfs import loop_btrfs
from planarian_core.testing.zfs import file_pool, listed
from planarian_filesystem import zfs_making
from planarian_filesystem.copy import CopyBackend
from planarian_filesystem.zfs import ZfsBackend
from planarian_filesystem.zfs_datasets import Datasets
from planarian_filesystem.zfs_pool import ZfsPool

_NUMBERS = itertools.count()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def backend(home: Path) -> CopyBackend:
    return CopyBackend(home)


@pytest.fixture
def layer(tmp_path: Path) -> Layer:
    """A workspace in place: a directory that isn't in the home."""
    (tmp_path / "workspace").mkdir()
    return Layer(tmp_path / "workspace")


@pytest.fixture(scope="session")
def btrfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A btrfs of its own for all tests of this run."""
    with loop_btrfs(tmp_path_factory.mktemp("btrfs")) as mounted:
        yield mounted


@pytest.fixture
def home_on_btrfs(btrfs: Path) -> Path:
    """An empty home that lies on btrfs."""
    home = btrfs / f"home-{next(_NUMBERS)}"
    home.mkdir(mode=0o700)
    return home


@pytest.fixture(scope="session")
def tank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A ZFS pool of its own for all tests of this run."""
    with file_pool(tmp_path_factory.mktemp("zpool")) as name:
        yield name


@pytest.fixture
def home_on_zfs(tank: str, tmp_path: Path) -> Iterator[Path]:
    """A home with a place in that pool, which is given up in the end."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    zfs_making.create_below(ZfsPool(home), tank)
    base = ZfsPool(home).where().base
    yield home
    zfs_making.destroy(ZfsPool(home), force=True)
    assert base not in listed(tank)


@pytest.fixture
def on_zfs(home_on_zfs: Path) -> ZfsBackend:
    return ZfsBackend(home_on_zfs)


@pytest.fixture
def zfs_layer(on_zfs: ZfsBackend) -> Layer:
    """An empty layer ``sb-1``."""
    layer = Layer(on_zfs.place("sb-1"))
    on_zfs.create(layer)
    return layer


@pytest.fixture
def datasets(home_on_zfs: Path) -> Datasets:
    return ZfsPool(home_on_zfs).ready()
