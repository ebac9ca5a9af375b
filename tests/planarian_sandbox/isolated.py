"""What tests of isolated sandboxes begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from planarian_core.model import Limits, SandboxSpec, new_id
from planarian_process.podman import PodmanMemory
from planarian_sandbox.podman import PodmanBackend


class IsolatedFixtures:
    """A home, and the spec of a sandbox in it; ``kind`` is the sandbox backend's name."""

    kind: str

    @pytest.fixture
    def home(self, tmp_path: Path) -> Path:
        home = tmp_path / "home"
        home.mkdir(mode=0o700)
        return home

    @pytest.fixture
    def spec(self, tmp_path: Path, home: Path, workspace: Path) -> SandboxSpec:
        layer = home / "sandboxes" / "one" / "layer"
        layer.mkdir(parents=True)
        return SandboxSpec(
            new_id("sb"), str(workspace), str(layer), str(home), self.kind, limits=Limits(512 * 1024**2, 256)
        )


class PodmanMemoryFixtures(IsolatedFixtures):
    """Podman's containers, with the process backend that has Podman bring their memory back."""

    kind = "podman"

    @pytest.fixture
    def backend(self, home: Path) -> PodmanMemory:
        return PodmanMemory(home)

    @pytest.fixture
    def host(self, home: Path) -> PodmanBackend:
        return PodmanBackend(home)
