"""``python -m benchmarks primitives [--quick] [--json FILE] [--folder DIRECTORY]``."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from rich.console import Console

from benchmarks import host, report
from benchmarks.primitives import FULL, QUICK, measure


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    primitives = commands.add_parser("primitives", help="snapshot, rollback, fork and dispatch, for each backend here")
    primitives.add_argument("--quick", action="store_true", help="small data and few rounds, to see that it works")
    primitives.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    primitives.add_argument("--folder", type=Path, help="where to work; a few GB (default: the temporary directory)")
    options = parser.parse_args()
    sizes = QUICK if options.quick else FULL
    console = Console()
    with tempfile.TemporaryDirectory(prefix="planarian-bench-", dir=options.folder) as folder:
        about = host.describe(Path(folder))
        measurements = measure(Path(folder), sizes, lambda text: console.print(f"… {text}", style="dim"))
    report.show(console, about, sizes, measurements)
    if options.json:
        options.json.write_text(json.dumps(report.to_dict(about, sizes, measurements), indent=1) + "\n")


if __name__ == "__main__":
    main()
