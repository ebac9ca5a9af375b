"""The example runs as it stands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("moatless", reason="needs planarian[moatless]")

EXAMPLE = Path(__file__).parents[2] / "examples" / "moatless_search.py"


def test_the_search_finds_the_repair(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir(mode=0o755)
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    command = [sys.executable, str(EXAMPLE)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("app.py: return 42")
    assert list((tmp_path / "tmp").iterdir()) == []
