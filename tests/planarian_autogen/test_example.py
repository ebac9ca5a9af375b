"""The example runs as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.running import run

pytest.importorskip("autogen_ext", reason="needs planarian[autogen] and autogen-ext")


def test_the_team_is_saved_and_loaded(tmp_path: Path) -> None:
    done = run(tmp_path, "autogen_team.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("coder: hello")
    assert list((tmp_path / "tmp").iterdir()) == []
