"""Measuring in turn: what is compared is measured round by round, so that the machine's noise hits all of it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Variant = Callable[["Stopwatch"], None]
"""One turn of one variant; what it does inside ``with stopwatch:`` counts, the rest is preparation."""


class Stopwatch:
    """Adds up the time spent in its ``with`` blocks, in seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *exc: object) -> None:
        self.seconds += time.perf_counter() - self._started


@dataclass(frozen=True)
class Spread:
    """Seconds of one variant, one figure a round."""

    samples: tuple[float, ...]

    @property
    def minimum(self) -> float:
        return min(self.samples)

    @property
    def quartiles(self) -> tuple[float, float, float]:
        if len(self.samples) == 1:
            return (self.samples[0],) * 3
        low, middle, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return low, middle, high

    @property
    def median(self) -> float:
        return self.quartiles[1]


@dataclass(frozen=True)
class Measurement:
    """One operation on one combination of backends, and what it is compared with in the same rounds."""

    scenario: str
    combination: str
    operation: str
    spread: Spread
    against: str = ""
    reference: Spread | None = None
    unit: str = "s"
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def times_faster(self) -> float | None:
        """The median over the rounds of reference/operation; above 1 this is the faster one."""
        if self.reference is None:
            return None
        return statistics.median(r / s for r, s in zip(self.reference.samples, self.spread.samples, strict=True))

    @property
    def difference(self) -> float | None:
        """The median over the rounds of operation - reference, in seconds."""
        if self.reference is None:
            return None
        return statistics.median(s - r for r, s in zip(self.reference.samples, self.spread.samples, strict=True))


def in_turn(variants: Mapping[str, Variant], rounds: int) -> dict[str, Spread]:
    """Run each variant once a round, in an order that turns with the rounds; the first round only warms up."""
    samples: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds + 1):
        for name in rotated(list(variants), number):
            stopwatch = Stopwatch()
            variants[name](stopwatch)
            if number:
                samples[name].append(stopwatch.seconds)
    return {name: Spread(tuple(values)) for name, values in samples.items()}


def rotated(names: Sequence[str], by: int) -> Sequence[str]:
    """The same names, beginning so many further on."""
    middle = by % len(names)
    return [*names[middle:], *names[:middle]]
