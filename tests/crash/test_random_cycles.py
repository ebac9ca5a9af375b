"""Random cycles on every backend combination, against a plain model (guarantees 1 to 5).

``PLANARIAN_CYCLES`` sets the number of random runs for each (6 by default), ``PLANARIAN_SHRINK=1`` looks for the
shortest failing run; the choice is seeded and repeatable.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from planarian_core.testing.verbs_machine import VerbsMachine

CYCLES = settings(
    max_examples=int(os.environ.get("PLANARIAN_CYCLES", "6")),
    stateful_step_count=14,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
    phases=[Phase.generate, Phase.shrink] if os.environ.get("PLANARIAN_SHRINK") else [Phase.generate],
)


class NamespaceCriu(VerbsMachine):
    backends = ("namespace", "copy", "criu")
    memory = True


class NamespaceCriuBtrfs(VerbsMachine):
    backends = ("namespace", "btrfs", "criu")
    memory = True
    btrfs: ClassVar[Path]

    def make_home(self) -> Path:
        home, pool = self.folder / "home", self.btrfs / self.folder.name
        for made in (home, pool):
            made.mkdir(mode=0o700)
        (home / "pool").symlink_to(pool)
        return home


class Podman(VerbsMachine):
    backends = ("podman", "copy", "podman")
    memory = True


class NamespaceRespawn(VerbsMachine):
    backends = ("namespace", "copy", "respawn")


class DirectoryRespawn(VerbsMachine):
    backends = ("directory", "copy", "respawn")


@pytest.mark.parametrize(
    "machine",
    [
        pytest.param(NamespaceCriu, marks=pytest.mark.needs("root", "criu", "namespaces")),
        pytest.param(Podman, marks=[pytest.mark.needs("root", "criu", "namespaces", "podman"), pytest.mark.thorough]),
        pytest.param(NamespaceRespawn, marks=pytest.mark.needs("linux")),
        pytest.param(DirectoryRespawn, marks=pytest.mark.needs("linux")),
    ],
)
def test_every_statepoint_can_be_had_back_exactly(machine: type[VerbsMachine]) -> None:
    run_state_machine_as_test(machine, settings=CYCLES)


@pytest.mark.needs("root", "criu", "namespaces", "btrfs")
def test_every_statepoint_can_be_had_back_from_btrfs(btrfs: Path) -> None:
    NamespaceCriuBtrfs.btrfs = btrfs
    run_state_machine_as_test(NamespaceCriuBtrfs, settings=CYCLES)
