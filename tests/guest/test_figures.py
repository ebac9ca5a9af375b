"""Planarian's snapshots beside Podman's own: the smallest form of ``nox -s figures``, by the exact sizes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).parents[2]
MEMORY = 16 << 20
INCREMENT = "memory as it differs from the image before"
SNAPSHOTS = ("snapshot", "snapshot after rollback", "snapshot after fork")

pytestmark = pytest.mark.needs("root", "criu", "soft-dirty", "zfs", "podman")


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the benchmark measured; it fails by itself where a rollback or fork brings another memory back."""
    written = tmp_path_factory.mktemp("figures") / "figures.json"
    on_disk = "/var/tmp"  # noqa: S108  # the guest's /tmp is memory
    command = [sys.executable, "-m", "benchmarks", "figures", "--quick", "--folder", on_disk, "--json", str(written)]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    found: list[dict[str, Any]] = json.loads(written.read_text())["samples"]
    return found


def sizes(samples: list[dict[str, Any]], way: str) -> list[int]:
    """Of the snapshots, in their order: before, after a rollback, after a fork."""
    found = {sample["operation"]: sample["size"] for sample in samples if sample["way"] == way}
    return [found[operation] for operation in SNAPSHOTS]


def test_planarian_s_snapshots_stay_increments(samples: list[dict[str, Any]]) -> None:
    assert max(sizes(samples, "planarian")) < MEMORY // 2
    for sample in samples:
        if sample["way"] == "planarian" and sample["operation"] in SNAPSHOTS:
            assert any(INCREMENT in said for said in sample["said"]), sample


def test_criu_by_itself_begins_anew_after_each_restore(samples: list[dict[str, Any]]) -> None:
    before, after_rollback, after_fork = sizes(samples, "criu-inc")
    assert before < MEMORY // 2
    assert min(after_rollback, after_fork) > MEMORY


def test_podman_s_export_holds_everything_each_time(samples: list[dict[str, Any]]) -> None:
    assert min(sizes(samples, "full")) > MEMORY
