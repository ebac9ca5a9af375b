"""A pytest plugin for tests of backends, adapters and applications: fixtures on fakes, and the mark ``needs``.

Load it with ``pytest_plugins = ["planarian_core.testing.pytest_plugin"]`` in a ``conftest.py``. A test marked
``@pytest.mark.needs("criu")`` is skipped, with the reason, where the host lacks the feature; it fails instead when the
environment variable ``PLANARIAN_REQUIRE`` (a comma list) names that feature.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from planarian_core import Planarian
from planarian_core.testing.btrfs import why_no_loop_btrfs
from planarian_core.testing.fakes import FakePlugin, FakeService
from planarian_core.testing.postgresql import PrivateCluster, why_no_postgresql
from planarian_core.testing.pypi_servers import why_no_pypi
from planarian_core.testing.soft_dirty import why_no_soft_dirty
from planarian_core.testing.zfs import why_no_zfs

_NPM_PACKAGE = "@toolbox-sdk/server"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(feature): a feature of the host; skipped loudly where it is missing")


@cache
def _missing(feature: str) -> str:
    """Why a host feature is missing; empty where it is there."""
    if feature == "linux":
        return "" if sys.platform == "linux" else "not Linux"
    if feature == "root":
        return "" if os.geteuid() == 0 else "not root"
    if feature == "user":
        return "" if os.geteuid() != 0 else "runs as root; needs an ordinary user"
    if feature == "userns":
        done = subprocess.run(["unshare", "--user", "--map-root-user", "true"], capture_output=True, check=False)
        return done.stderr.decode().strip()
    if feature == "namespaces":
        done = subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False)
        return done.stderr.decode().strip()
    if feature == "criu":
        return "" if os.geteuid() == 0 and shutil.which("criu") else "criu isn't installed, or not root"
    if feature == "btrfs":
        return why_no_loop_btrfs()
    if feature == "soft-dirty":
        return why_no_soft_dirty()
    if feature == "zfs":
        return why_no_zfs()
    if feature == "postgresql":
        return why_no_postgresql()
    if feature == "npm":
        return _why_no_npm()
    if feature == "pypi":
        return why_no_pypi()
    if feature == "doltlite":
        return "" if importlib.util.find_spec("doltlite") else "the package doltlite isn't installed"
    return "" if shutil.which(feature) else f"{feature} isn't installed"


def _why_no_npm() -> str:
    """npm, its node, and packages: from the registry, or kept from before."""
    if not shutil.which("npm") or not shutil.which("node"):
        return "node or npm isn't installed"
    command = ["npm", "view", "--prefer-offline", "--no-update-notifier", _NPM_PACKAGE, "version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    return "" if done.returncode == 0 else f"npm: {done.stderr.strip()[-200:]}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    required = os.environ.get("PLANARIAN_REQUIRE", "").split(",")
    for marker in item.iter_markers("needs"):
        for feature in marker.args:
            reason = _missing(feature)
            if reason and feature in required:
                pytest.fail(f"this run requires {feature}: {reason}")
            if reason:
                pytest.skip(f"needs {feature}: {reason}")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A small directory with a file in it."""
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "hello.txt").write_text("hello\n")
    return folder


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def fake_planarian(tmp_path: Path, service: FakeService) -> Iterator[Planarian]:
    """A runtime whose default backends can be the fakes, with one remote service."""
    with Planarian.open(tmp_path / "home", plugins=[FakePlugin([service])]) as planarian:
        planarian.with_config(sandbox="fake", filesystem="fake", process="fake")
        yield planarian


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PrivateCluster]:
    """A PostgreSQL for all tests of this process, with an ordinary role ``agent``; fast, not durable."""
    with PrivateCluster(fsync=False) as cluster:
        cluster.create_role("agent")
        yield cluster


@pytest.fixture
def database(postgresql: PrivateCluster) -> Iterator[str]:
    """The name of an empty database of the role ``agent``, for one test."""
    name = postgresql.create_database(owner="agent")
    yield name
    postgresql.drop_database(name)
