"""The podman backend keeps the promises of a sandbox."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from planarian_core.testing.sandbox import SandboxConformance
from planarian_sandbox.podman import PodmanBackend
from tests.planarian_sandbox.isolated import IsolatedFixtures

pytestmark = [pytest.mark.needs("podman"), pytest.mark.needs("namespaces" if os.geteuid() == 0 else "userns")]


class PodmanFixtures(IsolatedFixtures):
    kind = "podman"

    @pytest.fixture
    def backend(self, home: Path) -> PodmanBackend:
        return PodmanBackend(home)


class TestPodman(PodmanFixtures, SandboxConformance):
    pass
