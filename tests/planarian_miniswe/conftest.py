"""Environments on fakes and on real backends."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from planarian_core import Planarian
from planarian_miniswe import PlanarianEnvironment

os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")

MakeEnvironment = Callable[..., PlanarianEnvironment]
NAMESPACES = "namespaces" if os.geteuid() == 0 else "userns"

REAL_BACKENDS = [
    pytest.param(("directory", "respawn"), id="directory-respawn"),
    pytest.param(("namespace", "respawn"), id="namespace-respawn", marks=pytest.mark.needs(NAMESPACES)),
    pytest.param(("namespace", "criu"), id="namespace-criu", marks=pytest.mark.needs("namespaces", "criu")),
]


@pytest.fixture(autouse=True)
def no_user_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """mini-swe-agent makes a configuration directory when it is imported."""
    monkeypatch.setenv("MSWEA_GLOBAL_CONFIG_DIR", str(tmp_path / "mini-swe-agent"))


@pytest.fixture
def make(fake_planarian: Planarian, workspace: Path) -> Iterator[MakeEnvironment]:
    """Makes an environment on the fakes."""
    made = []

    def make(**settings: Any) -> PlanarianEnvironment:
        made.append(PlanarianEnvironment(**{"planarian": fake_planarian, "workspace": str(workspace), **settings}))
        return made[-1]

    yield make
    for environment in made:
        environment.close()


@pytest.fixture(params=REAL_BACKENDS)
def environment(request: pytest.FixtureRequest, tmp_path: Path, workspace: Path) -> Iterator[PlanarianEnvironment]:
    """An environment on real backends that takes no statepoint by itself; all sandboxes end with the test."""
    sandbox, process = request.param
    with Planarian.open(tmp_path / "home") as planarian:
        try:
            yield PlanarianEnvironment(
                planarian=planarian, workspace=str(workspace), sandbox=sandbox, process=process, policy="manual"
            )
        finally:
            for record in reversed(planarian.registry.sandboxes()):
                planarian.remove_sandbox(planarian.sandbox(record.id))
