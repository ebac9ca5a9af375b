"""Run the corpus: ``python -m sql_corpus --cache FOLDER [--files NAME …] [--control nothing|third]``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from planarian_core.testing.postgresql import ClusterError, server_version

from .control import CONTROLS
from .corpus import FEW, THROUGH, Corpus
from .source import NoSource, regression_folder, schedule
from .tally import Tally

UNAVAILABLE = 4
"""Exit code where PostgreSQL, or its source, can't be had."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="sql_corpus", description=__doc__)
    parser.add_argument("--cache", type=Path, required=True, help="keeps PostgreSQL's source between runs")
    parser.add_argument("--files", nargs="*", help="of PostgreSQL's schedule; all of them unless given")
    parser.add_argument("--few", action="store_true", help="the files that most of a server's writing is tested by")
    parser.add_argument("--control", choices=CONTROLS, help="break every undo in this way: violations must be found")
    parser.add_argument(
        "--through", choices=THROUGH, default="direct", help="what is between the statements and the server"
    )
    parser.add_argument("--at-once", type=int, default=2, help="files at once, each on a server of its own")
    parser.add_argument("--report", type=Path, help="write the report here too, with every violation")
    chosen = parser.parse_args(arguments)
    started = time.monotonic()
    try:
        folder = regression_folder(server_version(), chosen.cache)
    except (ClusterError, NoSource) as error:
        print(f"unavailable: {error}")
        return UNAVAILABLE
    names = FEW if chosen.few else chosen.files or schedule(folder)
    total = Tally()
    with Corpus(folder, chosen.through, chosen.control, chosen.at_once) as corpus:
        for name, tally in zip(names, corpus.walk_all(names), strict=True):
            total += tally
            undone, broken = sum(tally.exact.values()), [] if chosen.control else tally.violations
            print(f"{name}: {tally.statements} statements, {undone} undone exactly, {len(broken)} violations")
            print(*(f"  {violation}" for violation in broken), sep="\n", end="\n" if broken else "", flush=True)
    print(total.report())
    print(f"PostgreSQL {server_version()}, {len(names)} files, {time.monotonic() - started:.0f} s")
    if chosen.report:
        chosen.report.write_text(total.report(most=10_000))
    if chosen.control:
        caught = len(total.violations)
        print(
            f"negative control {chosen.control!r}: {caught:,} of {total.changed:,} effects of a broken undo were caught"
        )
        return 0 if caught and (chosen.control != "nothing" or caught == total.changed) else 1
    return 0 if total.passed else 1


if __name__ == "__main__":
    sys.exit(main())
