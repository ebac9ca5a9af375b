"""The paper's Figures 12 to 14 (section 7.5): snapshot, rollback and fork by size, of three ways in turn.

Of each sandbox two snapshots are taken one after the other: the second is measured, a rollback to it, the snapshot
after that, a fork of it, and that fork's first snapshot. Before each snapshot and rollback the load changes its share.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks import figures_subject, podman_checkpoints
from benchmarks.combinations import Combination
from benchmarks.figures_load import Load, touch, touched
from benchmarks.figures_subject import Subject, Taken
from benchmarks.podman_checkpoints import Exported, Incremental, Podman
from benchmarks.pool import pool
from benchmarks.timing import Stopwatch, rotated
from planarian_core.errors import BackendUnavailable
from planarian_core.runtime import Planarian

OURS, INCREMENTAL, FULL = "planarian", "criu-inc", "full"
SNAPSHOT, ROLLBACK, AFTER_ROLLBACK = "snapshot", "rollback", "snapshot after rollback"
FORK, AFTER_FORK = "fork", "snapshot after fork"
OPERATIONS = (SNAPSHOT, ROLLBACK, AFTER_ROLLBACK, FORK, AFTER_FORK)
COMBINATION = Combination("namespace", "zfs", "criu")

Say = Callable[[str], None]
Way = Callable[[Load], AbstractContextManager[Subject]]


@dataclass(frozen=True)
class Scope:
    """Sizes in MiB; a size is measured with each way once a round. None is begun after so many minutes (0: all are)."""

    memory: tuple[int, ...]
    files: tuple[int, ...]
    rounds: int
    pool: str
    minutes: float = 0

    def only(self, most: int, rounds: int, minutes: float) -> Scope:
        """The sizes that are at most ``most``, in so many rounds (0: as many as here)."""
        memory, files = (tuple(size for size in sizes if size <= most) for sizes in (self.memory, self.files))
        return Scope(memory, files, rounds or self.rounds, self.pool, minutes)


WHOLE = Scope((16, 64, 200, 512), (16, 64, 256, 1024), rounds=3, pool="6G")
QUICK = Scope((16,), (), rounds=1, pool="1G")


@dataclass(frozen=True)
class Sample:
    """One operation in one round. Of a snapshot ``size``: bytes that it added to the disk; ``standstill``, ``memory``:
    seconds that CRIU counted (:class:`planarian_process.criu_statistics.Statistics`); what was ``said`` by its maker.
    """

    kind: str
    load: int
    way: str
    operation: str
    round: int
    seconds: float
    size: int | None = None
    standstill: float | None = None
    memory: float | None = None
    said: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether a snapshot holds all memory once more: an incremental one is smaller than the memory is."""
        return self.size is not None and self.size >= self.load << 20


def measure(folder: Path, scope: Scope, say: Say) -> tuple[list[Sample], str]:
    """All sizes, each way in turn, and which runtime Podman used. BackendUnavailable without ZFS or Podman."""
    home = folder / "home"
    podman = Podman(folder / "podman")
    try:
        with pool(home, scope.pool, _refuse, kind="zfs"), Planarian.open(home) as planarian:
            ours = partial(figures_subject.started, planarian, folder / "ours", COMBINATION)
            exported = partial(podman_checkpoints.started, Exported, podman, folder / FULL)
            incremental = partial(podman_checkpoints.started, Incremental, podman, folder / INCREMENTAL)
            ways: dict[str, Way] = {OURS: ours, FULL: exported, INCREMENTAL: incremental}
            return measure_ways(ways, scope, say), podman.runtime
    finally:
        podman.close()


def measure_ways(ways: Mapping[str, Way], scope: Scope, say: Say) -> list[Sample]:
    """``criu-inc`` takes no part where files are the load: it holds none. What is first of all only warms up."""
    found = []
    warm = True
    begun = time.monotonic()
    loads = (*(Load(size) for size in scope.memory), *(Load(0, size) for size in scope.files))
    for load in sorted(loads, key=lambda each: each.size):
        if scope.minutes and time.monotonic() - begun > scope.minutes * 60:
            say(f"{load.size} MiB of {load.kind} isn't begun: {scope.minutes:g} minutes are over")
            continue
        names = [name for name in ways if name != INCREMENTAL or not load.files]
        if warm and scope.rounds > 1:
            for name in names:
                _cycle(ways[name], name, load, -1, say)
            warm = False
        for number in range(scope.rounds):
            for name in rotated(names, number):
                say(f"{load.size} MiB of {load.kind}, {name}, round {number + 1}")
                found += _cycle(ways[name], name, load, number, say)
    return found


def _cycle(way: Way, name: str, load: Load, number: int, say: Say) -> list[Sample]:
    """One sandbox from its beginning to its end."""
    found = []

    def note(operation: str, stopwatch: Stopwatch, taken: Taken | None = None) -> None:
        say(f"  {operation}: {stopwatch.seconds:.2f} s{f', {taken.size} bytes' if taken else ''}")
        sample = Sample(load.kind, load.size, name, operation, number, stopwatch.seconds)
        if taken:
            standstill, memory = (taken.counted.get(name) for name in ("standstill", "memory"))
            sample = replace(sample, size=taken.size, standstill=standstill, memory=memory, said=taken.said)
        found.append(sample)

    def snapshot(subject: Subject, operation: str) -> Taken:
        stopwatch = Stopwatch()
        taken = subject.snapshot(stopwatch)
        note(operation, stopwatch, taken)
        return taken

    with way(load) as subject:
        subject.pid  # noqa: B018  # waits for the load
        os.sync()
        subject.snapshot(Stopwatch())
        touch(subject.pid)
        point = snapshot(subject, SNAPSHOT).point
        then = touched(subject.pid)
        touch(subject.pid)
        subject.rollback(point, stopwatch := Stopwatch())
        note(ROLLBACK, stopwatch)
        _go_on(subject, then, f"{name}, rollback")
        snapshot(subject, AFTER_ROLLBACK)
        fork = subject.fork(point, stopwatch := Stopwatch())
        note(FORK, stopwatch)
        _go_on(fork, then, f"{name}, fork")
        snapshot(fork, AFTER_FORK)
    os.sync()
    return found


def _go_on(subject: Subject, then: int, what: str) -> None:
    """The load goes on from its memory of the snapshot; RuntimeError where that was not what came back."""
    now = touch(subject.pid)
    if now != then + 1:
        raise RuntimeError(f"{what}: the memory of change {now - 1} came back, not that of {then}")


def _refuse(why: str) -> None:
    raise BackendUnavailable(why, remedy="nox -s figures measures in a guest that has it")
