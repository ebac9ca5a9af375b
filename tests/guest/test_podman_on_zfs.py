"""Sandboxes that are Podman's containers, by crun and CRIU, with everything of their home on ZFS."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from planarian_core.testing.process import ProcessConformance
from planarian_core.testing.sandbox import SandboxConformance
from planarian_core.testing.zfs import file_pool
from planarian_sandbox.podman import PodmanBackend
from tests.planarian_sandbox.isolated import IsolatedFixtures, PodmanMemoryFixtures

pytestmark = pytest.mark.needs("root", "namespaces", "podman", "crun", "criu", "zfs")


@pytest.fixture(scope="module")
def tank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A pool for all tests of this file."""
    with file_pool(tmp_path_factory.mktemp("zfs")) as name:
        yield name


class OnZfs(IsolatedFixtures):
    kind = "podman"

    @pytest.fixture
    def home(self, tmp_path: Path, tank: str) -> Iterator[Path]:
        """A dataset, as an administrator would make one."""
        home, name = tmp_path / "home", f"{tank}/{tmp_path.name}"
        settings = ("-o", f"mountpoint={home}", "-o", "xattr=sa", "-o", "acltype=posix")
        subprocess.run(["zfs", "create", *settings, name], check=True, timeout=60)
        home.chmod(0o700)
        yield home
        subprocess.run(["zfs", "destroy", "-f", name], check=True, timeout=60)


class TestSandbox(OnZfs, SandboxConformance):
    @pytest.fixture
    def backend(self, home: Path) -> PodmanBackend:
        return PodmanBackend(home)


class TestProcesses(OnZfs, PodmanMemoryFixtures, ProcessConformance):
    """The same as on any other file system."""


@pytest.mark.needs("runc")
class TestProcessesByRunc(OnZfs, PodmanMemoryFixtures, ProcessConformance):
    """The other runtime, where all control groups are of version 2."""

    @pytest.fixture
    def host(self, home: Path) -> PodmanBackend:
        return PodmanBackend(home, "runc")


def test_crun_is_what_podman_runs_them_with(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    found = PodmanBackend(home).probe()
    assert found.available, found.reason
    assert found.reason.endswith(" with crun")
