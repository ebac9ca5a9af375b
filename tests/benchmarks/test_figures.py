"""The tables of what ``python -m benchmarks figures`` has measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SNAPSHOTS = ("snapshot", "snapshot after rollback", "snapshot after fork")
SECONDS = {"planarian": (0.5, 1.0), "criu-inc": (2.0, 8.0), "full": (10.0, 40.0)}
COUNTED = {"planarian": 0.1, "criu-inc": 2.0, "full": 5.0}
MIB = 1 << 20
TIMES = "6.0 x (4.0 … 8.0) | 30.0 x (20.0 … 40.0)"


def measured(sizes: dict[str, int]) -> dict[str, Any]:
    """Made up: 16 MiB of memory, two rounds, and what a snapshot stores by each way."""
    fixed = {"kind": "memory", "load": 16, "said": [], "whole": False}
    samples = [
        {
            **fixed,
            "way": way,
            "operation": operation,
            "round": number,
            "seconds": seconds[number],
            "size": size,
            "standstill": size and COUNTED[way],
            "memory": size and COUNTED[way] / 10,
        }
        for way, seconds in SECONDS.items()
        for operation in (*SNAPSHOTS, "rollback", "fork")
        for size in (sizes[way] if operation in SNAPSHOTS else None,)
        for number in (1, 0)
    ]
    return {
        "benchmark": "figures",
        "host": {"kernel": "Linux", "zfs": "2.3"},
        "scope": {"rounds": 2},
        "samples": samples,
    }


def document(tmp_path: Path, data: dict[str, Any]) -> str:
    source, target = tmp_path / "figures.json", tmp_path / "benchmarks.md"
    source.write_text(json.dumps(data))
    command = [sys.executable, "-m", "benchmarks", "document", str(source), "--to", str(target)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return target.read_text()


def test_times_are_given_by_each_other_round_by_round_and_sizes_by_themselves(tmp_path: Path) -> None:
    text = document(tmp_path, measured({"planarian": MIB // 2, "criu-inc": 3 * MIB, "full": 20 * MIB}))
    stored = "0.50 MiB | 3.00 MiB | 20.00 MiB"
    counted = "20.0 x (20.0 … 20.0)"
    for operation in SNAPSHOTS:
        assert f"| 16 MiB | {operation} | {stored} | {TIMES} | {counted} | {counted} |" in text
    assert f"| 16 MiB | fork |  |  |  | {TIMES} |  |  |" in text
    assert "Rounds: 2." in text
    assert "Not incremental" not in text


def test_a_snapshot_of_ours_that_is_no_increment_is_named(tmp_path: Path) -> None:
    data = measured({"planarian": MIB, "criu-inc": MIB, "full": 20 * MIB})
    for sample in data["samples"]:
        if sample["way"] == "planarian" and sample["operation"] == "snapshot after fork":
            sample |= {"size": 17 * MIB, "whole": True}
    assert "**Not incremental in this run**: Planarian's snapshot after fork of 16 MiB." in document(tmp_path, data)
