"""``python -m benchmarks NAME [--quick] [--json FILE] [--folder DIRECTORY]``, ``… document FILE…``, ``… draw FILE``."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import document, figures, figures_report, host, primitives, report, turns, turns_report
from benchmarks.combinations import available
from benchmarks.pool import pool
from planarian_core.errors import BackendUnavailable
from planarian_core.runtime import Planarian

CONSOLE = Console()


def main() -> None:
    options = _parser().parse_args()
    if options.command == "document":
        found = [json.loads(file.read_text()) for file in options.files]
        options.to.write_text(
            document.updated(options.to.read_text(), found) if options.keep else document.markdown(found)
        )
        return
    if options.command == "draw":
        from benchmarks.figures_plot import draw  # matplotlib is extra

        for file in draw(json.loads(options.file.read_text()), options.to):
            CONSOLE.print(str(file))
        return
    with tempfile.TemporaryDirectory(prefix="planarian-bench-", dir=options.folder) as folder:
        try:
            data = _MEASURED[options.command](Path(folder), options)
        except BackendUnavailable as error:
            CONSOLE.print(f"{error.message}. Next: {error.remedy}", style="red", markup=False)
            sys.exit(4)
    if options.json:
        options.json.write_text(json.dumps(data, indent=1) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, words in (
        ("primitives", "snapshot, rollback, fork and dispatch, for each backend here"),
        ("turns", "an agent's hundred tool calls with a statepoint after each"),
        (
            "figures",
            "snapshot, rollback and fork by size, against Podman's checkpoints; needs ZFS, podman, CRIU, soft-dirty",
        ),
        ("proxy", "SQL through the state proxy against the bare MCP server; needs PostgreSQL, npm, planarian[mcp,sql]"),
    ):
        command = commands.add_parser(name, help=words)
        command.add_argument("--quick", action="store_true", help="small data and few rounds, to see that it works")
        command.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
        command.add_argument("--folder", type=Path, help="where to work; a few GB (default: the temporary directory)")
        if name == "figures":
            command.add_argument("--most", type=int, default=1024, metavar="MIB", help="leave larger sizes out")
            command.add_argument("--rounds", type=int, default=0, help="instead of three")
            command.add_argument("--minutes", type=float, default=0, help="begin no size after so many")
    drawing = commands.add_parser("draw", help="the diagrams of what `figures --json` has written; needs matplotlib")
    drawing.add_argument("file", type=Path, metavar="FILE")
    drawing.add_argument("--to", type=Path, default=Path("docs/figures/primitives"), metavar="PATH", help="no ending")
    writing = commands.add_parser("document", help="docs/benchmarks.md from what --json has written")
    writing.add_argument("files", type=Path, nargs="+", metavar="FILE")
    writing.add_argument("--to", type=Path, default=Path("docs/benchmarks.md"), metavar="FILE")
    writing.add_argument("--keep", action="store_true", help="leave the sections of other benchmarks as they are there")
    return parser


def _say(text: str) -> None:
    CONSOLE.print(f"… {text}", style="dim")


def _primitives(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    sizes = primitives.QUICK if options.quick else primitives.FULL
    about = host.describe(folder)
    measurements = primitives.measure(folder, sizes, _say)
    report.show(CONSOLE, about, sizes, measurements)
    return report.to_dict(about, sizes, measurements)


def _turns(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    scope = turns.QUICK if options.quick else turns.FULL
    about = host.describe(folder)
    home = folder / "home"
    with pool(home, "4G", _say), Planarian.open(home) as planarian:
        combinations = available(planarian, every_process=False)
        if options.quick:  # without what is taken only where it is asked for
            combinations = [one for one in combinations if one.sandbox != "podman"]
        results = turns.measure(planarian, folder, combinations, scope, _say)
    data = turns_report.to_dict(about, scope, results)
    turns_report.show(CONSOLE, data)
    return data


def _figures(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    scope = figures.QUICK if options.quick else figures.WHOLE.only(options.most, options.rounds, options.minutes)
    about = host.describe(folder)
    samples, runtime = figures.measure(folder, scope, _say)
    data = figures_report.to_dict(about | figures_report.surroundings(runtime), scope, samples)
    figures_report.show(CONSOLE, data)
    return data


def _proxy(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    from planarian_mcp.demo_shop import require

    require()
    from benchmarks import proxy, proxy_report  # what they need is extra

    scope = proxy.QUICK if options.quick else proxy.FULL
    about = host.describe(folder) | proxy.versions()
    data = proxy_report.to_dict(about, scope, proxy.measure(folder, scope, _say))
    proxy_report.show(CONSOLE, data)
    return data


_MEASURED: dict[str, Callable[[Path, argparse.Namespace], dict[str, Any]]] = {
    "primitives": _primitives,
    "turns": _turns,
    "figures": _figures,
    "proxy": _proxy,
}

if __name__ == "__main__":
    main()
