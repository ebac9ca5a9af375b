"""``docs/benchmarks.md`` from what the benchmarks' ``--json`` has written; nothing in it is typed by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks import figures_report, proxy_report, turns_report
from benchmarks.report import words

Data = Mapping[str, Any]

_HEAD = """# Benchmarks

Each table is one run on one machine, by the command above it, written here by `python -m benchmarks document FILE…`.
What is compared is measured in turn, round by round, so that the machine's noise hits all of it: trust the ratios more
than the times. Times are medians, with the quartiles over the rounds in brackets; sizes are exact.
"""
_PRIMITIVES = """
The reference is in the last column: a *full snapshot* is all memory of all processes (where the process backend
captures memory) and a tar of all files, as a container engine's checkpoint with export makes it; a *full restore* is
the way back. The ratio is the median over the rounds of the reference's time by ours.
"""
_FIGURES = """
The paper's microbenchmarks (section 7.5), in the emulated guest of `docs/guest.md`: seconds mean nothing there, so
times are only given by each other. A process with random memory of that size writes to 100 pages, or, beside a process
of a few MiB, 1 % of files of 1 MiB is rewritten, before each snapshot and rollback. Two snapshots are taken one after
the other; the second is measured, a rollback to it, the snapshot after that, a fork of it, and that fork's first
snapshot.

- *Planarian*: `namespace`, `zfs` on a pool file, `criu`; rollbacks without the safety statepoint.
- *criu-inc*: CRIU's own increments through Podman: the OCI runtime's `checkpoint --parent-path` of the snapshot before,
  and `podman container restore`; a fork is a second container, brought to where it can be restored. It holds no files.
- *full*: `podman container checkpoint --export --compress=none` and `podman container restore --import`, on ext4.

What all three write is on the disk when a snapshot counts as taken. Removing what was isn't counted.

![Times and sizes by how much memory or how many files a sandbox has](figures/primitives.png)

([the same as SVG](figures/primitives.svg): points are medians over the rounds, bars the least and the most.)
"""
_MACHINE = (
    "kernel", "cpus", "memory", "files on", "criu", "python", "user", "planarian", "postgresql", "toolbox",
    "scheduling", "load before", "zfs", "podman", "crun", "runc", "transparent huge pages",
)  # fmt: skip


def markdown(found: Sequence[Data]) -> str:
    """The whole document; ``found`` are the documents that the benchmarks wrote, in the order in which they appear."""
    parts = [_HEAD]
    for data in found:
        parts += _PARTS[data["benchmark"]](data)
    return "\n".join(parts)


def updated(text: str, found: Sequence[Data]) -> str:
    """A document with the sections of these benchmarks replaced, or added at its end; the others stay."""
    head, *sections = text.split("\n## ")
    kept = {section.partition("\n")[0]: section for section in sections}
    for data in found:
        new = "\n".join(_PARTS[data["benchmark"]](data)).removeprefix("## ")
        kept[new.partition("\n")[0]] = new
    return "\n## ".join((head, *(f"{section.rstrip()}\n" for section in kept.values())))


def _command(data: Data, quick: bool) -> str:
    name = data["benchmark"]
    return _machine(data, f"python -m benchmarks {name}{' --quick' * quick} --json {name}.json")


def _machine(data: Data, command: str) -> str:
    host = ", ".join(f"{key}: {data['host'][key]}" for key in _MACHINE if key in data["host"])
    return f"```bash\n{command}\n```\n\nMachine: {host}.\n"


def _primitives(data: Data) -> list[str]:
    sizes = data["sizes"]
    lines = ["## Primitives\n", _command(data, sizes["rounds"] < 5), _PRIMITIVES.lstrip()]
    for scenario in dict.fromkeys(m["scenario"] for m in data["measurements"]):
        rows = [_row(m) for m in data["measurements"] if m["scenario"] == scenario]
        lines.append(f"### {scenario[:1].upper()}{scenario[1:]}\n")
        lines.append(_table(("backends", "operation", "median", "reference", "ratio", "against"), rows))
    return lines


def _row(m: Data) -> tuple[str, ...]:
    unit, reference = m["unit"], m["reference"]
    spread = "" if len(m["samples"]) == 1 else f" ({words(m['q1'], unit)} … {words(m['q3'], unit)})"
    ratio = ""
    if m["times_faster"] is not None:
        difference, faster = f"+{words(m['difference'], unit)}", f"{m['times_faster']:.1f} x"
        ratio = difference if m["operation"] == "dispatch" else faster
    compared = words(reference["median"], unit) if reference else ""
    return (m["backends"], m["operation"], words(m["median"], unit) + spread, compared, ratio, m["against"])


def _turns(data: Data) -> list[str]:
    kinds = "\n".join(f"- {line}" for line in turns_report.kinds(data))
    return [
        "## Turns\n",
        _command(data, data["scope"]["calls"] < 100),
        f"An agent's {data['scope']['calls']} tool calls (`benchmarks/trace.py`), with a statepoint after each.\n",
        _table(turns_report.COLUMNS, turns_report.rows(data)),
        turns_report.remarks(data) + "\n",
        f"Calls that needed no capture, by kind, with `every-call`:\n\n{kinds}\n",
    ]


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in lines)


def _proxy(data: Data) -> list[str]:
    scope = data["scope"]
    lines = ["## State proxy\n", _command(data, scope["rounds"] < 50)]
    lines.append(
        "SQL through `planarian proxy` against the same without it. The median over the rounds of ours by bare is the "
        "ratio; a bar is what it was to reach.\n"
    )
    for scenario in proxy_report.scenarios(data):
        lines += [f"### {scenario[:1].upper()}{scenario[1:]}\n", f"{proxy_report.about(scenario)}\n"]
        lines.append(_table(proxy_report.COLUMNS, proxy_report.rows(data, scenario)))
    return lines


def _figures(data: Data) -> list[str]:
    lines = ["## Figures 12 to 14\n", _machine(data, "nox -s figures"), _FIGURES.lstrip()]
    for kind in figures_report.kinds(data):
        lines += [f"### {kind.capitalize()}\n", _table(figures_report.COLUMNS, figures_report.rows(data, kind))]
    return [*lines, figures_report.remarks(data) + "\n"]


_PARTS: dict[str, Callable[[Data], list[str]]] = {
    "primitives": _primitives,
    "turns": _turns,
    "figures": _figures,
    "proxy": _proxy,
}
