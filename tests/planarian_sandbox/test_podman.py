"""The podman backend keeps the promises of a sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest

from planarian_core.model import Limits, SandboxSpec, new_id
from planarian_core.testing.sandbox import SandboxConformance
from planarian_sandbox.podman import PodmanBackend

pytestmark = pytest.mark.needs("root", "namespaces", "podman")


class PodmanFixtures:
    @pytest.fixture
    def home(self, tmp_path: Path) -> Path:
        home = tmp_path / "home"
        home.mkdir(mode=0o700)
        return home

    @pytest.fixture
    def backend(self, home: Path) -> PodmanBackend:
        return PodmanBackend(home)

    @pytest.fixture
    def spec(self, tmp_path: Path, home: Path, workspace: Path) -> SandboxSpec:
        layer = home / "sandboxes" / "one" / "layer"
        layer.mkdir(parents=True)
        return SandboxSpec(
            new_id("sb"), str(workspace), str(layer), str(home), "podman", limits=Limits(512 * 1024**2, 256)
        )


class TestPodman(PodmanFixtures, SandboxConformance):
    pass
