"""The example runs as it stands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("langchain", reason="needs planarian[langgraph]")
pytest.importorskip("apsw", reason="needs planarian[sql]")

EXAMPLE = Path(__file__).parents[2] / "examples" / "langgraph_agent.py"


def test_the_agent_goes_back_with_files_and_rows(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir(mode=0o755)
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")}, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Remote effects undone" in done.stdout, "the agent was told"
    assert done.stdout.rstrip().endswith("ai: Both orders and the report are there.")
    assert list((tmp_path / "tmp").iterdir()) == []
