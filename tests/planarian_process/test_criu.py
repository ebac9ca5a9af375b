"""The criu backend keeps the promises of a process backend, with the namespace sandbox as its host."""

from __future__ import annotations

from pathlib import Path

import pytest

from planarian_core.model import Limits, SandboxSpec, new_id
from planarian_core.testing.process import ProcessConformance
from planarian_process.criu import CriuBackend
from planarian_sandbox.namespace import NamespaceBackend

pytestmark = [pytest.mark.needs("criu"), pytest.mark.needs("namespaces")]


class CriuFixtures:
    @pytest.fixture
    def home(self, tmp_path: Path) -> Path:
        home = tmp_path / "home"
        home.mkdir(mode=0o700)
        return home

    @pytest.fixture
    def backend(self, home: Path) -> CriuBackend:
        return CriuBackend(home)

    @pytest.fixture
    def host(self, home: Path) -> NamespaceBackend:
        return NamespaceBackend(home)

    @pytest.fixture
    def spec(self, tmp_path: Path, home: Path, workspace: Path) -> SandboxSpec:
        layer = home / "sandboxes" / "one" / "layer"
        layer.mkdir(parents=True)
        return SandboxSpec(
            new_id("sb"), str(workspace), str(layer), str(home), "namespace", limits=Limits(1024**3, 512)
        )


class TestCriu(CriuFixtures, ProcessConformance):
    pass
