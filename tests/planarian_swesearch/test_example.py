"""The example runs as it stands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "tree_search.py"


def test_the_server_is_repaired(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir(mode=0o755)
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")}, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("the server says: hello")
    assert "the server is gone" in done.stdout, "an action that breaks it was tried, in its own branch"
    assert list((tmp_path / "tmp").iterdir()) == []
