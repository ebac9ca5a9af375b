"""What ``turns`` found, as plain data and as a table for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.timing import Spread
from benchmarks.turns import Result, Scope

COLUMNS = (
    "backends", "policy", "calls", "without a capture", "files shared", "processes shared",
    "visible pause", "frozen", "snapshot", "end to end", "with LLM",
)  # fmt: skip


def to_dict(host: Mapping[str, str], scope: Scope, results: Sequence[Result]) -> dict[str, Any]:
    """Everything, the single samples too."""
    return {
        "benchmark": "turns",
        "host": dict(host),
        "scope": asdict(scope),
        "results": [
            {
                key: _figures(value) if isinstance(value := getattr(result, key), Spread) else value
                for key in Result.__dataclass_fields__
            }
            for result in results
        ],
    }


def _figures(spread: Spread) -> dict[str, Any]:
    low, middle, high = spread.quartiles
    return {"median": middle, "min": spread.minimum, "q1": low, "q3": high, "samples": list(spread.samples)}


def show(console: Console, data: Mapping[str, Any]) -> None:
    """Print it; wide enough that nothing is cut off where the output is no terminal."""
    if not console.is_terminal:
        console = Console(width=240)
    console.print("  ".join(f"{key}: {value}" for key, value in data["host"].items()), style="dim")
    table = Table(title=f"{data['scope']['calls']} tool calls", title_justify="left", title_style="bold")
    for number, name in enumerate(COLUMNS):
        table.add_column(name, justify="left" if number < 2 else "right")
    for row in rows(data):
        table.add_row(*row)
    console.print(table)
    console.print(remarks(data), style="dim")


def rows(data: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The cells of the table."""
    return [
        (
            result["combination"],
            result["policy"],
            str(result["turns"]),
            *_counts(result),
            *(_milliseconds(result[key]) for key in ("pause", "frozen", "total")),
            _end_to_end(result["end_to_end"], result["overhead"]),
            _end_to_end(result["end_to_end_llm"], result["overhead_llm"]),
        )
        for result in data["results"]
    ]


def remarks(data: Mapping[str, Any]) -> str:
    """What the columns mean, in a paragraph."""
    scope = data["scope"]
    return (
        "Without a capture: skipped by the policy, or a statepoint that shares all of another's artefacts, because "
        "nothing had changed, as is proven (the trace's server wakes twice a second: then its memory has changed). "
        "Visible pause: until the snapshot gives control back; it goes on in the background, and where the next call "
        "waits for it that is part of end to end. Frozen, snapshot: everything stands still, the whole capture. "
        "Medians over all calls, with the quartiles. End to end: seconds of a whole replay, and by how much that is "
        "longer than without statepoints in the same round. With LLM: "
        f"{scope['llm']:.2f} s between the calls; 0.58 s are 58 s spread over 100 calls (paper, Figure 9: 1893 s end "
        "to end less 1371 s of commands, for nine tasks)."
    )


def kinds(data: Mapping[str, Any]) -> list[str]:
    """For each combination, which kinds of call needed no capture."""
    return [
        f"{result['combination']}: " + ", ".join(f"{kind} {count}" for kind, count in result["by_kind"].items())
        for result in data["results"]
        if result["policy"] == "every-call"
    ]


def _counts(result: Mapping[str, Any]) -> tuple[str, str, str]:
    turns, taken = result["taken"] + result["skipped"], result["taken"]
    if not turns:
        return ("", "", "")
    free = result["skipped"] + result["shared_whole"]
    return (
        f"{free} ({free / turns:.0%})",
        f"{result['files_shared']} of {taken}",
        f"{result['processes_shared']} of {taken}",
    )


def _milliseconds(figures: Mapping[str, Any] | None) -> str:
    if figures is None:
        return ""
    return f"{figures['median'] * 1000:.1f} ms ({figures['q1'] * 1000:.1f} … {figures['q3'] * 1000:.1f})"


def _end_to_end(seconds: Mapping[str, Any], overhead: Mapping[str, Any] | None) -> str:
    text = f"{seconds['median']:.1f} s"
    if overhead is None:
        return text
    low, high = min(overhead["samples"]), max(overhead["samples"])
    spread = f" ({low:+.1%} … {high:+.1%})" if high > low else ""
    return f"{text}, {overhead['median']:+.1%}{spread}"
