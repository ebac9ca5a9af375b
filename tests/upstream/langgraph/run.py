"""Run LangGraph's own tests of time travel, subgraphs and interrupts through our checkpointer around its own.

``python run.py [TESTS…]``: files such as ``test_time_travel.py``. The tests come from the sdist of the installed
version; nothing of them is kept.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from tests.upstream import sdist

TESTS = (
    "test_time_travel.py",
    "test_time_travel_async.py",
    "test_subgraph_persistence.py",
    "test_subgraph_persistence_async.py",
    "test_interruption.py",
    "test_interrupt_migration.py",
)
CONFTEST = Path(__file__).with_name("planarian_conftest.py")


def main(chosen: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="langgraph-upstream-") as folder:
        place = Path(folder)
        source = sdist.fetch("langgraph", place) / "tests"
        if not all((source / name).is_file() for name in TESTS):
            print("SKIPPED: the sdist of the installed langgraph has no such tests")
            return 0
        suite = place / "suite" / "tests"
        suite.mkdir(parents=True)
        for file in source.glob("*.py"):
            if file.name in TESTS or not file.name.startswith(("test_", "conftest")):
                shutil.copy(file, suite)
        shutil.copy(CONFTEST, suite / "conftest.py")
        return run(suite.parent, chosen or TESTS)


def run(folder: Path, chosen: Sequence[str]) -> int:
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--tb=short", f"--junitxml={report}"]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    names = [f"tests/{name}" for name in chosen]
    done = subprocess.run([*command, *names], cwd=folder, env=environment, check=False, timeout=1800)
    counts = sdist.read_counts(report)
    print("langgraph through StatepointSaver: " + ", ".join(f"{number} {what}" for what, number in counts.items()))
    return done.returncode or int(counts["failed"] > 0 or counts["passed"] == 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
