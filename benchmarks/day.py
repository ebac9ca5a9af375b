"""A day of work on a large tree: thousands of snapshots with small changes, and what they take on the disk."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from benchmarks import pool
from benchmarks.combinations import Combination
from benchmarks.timing import Measurement, Spread, Stopwatch
from planarian_core.runtime import Planarian
from planarian_core.sandbox import Sandbox

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


def day(
    folder: Path, combination: Combination, snapshots: int, files: int, pool_size: str, say: Callable[[str], None]
) -> list[Measurement]:
    """Take the snapshots; what they take on the disk against the bytes that were written, and the time of each.

    In a home of its own: what others have removed goes from a pool some time after it was removed.
    """
    home, workspace = folder / "home", folder / "workspace"
    workspace.mkdir(parents=True)
    with pool.pool(home, pool_size, say), Planarian.open(home) as planarian:
        sandbox = planarian.create_sandbox(
            workspace, sandbox=combination.sandbox, filesystem=combination.filesystem, process=combination.process
        )
        try:
            found = _day(planarian, sandbox, combination, snapshots, files)
        finally:
            planarian.remove_sandbox(sandbox)
    shutil.rmtree(folder)
    return found


def _day(
    planarian: Planarian, sandbox: Sandbox, combination: Combination, snapshots: int, files: int
) -> list[Measurement]:
    _done(sandbox, tree(files))
    planarian.snapshot(sandbox, files_only=True, automatic=True)
    before = _stored(planarian.home, combination)
    command = _WRITE.format(last=files - 1, count=_CHANGED_FILES, size=_CHANGED_BYTES)
    seconds = []
    for _ in range(snapshots):
        _done(sandbox, command)
        stopwatch = Stopwatch()
        with stopwatch:
            planarian.snapshot(sandbox, files_only=True, automatic=True)
        seconds.append(stopwatch.seconds)
    data, metadata = (now - then for now, then in zip(_stored(planarian.home, combination), before, strict=True))
    changed = snapshots * _CHANGED_FILES * _CHANGED_BYTES
    scenario = f"{snapshots} snapshots of {files} files, {_CHANGED_FILES} of 16 KiB rewritten before each"
    label, what = str(combination), "data" if metadata else "all"
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


def _done(sandbox: Sandbox, command: str) -> None:
    result = sandbox.run(command, timeout=1800)
    if result.exit_code != 0:
        raise RuntimeError(f"{command}: exit code {result.exit_code}: {result.stderr}")
