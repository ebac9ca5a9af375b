"""Fixtures of the filesystem backends' tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from planarian_core.interfaces import Layer
from planarian_core.testing.btrfs import loop_btrfs
from planarian_filesystem.copy import CopyBackend

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
