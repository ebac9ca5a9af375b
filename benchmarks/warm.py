"""Hot standby: rollback and fork by copies that are restored already, against the same without any."""

from __future__ import annotations

import time

from benchmarks.combinations import Pair
from benchmarks.timing import Measurement, Spread, Stopwatch, Variant, in_turn
from planarian_core.model import Statepoint
from planarian_core.runtime import Planarian

FORKS = 20


def warm(planarian: Planarian, made: list[Pair], rounds: int) -> list[Measurement]:
    """One rollback and one fork from a copy; the copy is there before the clock starts."""
    points = {pair: planarian.snapshot(pair.ours, automatic=True) for pair in made}
    variants: dict[str, Variant] = {}
    for pair, point in points.items():
        for name, variant in _variants(planarian, pair, point).items():
            variants[f"{pair.combination} {name}"] = variant
    spreads = in_turn(variants, rounds)
    found = []
    for pair in made:
        label = str(pair.combination)
        for operation in ("rollback", "fork"):
            ours, cold = (spreads[f"{label} {kind} {operation}"] for kind in ("warm", "cold"))
            found.append(
                Measurement("hot standby", label, f"{operation} by a warm copy", ours, f"{operation}, cold", cold)
            )
    return found


def _variants(planarian: Planarian, pair: Pair, point: Statepoint) -> dict[str, Variant]:
    def rollback(stopwatch: Stopwatch, copies: int) -> None:
        _keep(planarian, point, copies)
        pair.ours.run("date +%N > changed")
        with stopwatch:
            planarian.rollback(pair.ours, point, safety=False)

    def fork(stopwatch: Stopwatch, copies: int) -> None:
        _keep(planarian, point, copies)
        with stopwatch:
            made = planarian.fork(point)
        _keep(planarian, point, 0)
        planarian.remove_sandbox(made)

    return {
        "warm rollback": lambda stopwatch: rollback(stopwatch, 1),
        "cold rollback": lambda stopwatch: rollback(stopwatch, 0),
        "warm fork": lambda stopwatch: fork(stopwatch, 1),
        "cold fork": lambda stopwatch: fork(stopwatch, 0),
    }


def many_forks(planarian: Planarian, made: list[Pair], rounds: int, forks: int = FORKS) -> list[Measurement]:
    """Many forks of one statepoint from as many copies: making the copies in the background, handing them out."""
    found = []
    for pair in made:
        point = planarian.snapshot(pair.ours, automatic=True)
        background, visible = [], []
        for _ in range(rounds):
            started = time.perf_counter()
            _keep(planarian, point, forks)
            background.append(time.perf_counter() - started)
            started = time.perf_counter()
            sandboxes = [planarian.fork(point) for _ in range(forks)]
            visible.append(time.perf_counter() - started)
            _keep(planarian, point, 0)
            for sandbox in sandboxes:
                planarian.remove_sandbox(sandbox)
        label = str(pair.combination)
        scenario = f"{forks} forks of one statepoint"
        found.append(Measurement(scenario, label, "copies made in the background", Spread(tuple(background))))
        found.append(Measurement(scenario, label, "forks handed out, visible", Spread(tuple(visible))))
    return found


def _keep(planarian: Planarian, point: Statepoint, copies: int) -> None:
    """Have exactly so many copies ready. RuntimeError where fewer could be made: figures without them would mislead."""
    planarian.keep_warm(point, copies, wait=True)
    ready = sum(s.ready and s.statepoint_id == point.id for s in planarian.registry.standbys.all().values())
    if ready != copies:
        raise RuntimeError(
            f"{ready} copies of {point.id} are ready, not {copies}: {planarian.registry.drills.get(point.id)}"
        )
