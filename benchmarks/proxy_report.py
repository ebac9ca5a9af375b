"""What ``proxy`` found, as plain data and as tables for people."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from benchmarks.report import words
from benchmarks.timing import Spread

if TYPE_CHECKING:
    from benchmarks.proxy import Finding, Scope  # they need what is extra; a document doesn't

COLUMNS = ("operation", "ours", "bare", "ratio", "trips, ours", "trips, bare", "bar", "")

ABOUT = {
    "loopback": "Round trips of one MCP client: `planarian proxy` before MCP Toolbox, against Toolbox alone.",
    "ms away": (
        "The same, with a relay between Toolbox and PostgreSQL that passes on half the distance later each way; the "
        "first row is what it really adds. Trips are counted at the relay: turns in which the client speaks."
    ),
    "by default": (
        "The same with Toolbox's own `queryExecMode`: a statement whose text the connection hasn't seen yet takes two "
        "trips, and what the proxy sends for a change is always new."
    ),
    "the proxy's own time": (
        "What the proxy's process adds to a call: a round trip less the part of Toolbox, which a clock right before it "
        "measures, less the same for a client that speaks to Toolbox itself. Loopback."
    ),
    "in the database": (
        "The statements that reach PostgreSQL, by psycopg and a Unix socket: what the proxy sends for a call, against "
        "the bare statement."
    ),
    "one-row effects": "A rollback of a sandbox without processes, through Toolbox, on loopback.",
}
"""By the end of a scenario's name."""


def to_dict(host: Mapping[str, str], scope: Scope, findings: Sequence[Finding]) -> dict[str, Any]:
    """Everything, the single samples too."""
    return {
        "benchmark": "proxy",
        "host": dict(host),
        "scope": asdict(scope),
        "findings": [
            {
                "scenario": f.scenario,
                "operation": f.operation,
                "ours": _figures(f.ours),
                "reference": _figures(f.reference) if f.reference else None,
                "ratio": _ratio(f.ours, f.reference) if f.reference else None,
                "trips": f.trips,
                "ratio_bar": f.ratio_bar,
                "seconds_bar": f.seconds_bar,
            }
            for f in findings
        ],
    }


def show(console: Console, data: Mapping[str, Any]) -> None:
    """Print it; wide enough that nothing is cut off where the output is no terminal."""
    if not console.is_terminal:
        console = Console(width=180)
    console.print("  ".join(f"{key}: {value}" for key, value in data["host"].items()), style="dim")
    for scenario in scenarios(data):
        table = Table(title=scenario, title_justify="left", title_style="bold")
        for number, name in enumerate(COLUMNS):
            table.add_column(name, justify="right" if number else "left")
        for row in rows(data, scenario):
            table.add_row(*row)
        console.print(table)
        console.print(about(scenario), style="dim")


def scenarios(data: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(finding["scenario"] for finding in data["findings"]))


def about(scenario: str) -> str:
    return next(text for end, text in ABOUT.items() if scenario.endswith(end))


def rows(data: Mapping[str, Any], scenario: str) -> list[tuple[str, ...]]:
    """The cells of one scenario's table."""
    return [_row(finding) for finding in data["findings"] if finding["scenario"] == scenario]


def _row(finding: Mapping[str, Any]) -> tuple[str, ...]:
    ours, reference, ratio, trips = (finding[key] for key in ("ours", "reference", "ratio", "trips"))
    bars, held = [], []
    if finding["ratio_bar"]:
        bars.append(f"{finding['ratio_bar']:.1f} x")
        held.append(ratio <= finding["ratio_bar"])
    if finding["ratio_bar"] and trips:
        bars.append("no extra trip")
        held.append(round(trips[0]) <= round(trips[1]))
    if finding["seconds_bar"]:
        bars.append(words(finding["seconds_bar"], "s"))
        held.append(ours["median"] <= finding["seconds_bar"])
    return (
        finding["operation"],
        _spread(ours),
        _spread(reference) if reference else "",
        f"{ratio:.2f} x" if ratio else "",
        *(f"{count:.1f}" for count in trips or ()),
        *("" for _ in range(0 if trips else 2)),
        ", ".join(bars),
        ("held" if all(held) else "missed") if held else "",
    )


def _spread(figures: Mapping[str, Any]) -> str:
    if len(figures["samples"]) == 1:
        return words(figures["median"], "s")
    return f"{words(figures['median'], 's')} ({words(figures['q1'], 's')} … {words(figures['q3'], 's')})"


def _figures(spread: Spread) -> dict[str, Any]:
    low, middle, high = spread.quartiles
    return {"median": middle, "min": spread.minimum, "q1": low, "q3": high, "samples": list(spread.samples)}


def _ratio(ours: Spread, reference: Spread) -> float:
    """The median over the rounds of ours by the reference."""
    return statistics.median(o / r for o, r in zip(ours.samples, reference.samples, strict=True))
