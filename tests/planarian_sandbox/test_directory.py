"""The sandbox backend ``directory``."""

from __future__ import annotations

from pathlib import Path

import pytest

from planarian_core.interfaces import SandboxBackend
from planarian_core.model import SandboxSpec, new_id
from planarian_core.testing.sandbox import SandboxConformance
from planarian_sandbox.directory import DirectoryBackend


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def backend(home: Path) -> SandboxBackend:
    return DirectoryBackend(home)


@pytest.fixture
def spec(home: Path, workspace: Path) -> SandboxSpec:
    return SandboxSpec(new_id("sb"), str(workspace), str(workspace), str(home), "directory")


class TestDirectory(SandboxConformance):
    @pytest.fixture
    def backend(self, home: Path) -> SandboxBackend:
        return DirectoryBackend(home)

    @pytest.fixture
    def spec(self, spec: SandboxSpec) -> SandboxSpec:
        return spec
