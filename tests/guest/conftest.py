"""A sandbox whose memory is captured, driven by hand as in ``tests/planarian_process``."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from planarian_core.model import Limits, SandboxSpec, new_id
from planarian_core.testing.process import Subject
from planarian_process.criu import CriuBackend
from planarian_process.podman import PodmanMemory
from planarian_sandbox.namespace import NamespaceBackend
from planarian_sandbox.podman import PodmanBackend


@pytest.fixture(scope="session")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What homes find out about this machine, once for all: trying CRIU takes a while here."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def home(tmp_path: Path, probed: Path) -> Path:
    """A home, empty but for that."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "cache").symlink_to(probed)
    return home


@pytest.fixture
def subject(request: pytest.FixtureRequest, tmp_path: Path, home: Path, workspace: Path) -> Iterator[Subject]:
    """A started sandbox, nothing but its init in it; one of Podman's where that is asked for (:mod:`kinds`)."""
    backend, host = (CriuBackend(home), NamespaceBackend(home))
    if getattr(request, "param", "criu") == "podman":
        backend, host = (PodmanMemory(home), PodmanBackend(home))
    layer = home / "sandboxes" / "one" / "layer"
    layer.mkdir(parents=True)
    spec = SandboxSpec(new_id("sb"), str(workspace), str(layer), str(home), host.name, limits=Limits(2 * 1024**3, 512))
    subject = Subject.start(backend, host, spec, tmp_path)
    yield subject
    subject.stop()
    shutil.rmtree(home / "sandboxes")
