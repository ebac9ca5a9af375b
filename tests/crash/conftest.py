"""Runtimes over the real backends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from planarian_core import Planarian
from planarian_core.sandbox import Sandbox
from planarian_core.testing.workloads import remove_all

COMBINATIONS = [
    pytest.param(("namespace", "criu"), marks=pytest.mark.needs("root", "criu", "namespaces"), id="namespace-criu"),
    pytest.param(("namespace", "respawn"), marks=pytest.mark.needs("linux"), id="namespace-respawn"),
    pytest.param(("directory", "respawn"), id="directory-respawn"),
]


@pytest.fixture(params=COMBINATIONS)
def backends(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Names of the sandbox and the process backend."""
    chosen: tuple[str, str] = request.param
    return chosen


@pytest.fixture
def planarian(tmp_path: Path) -> Iterator[Planarian]:
    with Planarian.open(tmp_path / "home") as planarian:
        yield planarian
        remove_all(planarian)


@pytest.fixture
def sandbox(backends: tuple[str, str], planarian: Planarian, workspace: Path) -> Sandbox:
    sandbox, process = backends
    return planarian.create_sandbox(workspace, sandbox=sandbox, filesystem="copy", process=process)
