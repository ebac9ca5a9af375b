"""An agent's hundred tool calls with a statepoint after each: what is skipped, what is waited for, what it costs.

The same trace (:mod:`benchmarks.trace`) runs in a sandbox without statepoints, with one after every call, and with one
after every call that changed something. Statepoints are taken as adapters take them: in the background, overlapping
what the harness does next.

**LLM latencies.** The paper (section 7.3, Figure 9) gives sums over nine Terminal-Bench tasks of mini-swe-agent: 1893 s
end to end without snapshots, of which 1371 s in commands. The rest, 58 s a task, is what the harness waits for the
model. Here those 58 s are spread evenly over the hundred calls. That is little for a hundred calls, so it hides little:
the overhead with an agent that thinks longer is smaller.
"""

from __future__ import annotations

import shutil
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.combinations import Combination
from benchmarks.timing import Spread
from benchmarks.trace import Turn, prepare, turns
from planarian_core.model import Statepoint
from planarian_core.runtime import Planarian
from planarian_core.sandbox import Sandbox

LLM_SECONDS = (1893 - 1371) / 9 / 100
NONE = "no statepoints"
POLICIES = (NONE, "every-call", "on-change")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Scope:
    """How much is replayed. ``llm``: seconds that are waited between calls in the passes with an LLM's latency."""

    calls: int
    rounds: int
    llm_rounds: int
    llm: float = LLM_SECONDS


FULL = Scope(calls=100, rounds=3, llm_rounds=1)
QUICK = Scope(calls=25, rounds=1, llm_rounds=1, llm=0.05)


@dataclass
class Pass:
    """One replay. Times in seconds: of each call with the wait before it, and until each snapshot gave control back."""

    seconds: float = 0.0
    calls: list[float] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    points: list[Statepoint | None] = field(default_factory=list)
    failed: int = 0


@dataclass(frozen=True)
class Result:
    """What one policy did on one combination of backends; spreads are over the passes, or over the turns of all."""

    combination: str
    policy: str
    end_to_end: Spread
    overhead: Spread | None
    end_to_end_llm: Spread
    overhead_llm: Spread | None
    turns: int
    taken: int = 0
    skipped: int = 0
    files_shared: int = 0
    processes_shared: int = 0
    shared_whole: int = 0
    by_kind: dict[str, str] = field(default_factory=dict)
    pause: Spread | None = None
    frozen: Spread | None = None
    total: Spread | None = None
    failed_calls: int = 0


def measure(
    planarian: Planarian, folder: Path, combinations: list[Combination], scope: Scope, say: Say
) -> list[Result]:
    """All policies on all combinations, in turn, round by round."""
    found = []
    for combination in combinations:
        passes: dict[tuple[str, float], list[Pass]] = {}
        for latency, rounds in ((0.0, scope.rounds), (scope.llm, scope.llm_rounds)):
            for number in range(rounds):
                for policy in POLICIES[number % 3 :] + POLICIES[: number % 3]:
                    say(f"{combination}, {policy}, {latency:.2f} s of LLM a call, round {number + 1} of {rounds}")
                    done = replay(planarian, folder / "pass", combination, policy, latency, scope)
                    passes.setdefault((policy, latency), []).append(done)
        found += [_result(str(combination), policy, passes, scope) for policy in POLICIES]
    return found


def replay(
    planarian: Planarian, folder: Path, combination: Combination, policy: str, latency: float, scope: Scope
) -> Pass:
    """Run the trace once in a sandbox of its own, which is removed afterwards."""
    shutil.rmtree(folder, ignore_errors=True)
    prepare(folder)
    sandbox = planarian.create_sandbox(
        folder, sandbox=combination.sandbox, filesystem=combination.filesystem, process=combination.process
    )
    try:
        if policy != NONE:
            planarian.set_policy(sandbox, policy)
            planarian.snapshot(sandbox)
        return _replay(planarian, sandbox, turns(_free_port())[: scope.calls], policy, latency)
    finally:
        planarian.remove_sandbox(sandbox)
        shutil.rmtree(folder, ignore_errors=True)


def _replay(planarian: Planarian, sandbox: Sandbox, trace: list[Turn], policy: str, latency: float) -> Pass:
    done, futures = Pass(), []
    started = time.perf_counter()
    for turn in trace:
        called = time.perf_counter()
        done.failed += sandbox.run(turn.command, timeout=300).exit_code != 0
        ended = time.perf_counter()
        done.calls.append(ended - called)
        if policy != NONE:
            futures.append(planarian.snapshot_by_policy(sandbox, description=turn.command, wait=False))
            done.pauses.append(time.perf_counter() - ended)
        if latency:
            time.sleep(latency)
    done.points = [future.result() for future in futures]
    done.seconds = time.perf_counter() - started
    return done


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _result(combination: str, policy: str, passes: dict[tuple[str, float], list[Pass]], scope: Scope) -> Result:
    plain, waited = passes[policy, 0.0], passes[policy, scope.llm]
    every = [*plain, *waited]
    points = [point for one in every for point in one.points]
    taken = [point for point in points if point is not None]
    timings = {key: [p.timings[key] for p in taken if key in p.timings] for key in ("frozen", "total")}
    return Result(
        combination=combination,
        policy=policy,
        end_to_end=_seconds(plain),
        overhead=_overhead(plain, passes[NONE, 0.0]) if policy != NONE else None,
        end_to_end_llm=_seconds(waited),
        overhead_llm=_overhead(waited, passes[NONE, scope.llm]) if policy != NONE else None,
        turns=sum(len(one.calls) for one in every),
        taken=len(taken),
        skipped=len(points) - len(taken),
        files_shared=sum(bool(p.files and p.files.owner) for p in taken),
        processes_shared=sum(bool(p.processes and p.processes.owner) for p in taken),
        shared_whole=sum(_shared_whole(p) for p in taken),
        by_kind=_by_kind(every, scope),
        pause=_spread([pause for one in every for pause in one.pauses]),
        frozen=_spread(timings["frozen"]),
        total=_spread(timings["total"]),
        failed_calls=sum(one.failed for one in every),
    )


def _shared_whole(point: Statepoint) -> bool:
    """Whether nothing was captured for it: every artefact that it has is another's."""
    parts = [part for part in (point.files, point.processes) if part]
    return bool(parts) and all(part.owner for part in parts)


def _by_kind(every: list[Pass], scope: Scope) -> dict[str, str]:
    """Of each kind of call, how many needed no capture."""
    free: Counter[str] = Counter()
    all_calls: Counter[str] = Counter()
    for one in every:
        for turn, point in zip(turns(0), one.points, strict=False):
            all_calls[turn.kind] += 1
            free[turn.kind] += point is None or _shared_whole(point)
    return {kind: f"{free[kind]} of {number}" for kind, number in all_calls.items()}


def _seconds(passes: list[Pass]) -> Spread:
    return Spread(tuple(one.seconds for one in passes))


def _overhead(passes: list[Pass], without: list[Pass]) -> Spread:
    """By how much longer the passes took than those without statepoints in the same rounds; 0.01 is 1 %."""
    return Spread(tuple(one.seconds / other.seconds - 1 for one, other in zip(passes, without, strict=True)))


def _spread(values: list[float]) -> Spread | None:
    return Spread(tuple(values)) if values else None
