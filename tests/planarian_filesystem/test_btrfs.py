"""The ``btrfs`` backend: the conformance suite, and what is its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from planarian_core.testing.filesystem import BackendFactory, FilesystemConformance
from planarian_filesystem.btrfs import BtrfsBackend

pytestmark = pytest.mark.needs("btrfs")


class TestConformance(FilesystemConformance):
    @pytest.fixture
    def home(self, home_on_btrfs: Path) -> Path:
        return home_on_btrfs

    @pytest.fixture
    def backend_factory(self) -> BackendFactory:
        return BtrfsBackend
