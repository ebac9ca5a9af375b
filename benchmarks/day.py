"""A day of work on a large tree: thousands of snapshots with small changes, and what they take on the disk."""

from __future__ import annotations

import subprocess
from pathlib import Path

from benchmarks import pool
from benchmarks.combinations import Combination, Pair
from benchmarks.timing import Measurement, Spread, Stopwatch
from planarian_core.runtime import Planarian

_CHANGED_FILES, _CHANGED_BYTES = 4, 16 * 1024
_WRITE = "for f in $(shuf -i 0-{last} -n {count}); do head -c {size} /dev/urandom > many/d$((f % 100))/f$f; done"


def tree(files: int) -> str:
    """A command that makes the tree: so many files of about a hundred bytes to 4 KiB, in a hundred directories."""
    return (
        "python3 -c 'import os\n"
        f"for n in range({files}):\n"
        '    os.makedirs(f"many/d{n % 100}", exist_ok=True)\n'
        '    open(f"many/d{n % 100}/f{n}", "wb").write(os.urandom(100 + n * 37 % 4000))\''
    )


def day(planarian: Planarian, pair: Pair, snapshots: int, files: int) -> list[Measurement]:
    """Take the snapshots; what they take on the disk against the bytes that were written, and the time of each."""
    _done(pair, tree(files))
    planarian.snapshot(pair.ours, files_only=True, automatic=True)
    before = _stored(planarian.home, pair.combination)
    command = _WRITE.format(last=files - 1, count=_CHANGED_FILES, size=_CHANGED_BYTES)
    seconds = []
    for _ in range(snapshots):
        _done(pair, command)
        stopwatch = Stopwatch()
        with stopwatch:
            planarian.snapshot(pair.ours, files_only=True, automatic=True)
        seconds.append(stopwatch.seconds)
    data, metadata = (now - then for now, then in zip(_stored(planarian.home, pair.combination), before, strict=True))
    changed = snapshots * _CHANGED_FILES * _CHANGED_BYTES
    scenario = f"{snapshots} snapshots of {files} files, {_CHANGED_FILES} of 16 KiB rewritten before each"
    label, what = str(pair.combination), "data" if metadata else "all"
    found = [
        Measurement(scenario, label, "snapshot, files only", Spread(tuple(seconds))),
        Measurement(scenario, label, f"{what} stored by bytes changed", Spread((data / changed,)), unit="ratio"),
    ]
    if metadata:
        per_snapshot = Spread((metadata / snapshots,))
        found.append(Measurement(scenario, label, "metadata of a snapshot", per_snapshot, unit="B"))
    return found


def _stored(home: Path, combination: Combination) -> tuple[int, int]:
    """Bytes of data and of metadata that all artefacts of a home's file backend take."""
    if combination.filesystem == "btrfs":
        return pool.used(home)
    command = ["du", "-s", "-B1", str(home / "store")]
    return int(subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout.split()[0]), 0


def _done(pair: Pair, command: str) -> None:
    result = pair.ours.run(command, timeout=1800)
    if result.exit_code != 0:
        raise RuntimeError(f"{command}: exit code {result.exit_code}: {result.stderr}")
