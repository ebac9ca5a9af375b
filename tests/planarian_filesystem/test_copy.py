"""The backend ``copy`` keeps the promises of every filesystem backend."""

from __future__ import annotations

import pytest

from planarian_core.testing.filesystem import BackendFactory, FilesystemConformance
from planarian_core.testing.unchanged import UnchangedConformance
from planarian_filesystem.copy import CopyBackend


class TestCopy(UnchangedConformance, FilesystemConformance):
    @pytest.fixture
    def backend_factory(self) -> BackendFactory:
        return CopyBackend
