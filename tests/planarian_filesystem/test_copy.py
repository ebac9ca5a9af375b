"""The backend ``copy`` keeps the promises of every filesystem backend."""

from __future__ import annotations

import pytest

from planarian_core.interfaces import Collects, FilesystemBackend, Layer, ProvesUnchanged
from planarian_core.testing.filesystem import BackendFactory, FilesystemConformance
from planarian_core.testing.unchanged import UnchangedConformance
from planarian_filesystem.copy import CopyBackend


class TestCopy(UnchangedConformance, FilesystemConformance):
    @pytest.fixture
    def backend_factory(self) -> BackendFactory:
        return CopyBackend

    def test_of_what_is_gone_nothing_is_proven(
        self, backend: FilesystemBackend, proving: ProvesUnchanged, layer: Layer
    ) -> None:
        """An artefact is named by its content: what is found again is stored again, and the artefact is whole."""
        artefact = backend.capture(layer, "sp-1")
        backend.discard("sp-1")
        assert isinstance(backend, Collects)
        backend.collect()
        assert proving.unchanged(layer, artefact)
        backend.verify(artefact)
