"""The criu backend keeps the promises of a process backend, with the namespace sandbox as its host."""

from __future__ import annotations

from pathlib import Path

import pytest

from planarian_core.model import SandboxSpec
from planarian_core.testing.process import ProcessConformance
from planarian_process.criu import CriuBackend
from planarian_sandbox.namespace import NamespaceBackend

pytestmark = [pytest.mark.needs("criu"), pytest.mark.needs("namespaces")]


class TestCriu(ProcessConformance):
    @pytest.fixture
    def backend(self, criu_backend: CriuBackend) -> CriuBackend:
        return criu_backend

    @pytest.fixture
    def host(self, criu_home: Path) -> NamespaceBackend:
        return NamespaceBackend(criu_home)

    @pytest.fixture
    def spec(self, criu_spec: SandboxSpec) -> SandboxSpec:
        return criu_spec
