"""Random cycles of the whole runtime on ZFS and CRIU, with Podman and without, against a plain model.

``PLANARIAN_CYCLES`` asks for more of them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from planarian_core.testing.verbs_machine import VerbsMachine
from planarian_core.testing.zfs import file_pool
from planarian_filesystem import zfs_making
from planarian_filesystem.zfs_pool import ZfsPool

CYCLES = settings(
    max_examples=int(os.environ.get("PLANARIAN_CYCLES", "2")),
    stateful_step_count=8,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
    phases=[Phase.generate],
)


class OnZfs(VerbsMachine):
    memory = True
    tank: ClassVar[str]

    def make_home(self) -> Path:
        home = self.folder / "home"
        home.mkdir(mode=0o700)
        zfs_making.create_below(ZfsPool(home), self.tank)
        return home

    def remove_home(self) -> None:
        """Nothing of the sandboxes, which are all removed, may be left in the pool."""
        zfs_making.destroy(ZfsPool(self.folder / "home"), force=False)
        super().remove_home()


class NamespaceCriuZfs(OnZfs):
    backends = ("namespace", "zfs", "criu")


class PodmanZfs(OnZfs):
    backends = ("podman", "zfs", "podman")


@pytest.mark.needs("root", "criu", "namespaces", "zfs")
@pytest.mark.parametrize("machine", [NamespaceCriuZfs, pytest.param(PodmanZfs, marks=pytest.mark.needs("podman"))])
def test_every_statepoint_can_be_had_back_from_zfs(machine: type[OnZfs], tmp_path: Path) -> None:
    with file_pool(tmp_path) as tank:
        machine.tank = tank
        run_state_machine_as_test(machine, settings=CYCLES)
