"""Fixtures of the filesystem backends' tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from planarian_core.interfaces import Layer
from planarian_filesystem.copy import CopyBackend


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
