"""The figures, as a table for people and as plain data for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.primitives import Sizes
from benchmarks.timing import Measurement, Spread


def show(console: Console, host: Mapping[str, str], sizes: Sizes, measurements: Sequence[Measurement]) -> None:
    """Print all of it; wide enough that nothing is cut off where the output is no terminal."""
    if not console.is_terminal:
        console = Console(width=180)
    console.print("  ".join(f"{key}: {value}" for key, value in host.items()), style="dim")
    for scenario in dict.fromkeys(m.scenario for m in measurements):
        console.print(_table(scenario, [m for m in measurements if m.scenario == scenario]))
    console.print(
        f"Times are medians of {sizes.rounds} rounds ({sizes.bulk_rounds} with much data), the variants measured in "
        "turn. A ratio is the median over the rounds of the reference's time by ours.",
        style="dim",
    )


def _table(scenario: str, measurements: Sequence[Measurement]) -> Table:
    table = Table(title=scenario, title_justify="left", title_style="bold")
    for name in ("backends", "operation"):
        table.add_column(name)
    for name in ("median", "min", "quartiles", "reference", "ratio"):
        table.add_column(name, justify="right")
    table.add_column("reference is")
    for m in measurements:
        low, middle, high = m.spread.quartiles
        table.add_row(
            m.combination,
            m.operation,
            words(middle, m.unit),
            words(m.spread.minimum, m.unit),
            f"{words(low, m.unit)} … {words(high, m.unit)}",
            words(m.reference.median, m.unit) if m.reference else "",
            ratio(m),
            m.against,
        )
    return table


def ratio(m: Measurement) -> str:
    if m.times_faster is None or m.difference is None:
        return ""
    return f"+{m.difference * 1000:.2f} ms" if m.operation == "dispatch" else f"{m.times_faster:.1f} x"


def words(value: float, unit: str) -> str:
    if unit == "B":
        return f"{value / 2**20:.0f} MiB" if value >= 2**20 else f"{value / 2**10:.0f} KiB"
    if unit == "ratio":
        return f"{value:.2f}"
    return f"{value * 1000:.2f} ms" if value < 1 else f"{value:.2f} s"


def to_dict(host: Mapping[str, str], sizes: Sizes, measurements: Sequence[Measurement]) -> dict[str, Any]:
    """Everything, the single samples too."""
    return {
        "benchmark": "primitives",
        "host": dict(host),
        "sizes": asdict(sizes),
        "measurements": [
            {
                "scenario": m.scenario,
                "backends": m.combination,
                "operation": m.operation,
                "unit": m.unit,
                **_figures(m.spread),
                "against": m.against,
                "reference": _figures(m.reference) if m.reference else None,
                "times_faster": m.times_faster,
                "difference": m.difference,
            }
            for m in measurements
        ],
    }


def _figures(spread: Spread) -> dict[str, Any]:
    low, middle, high = spread.quartiles
    return {"median": middle, "min": spread.minimum, "q1": low, "q3": high, "samples": list(spread.samples)}
