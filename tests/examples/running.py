"""Examples, run as programs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(place: Path, name: str, *arguments: str, timeout: float = 180) -> subprocess.CompletedProcess[str]:
    """An example as a program, with a temporary directory of its own: ``place / "tmp"``."""
    (place / "tmp").mkdir(mode=0o755)
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        env={**os.environ, "TMPDIR": str(place / "tmp")}, capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
