"""What the guest gets along for ``python -m benchmarks``, beside what the tests need."""

from __future__ import annotations

import shutil
from pathlib import Path


def add_benchmarks(payload: Path, checkout: Path, *, instead: bool) -> None:
    """Put the benchmarks into a payload; ``instead``: they are what it runs, with what would be pytest's arguments."""
    left_out = shutil.ignore_patterns("__pycache__", ".*")
    shutil.copytree(checkout / "benchmarks", payload / "checkout" / "benchmarks", ignore=left_out)
    if instead:
        (payload / "benchmark").touch()
