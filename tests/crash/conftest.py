"""Runtimes over the real backends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from planarian_core import Planarian
from planarian_core.sandbox import Sandbox
from planarian_core.testing.btrfs import loop_btrfs
from planarian_core.testing.workloads import remove_all
from planarian_core.testing.zfs import file_pool
from planarian_filesystem import zfs_making
from planarian_filesystem.zfs_pool import ZfsPool


class Combination(NamedTuple):
    """Names of the backends of a sandbox."""

    sandbox: str
    process: str
    filesystem: str


_CRIU = pytest.mark.needs("root", "criu", "namespaces")
_NAMED: dict[str, tuple[Combination, list[pytest.MarkDecorator]]] = {
    "namespace-criu": (Combination("namespace", "criu", "copy"), [_CRIU]),
    "namespace-respawn": (Combination("namespace", "respawn", "copy"), [pytest.mark.needs("linux")]),
    "directory-respawn": (Combination("directory", "respawn", "copy"), []),
}
_BTRFS = pytest.param(
    Combination("namespace", "criu", "btrfs"), marks=[_CRIU, pytest.mark.needs("btrfs")], id="namespace-criu-btrfs"
)

_ZFS = pytest.param(
    Combination("namespace", "criu", "zfs"), marks=[_CRIU, pytest.mark.needs("zfs")], id="namespace-criu-zfs"
)
_PODMAN = pytest.param(
    Combination("podman", "podman", "copy"),
    marks=[_CRIU, pytest.mark.needs("podman"), pytest.mark.thorough],
    id="podman-podman",
)
_PODMAN_ZFS = pytest.param(
    Combination("podman", "podman", "zfs"), marks=[_CRIU, pytest.mark.needs("podman", "zfs")], id="podman-podman-zfs"
)
_NAMES = [
    # copy is killed with `respawn`, and CRIU on btrfs
    pytest.param(c, marks=[*marks, *([pytest.mark.thorough] if c.process == "criu" else [])], id=name)
    for name, (c, marks) in _NAMED.items()
]


@pytest.fixture(params=[pytest.param(c[:2], marks=marks, id=name) for name, (c, marks) in _NAMED.items()])
def backends(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Names of the sandbox and the process backend."""
    chosen: tuple[str, str] = request.param
    return chosen


@pytest.fixture(params=[*_NAMES, _BTRFS, _ZFS, _PODMAN, _PODMAN_ZFS])
def combination(request: pytest.FixtureRequest) -> Combination:
    """The backends, that of files among them."""
    chosen: Combination = request.param
    return chosen


@pytest.fixture(scope="session")
def btrfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A btrfs for all tests of this run."""
    with loop_btrfs(tmp_path_factory.mktemp("btrfs")) as mounted:
        yield mounted


@pytest.fixture(scope="session")
def tank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A ZFS pool for all tests of this run."""
    with file_pool(tmp_path_factory.mktemp("zfs")) as name:
        yield name


@pytest.fixture
def home(combination: Combination, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Where the home goes; with a pool in it where the combination needs one."""
    home = tmp_path / "home"
    if combination.filesystem == "zfs":
        home.mkdir(mode=0o700)
        zfs_making.create_below(ZfsPool(home), request.getfixturevalue("tank"))
    if combination.filesystem == "btrfs":
        pool = request.getfixturevalue("btrfs") / tmp_path.name
        for made in (pool, home):
            made.mkdir(mode=0o700)
        (home / "pool").symlink_to(pool)
    yield home
    if combination.filesystem == "zfs":
        zfs_making.destroy(ZfsPool(home), force=True)


@pytest.fixture
def planarian(tmp_path: Path) -> Iterator[Planarian]:
    with Planarian.open(tmp_path / "home") as planarian:
        yield planarian
        remove_all(planarian)


@pytest.fixture
def sandbox(backends: tuple[str, str], planarian: Planarian, workspace: Path) -> Sandbox:
    sandbox, process = backends
    return planarian.create_sandbox(workspace, sandbox=sandbox, filesystem="copy", process=process)
