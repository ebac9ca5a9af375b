"""Draws what ``figures`` found, as the paper's Figures 12 to 14; matplotlib is in the dependency group ``figures``."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from benchmarks.figures import (
    AFTER_FORK,
    AFTER_ROLLBACK,
    FORK,
    FULL,
    INCREMENTAL,
    OURS,
    ROLLBACK,
    SNAPSHOT,
)
from benchmarks.figures_report import chosen, loads

Data = Mapping[str, Any]

_LOOKS = {  # colours that those who see fewer can tell apart, and each with a sign of its own
    OURS: {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    INCREMENTAL: {"color": "#E69F00", "marker": "s", "linestyle": "--"},
    FULL: {"color": "#444444", "marker": "^", "linestyle": ":"},
}
_NAMES = {OURS: "Planarian", INCREMENTAL: "CRIU-inc", FULL: "Full snapshot"}


@dataclass(frozen=True)
class Panel:
    """One small diagram."""

    title: str
    kind: str
    operation: str
    size: bool = False


_PANELS = (
    Panel("12a  Snapshot", "memory", SNAPSHOT),
    Panel("12b  Snapshot after rollback", "memory", AFTER_ROLLBACK),
    Panel("12c  Snapshot after fork", "memory", AFTER_FORK),
    Panel("12a  Snapshot", "files", SNAPSHOT),
    Panel("13  Rollback", "memory", ROLLBACK),
    Panel("13  Rollback", "files", ROLLBACK),
    Panel("14  Fork", "memory", FORK),
    Panel("14  Fork", "files", FORK),
    Panel("Stored by a snapshot", "memory", SNAPSHOT, size=True),
    Panel("Stored after rollback", "memory", AFTER_ROLLBACK, size=True),
    Panel("Stored after fork", "memory", AFTER_FORK, size=True),
    Panel("Stored by a snapshot", "files", SNAPSHOT, size=True),
)


def draw(data: Data, to: Path) -> list[Path]:
    """Write ``to`` with ``.png`` and ``.svg`` at its end; returns both. The same data gives the same SVG."""
    mpl.rcParams.update({"svg.hashsalt": "planarian", "svg.fonttype": "none", "font.size": 9, "axes.titlesize": 10})
    figure = Figure(figsize=(13, 9), layout="constrained")
    rows = figure.subplots(3, 4, sharey="row")
    unit = _unit(data)
    for axes, panel in zip(rows.flat, _PANELS, strict=True):
        _panel(axes, data, panel, unit)
    for row, label in zip(rows, (_TIME, _TIME, "stored (MiB)"), strict=True):
        row[0].set_ylabel(label.format(loads(data, "memory")[0]))
        row[0].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        row[0].yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    handles, names = rows[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=3, frameon=False, fontsize=11)
    to.parent.mkdir(parents=True, exist_ok=True)
    made = [to.with_suffix(".png"), to.with_suffix(".svg")]
    figure.savefig(made[0], dpi=110, metadata={"Software": None})
    figure.savefig(made[1], metadata={"Date": None, "Creator": None})
    return made


_TIME = "time, in snapshots of {} MiB\nof memory by Planarian"


def _unit(data: Data) -> float:
    """Times are drawn as multiples of this one, since an emulated machine's seconds say nothing by themselves."""
    found = chosen(data, "memory", loads(data, "memory")[0], OURS, SNAPSHOT)
    return statistics.median(float(sample["seconds"]) for sample in found)


def _panel(axes: Axes, data: Data, panel: Panel, unit: float) -> None:
    sizes = loads(data, panel.kind)
    for way, looks in _LOOKS.items():
        points = [_values(chosen(data, panel.kind, size, way, panel.operation), panel, unit) for size in sizes]
        drawn = [(size, values) for size, values in zip(sizes, points, strict=True) if values]
        if not drawn:
            continue
        middle = [statistics.median(values) for _, values in drawn]
        spread = [
            [m - min(values) for m, (_, values) in zip(middle, drawn, strict=True)],
            [max(values) - m for m, (_, values) in zip(middle, drawn, strict=True)],
        ]
        axes.errorbar(
            [size for size, _ in drawn], middle, yerr=spread, label=_NAMES[way], capsize=3, markersize=5, **looks
        )
    axes.set_title(f"{panel.title} ({panel.kind})", loc="left")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel(f"{panel.kind} (MiB)")
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)


def _values(samples: Sequence[Data], panel: Panel, unit: float) -> list[float]:
    if panel.size:
        return [float(sample["size"]) / 2**20 for sample in samples]
    return [float(sample["seconds"]) / unit for sample in samples]
