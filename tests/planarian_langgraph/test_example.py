"""The example runs as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.running import run

pytest.importorskip("langchain", reason="needs planarian[langgraph]")
pytest.importorskip("apsw", reason="needs planarian[sql]")


def test_the_agent_goes_back_with_files_and_rows(tmp_path: Path) -> None:
    done = run(tmp_path, "langgraph_agent.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Remote effects undone" in done.stdout, "the agent was told"
    assert done.stdout.rstrip().endswith("ai: Both orders and the report are there.")
    assert list((tmp_path / "tmp").iterdir()) == []
