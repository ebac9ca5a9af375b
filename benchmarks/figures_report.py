"""What ``figures`` found, as plain data and as tables for people: sizes are exact, times only by each other."""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.figures import FULL, INCREMENTAL, OPERATIONS, OURS, Sample, Scope

Data = Mapping[str, Any]

COLUMNS = (
    "load", "operation", "stored, Planarian", "stored, criu-inc", "stored, full",
    "time, criu-inc by Planarian", "time, full by Planarian", "standstill, criu-inc by Planarian",
    "memory, criu-inc by Planarian",
)  # fmt: skip
_THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def surroundings(runtime: str) -> dict[str, str]:
    """The versions that matter here, and whether the kernel makes huge pages by itself."""
    found = {}
    for name, command in (("podman", ["podman", "--version"]), (runtime, [runtime, "--version"])):
        with suppress(OSError, IndexError):
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            found[name] = done.stdout.split("\n")[0].split()[-1]
    for name, file in (("zfs", Path("/sys/module/zfs/version")), ("transparent huge pages", _THP)):
        with suppress(OSError):
            said = file.read_text().strip()
            found[name] = said.partition("[")[2].partition("]")[0] or said
    return found


def to_dict(host: Mapping[str, str], scope: Scope, samples: Sequence[Sample]) -> dict[str, Any]:
    """Everything, the single samples too."""
    found = [asdict(sample) | {"whole": sample.whole} for sample in samples]
    return {"benchmark": "figures", "host": dict(host), "scope": asdict(scope), "samples": found}


def show(console: Console, data: Data) -> None:
    """Print it; wide enough that nothing is cut off where the output is no terminal."""
    if not console.is_terminal:
        console = Console(width=180)
    console.print("  ".join(f"{key}: {value}" for key, value in data["host"].items()), style="dim")
    for kind in kinds(data):
        table = Table(title=kind, title_justify="left", title_style="bold")
        for number, name in enumerate(COLUMNS):
            table.add_column(name, justify="right" if number > 1 else "left")
        for row in rows(data, kind):
            table.add_row(*row)
        console.print(table)
    console.print(remarks(data), style="dim")


def kinds(data: Data) -> list[str]:
    """``memory``, ``files``: of which sizes were measured."""
    return list(dict.fromkeys(sample["kind"] for sample in data["samples"]))


def loads(data: Data, kind: str) -> list[int]:
    """The sizes that were measured, in MiB."""
    return sorted({sample["load"] for sample in data["samples"] if sample["kind"] == kind})


def chosen(data: Data, kind: str, load: int, way: str, operation: str) -> list[Data]:
    """The samples of one operation, by round; empty where that way takes no part."""
    wanted = {"kind": kind, "load": load, "way": way, "operation": operation}
    found = [s for s in data["samples"] if all(s[key] == value for key, value in wanted.items())]
    return sorted(found, key=lambda sample: int(sample["round"]))


def rows(data: Data, kind: str) -> list[tuple[str, ...]]:
    """The cells of one kind of load's table."""
    found: list[tuple[str, ...]] = []
    for load in loads(data, kind):
        for operation in OPERATIONS:
            ours, native, full = (chosen(data, kind, load, way, operation) for way in (OURS, INCREMENTAL, FULL))
            sizes = (_size(ours), _size(native), _size(full))
            times = (_ratio(native, ours), _ratio(full, ours))
            counted = (_ratio(native, ours, what) for what in ("standstill", "memory"))
            found.append((f"{load} MiB", operation, *sizes, *times, *counted))
    return found


def remarks(data: Data) -> str:
    """What was compared, and which of Planarian's snapshots were no increments, if any."""
    whole = [
        f"{sample['operation']} of {sample['load']} MiB"
        for sample in data["samples"]
        if sample["way"] == OURS and sample["kind"] == "memory" and sample["whole"]
    ]
    text = (
        f"Rounds: {data['scope']['rounds']}. Stored is what a snapshot added to the disk, its median. A time is the "
        "median over the rounds of the other's by Planarian's, with the least and the most: of the whole operation; of "
        "the standstill of all processes, in which Planarian captures the files as well; and of what of that goes into "
        "memory, to find, read and write what changed. CRIU counts the last two itself, for both."
    )
    if whole:
        text += f" **Not incremental in this run**: Planarian's {', '.join(dict.fromkeys(whole))}."
    return text


def _size(samples: Sequence[Data]) -> str:
    sizes = [sample["size"] for sample in samples if sample["size"] is not None]
    return f"{statistics.median(sizes) / 2**20:.2f} MiB" if sizes else ""


def _ratio(others: Sequence[Data], ours: Sequence[Data], what: str = "seconds") -> str:
    """Empty where one of them takes no part, or has no such thing."""
    if not others or not ours or any(sample.get(what) is None for sample in (*others, *ours)):
        return ""
    ratios = [other[what] / own[what] for other, own in zip(others, ours, strict=True)]
    spread = f" ({min(ratios):.1f} … {max(ratios):.1f})" if len(ratios) > 1 else ""
    return f"{statistics.median(ratios):.1f} x{spread}"
