"""Random cycles of the whole runtime on ZFS and CRIU, against a plain model; ``PLANARIAN_CYCLES`` asks for more."""

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


class NamespaceCriuZfs(VerbsMachine):
    backends = ("namespace", "zfs", "criu")
    memory = True
    tank: ClassVar[str]

    def make_home(self) -> Path:
        home = self.folder / "home"
        home.mkdir(mode=0o700)
        zfs_making.create_below(ZfsPool(home), self.tank)
        return home


@pytest.mark.needs("root", "criu", "namespaces", "zfs")
def test_every_statepoint_can_be_had_back_from_zfs(tmp_path: Path) -> None:
    with file_pool(tmp_path) as tank:
        NamespaceCriuZfs.tank = tank
        run_state_machine_as_test(NamespaceCriuZfs, settings=CYCLES)
