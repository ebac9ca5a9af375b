"""The example runs as it stands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "nanobot_agent.py"


def test_the_page_is_served_again(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir(mode=0o755)
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")}, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("-> hello")
    assert list((tmp_path / "tmp").iterdir()) == []
