"""The primitives, for each combination of backends, against a full snapshot and a bare command."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.combinations import Pair, available, few, pairs
from benchmarks.day import day
from benchmarks.pool import pool
from benchmarks.timing import Measurement, Spread, Stopwatch, Variant, in_turn
from benchmarks.warm import many_forks, warm
from planarian_core.runtime import Planarian

_MIB = 1024 * 1024
_IMPORT = "import time; t = time.perf_counter(); from planarian_core import Planarian; print(time.perf_counter() - t)"

Say = Callable[[str], None]


_PEAK = """
import sys
from planarian_core import Planarian
with Planarian.open(sys.argv[1]) as planarian:
    sandbox = planarian.sandbox(sys.argv[2])
    planarian.snapshot(sandbox, automatic=True)
    planarian.rollback(sandbox, sys.argv[3], safety=False)
status = open("/proc/self/status").read()
print(int(status.partition("VmHWM:")[2].split()[0]) * 1024)
"""


@dataclass(frozen=True)
class Sizes:
    """How much is measured. ``bulk`` in MiB; ``files``, ``forks`` and ``snapshots`` (of the day) are counts.

    ``pool`` is how large a pool file is made for the btrfs backend. Without ``every_combination`` each backend is
    measured once.
    """

    rounds: int
    bulk_rounds: int
    files: int
    bulk: int
    every_combination: bool
    forks: int
    snapshots: int
    pool: str


FULL = Sizes(
    rounds=15, bulk_rounds=5, files=50_000, bulk=1024, every_combination=True, forks=20, snapshots=2000, pool="16G"
)
QUICK = Sizes(rounds=1, bulk_rounds=1, files=2000, bulk=32, every_combination=False, forks=3, snapshots=40, pool="2G")


def measure(folder: Path, sizes: Sizes, say: Say) -> list[Measurement]:
    """All scenarios. Uses ``folder`` for homes and data; leaves no sandbox behind."""
    home = folder / "home"
    with pool(home, sizes.pool, say), Planarian.open(home) as planarian:
        every = available(planarian, every_process=sizes.every_combination)
        best = available(planarian, every_process=False)
        if not sizes.every_combination:
            every = best = few(best)
        say(f"backends: {', '.join(map(str, every))}")
        found = importing(sizes)
        with pairs(planarian, folder / "small", every) as made:
            say("a small server and a few files")
            found += dispatch(made, sizes.rounds)
            found += small(planarian, made, sizes.rounds)
        with pairs(planarian, folder / "warm", [one for one in best if one.process == "criu"]) as made:
            say("copies that are restored already")
            found += warm(planarian, made, sizes.rounds)
            found += many_forks(planarian, made, sizes.bulk_rounds, sizes.forks)
        with pairs(planarian, folder / "many", best) as made:
            for files in (10, sizes.files):
                say(f"{files} files")
                found += many_files(planarian, made, files, sizes.bulk_rounds)
        with pairs(planarian, folder / "bulk", best) as made:
            say(f"{sizes.bulk} MiB of files, 1 % of it changed")
            found += bulk(planarian, made, sizes)
        constant = {c: planarian.plugins.filesystem(c.filesystem).capabilities.constant_time for c in best}
    for combination in best:
        snapshots = sizes.snapshots if constant[combination] else sizes.snapshots // 20
        say(f"{combination}: {snapshots} snapshots of {sizes.files} files")
        found += day(folder / "day", combination, snapshots, sizes.files, sizes.pool, say)
    return found


def importing(sizes: Sizes) -> list[Measurement]:
    """What ``from planarian_core import Planarian`` takes, in a fresh process."""

    def once() -> float:
        command = [sys.executable, "-c", _IMPORT]
        return float(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)

    once()
    samples = tuple(once() for _ in range(sizes.rounds))
    return [Measurement("import", "", "import of the core", Spread(samples))]


def dispatch(made: list[Pair], rounds: int) -> list[Measurement]:
    """``true`` in a sandbox against ``true`` started by the same Python."""

    def bare(stopwatch: Stopwatch) -> None:
        with stopwatch:
            subprocess.run(["true"], capture_output=True, check=True)

    def inside(pair: Pair) -> Variant:
        def run(stopwatch: Stopwatch) -> None:
            with stopwatch:
                result = pair.ours.run(["true"])
            assert result.exit_code == 0

        return run

    spreads = in_turn({"bare": bare} | {str(pair.combination): inside(pair) for pair in made}, rounds * 5)
    return [
        Measurement("small", str(p.combination), "dispatch", spreads[str(p.combination)], "bare", spreads["bare"])
        for p in made
    ]


def small(planarian: Planarian, made: list[Pair], rounds: int) -> list[Measurement]:
    """The primitives on a sandbox with one server and a few files, some changed each time."""
    variants: dict[str, Variant] = {}
    for pair in made:
        variants |= {f"{pair.combination} {name}": variant for name, variant in _primitives(planarian, pair).items()}
    spreads = in_turn(variants, rounds)
    found = []
    for pair in made:
        full = pair.full.words
        for operation, reference in _COMPARED.items():
            spread, other = spreads[f"{pair.combination} {operation}"], spreads[f"{pair.combination} {reference}"]
            found.append(Measurement("small", str(pair.combination), operation, spread, f"{reference}: {full}", other))
    return found


_COMPARED = {
    "snapshot": "full snapshot",
    "snapshot, nothing changed": "full snapshot",
    "rollback": "full restore",
    "rollback, safety statepoint included": "full restore",
    "fork": "full restore",
}


def _primitives(planarian: Planarian, pair: Pair) -> dict[str, Variant]:
    point = planarian.snapshot(pair.ours, automatic=True)

    def snapshot(stopwatch: Stopwatch) -> None:
        _change(pair)
        with stopwatch:
            planarian.snapshot(pair.ours, automatic=True)

    def unchanged(stopwatch: Stopwatch) -> None:
        planarian.snapshot(pair.ours, automatic=True)
        with stopwatch:
            planarian.snapshot(pair.ours, automatic=True)

    def rollback(stopwatch: Stopwatch, *, safety: bool = False) -> None:
        _change(pair)
        with stopwatch:
            planarian.rollback(pair.ours, point, safety=safety)

    def fork(stopwatch: Stopwatch) -> None:
        with stopwatch:
            made = planarian.fork(point)
        planarian.remove_sandbox(made)

    return {
        "snapshot": snapshot,
        "snapshot, nothing changed": unchanged,
        "rollback": rollback,
        "rollback, safety statepoint included": lambda stopwatch: rollback(stopwatch, safety=True),
        "fork": fork,
        "full snapshot": pair.full.capture,
        "full restore": pair.full.restore,
    }


def _change(pair: Pair) -> None:
    pair.ours.run("date +%N > changed; mkdir -p made; date +%N > made/$RANDOM")


def many_files(planarian: Planarian, made: list[Pair], files: int, rounds: int) -> list[Measurement]:
    """The second and later snapshots of many files: of the files alone, one of them changed, and with none changed."""
    variants: dict[str, Variant] = {}
    for pair in made:
        pair.both(f"rm -rf many && mkdir many && cd many && seq {files} | split --lines 1 --suffix-length 4 - f")
        planarian.snapshot(pair.ours, automatic=True)
        variants[f"{pair.combination} changed"] = _timed_files_only(planarian, pair)
        variants[f"{pair.combination} ours"] = _timed_snapshot(planarian, pair)
        variants[f"{pair.combination} full"] = pair.full.capture
    spreads = in_turn(variants, rounds)
    found = []
    for pair in made:
        for operation, ours in (
            ("snapshot, files only, one changed", "changed"),
            ("snapshot, nothing changed", "ours"),
        ):
            found.append(_compared(f"{files} files", pair, operation, "full snapshot", spreads, ours))
    return found


def bulk(planarian: Planarian, made: list[Pair], sizes: Sizes) -> list[Measurement]:
    """Much data in files of 1 MiB, 1 % rewritten each time: snapshot, then rollback; and the memory we take for it."""
    scenario, found = f"{sizes.bulk} MiB of files, 1 % dirty", []
    dirty = f"ls part.* | shuf -n {max(1, sizes.bulk // 100)} | xargs -I@ dd if=/dev/urandom of=@ bs=1M count=1"
    for pair in made:
        pair.both(f"head -c {sizes.bulk * _MIB} /dev/urandom | split --bytes 1M --suffix-length 4 - part.; sync part.*")
        planarian.snapshot(pair.ours, automatic=True)
    for operation, reference, ours in (
        ("snapshot", "full snapshot", _timed_snapshot),
        ("rollback", "full restore", _timed_rollback),
    ):
        variants: dict[str, Variant] = {}
        for pair in made:
            theirs = pair.full.capture if operation == "snapshot" else pair.full.restore
            variants[f"{pair.combination} ours"] = _after(pair, dirty, ours(planarian, pair))
            variants[f"{pair.combination} full"] = theirs
        spreads = in_turn(variants, sizes.bulk_rounds)
        found += [_compared(scenario, pair, operation, reference, spreads) for pair in made]
    return found + [_peak_memory(planarian, pair, scenario, dirty) for pair in made]


def _peak_memory(planarian: Planarian, pair: Pair, scenario: str, dirty: str) -> Measurement:
    """The highest resident size of a runtime of its own that takes a snapshot and rolls back."""
    point = planarian.registry.branch(pair.ours.id).head
    pair.ours.run(dirty, timeout=600)
    command = [sys.executable, "-c", _PEAK, str(planarian.home), pair.ours.id, str(point)]
    printed = subprocess.run(command, capture_output=True, check=True, timeout=1800).stdout
    return Measurement(scenario, str(pair.combination), "peak memory of a runtime", Spread((float(printed),)), unit="B")


def _timed_snapshot(planarian: Planarian, pair: Pair) -> Variant:
    def run(stopwatch: Stopwatch) -> None:
        with stopwatch:
            planarian.snapshot(pair.ours, automatic=True)

    return run


def _timed_rollback(planarian: Planarian, pair: Pair) -> Variant:
    point = planarian.snapshot(pair.ours, automatic=True)

    def run(stopwatch: Stopwatch) -> None:
        with stopwatch:
            planarian.rollback(pair.ours, point, safety=False)

    return run


def _timed_files_only(planarian: Planarian, pair: Pair) -> Variant:
    def run(stopwatch: Stopwatch) -> None:
        pair.ours.run("date +%N > many/changed")
        with stopwatch:
            planarian.snapshot(pair.ours, automatic=True, files_only=True)

    return run


def _after(pair: Pair, command: str, variant: Variant) -> Variant:
    def run(stopwatch: Stopwatch) -> None:
        pair.ours.run(command, timeout=600)
        variant(stopwatch)

    return run


def _compared(
    scenario: str, pair: Pair, operation: str, reference: str, spreads: dict[str, Spread], ours: str = "ours"
) -> Measurement:
    mine, full = spreads[f"{pair.combination} {ours}"], spreads[f"{pair.combination} full"]
    return Measurement(scenario, str(pair.combination), operation, mine, f"{reference}: {pair.full.words}", full)
