"""The example runs as it stands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("autogen_ext", reason="needs planarian[autogen] and autogen-ext")

EXAMPLE = Path(__file__).parents[2] / "examples" / "autogen_team.py"


def test_the_team_is_saved_and_loaded(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir(mode=0o755)
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")}, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("coder: hello")
    assert list((tmp_path / "tmp").iterdir()) == []
