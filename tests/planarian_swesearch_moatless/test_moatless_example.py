"""The example runs as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.running import run

pytest.importorskip("moatless", reason="needs planarian[moatless]")


def test_the_search_finds_the_repair(tmp_path: Path) -> None:
    done = run(tmp_path, "moatless_search.py", timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("app.py: return 42")
    assert list((tmp_path / "tmp").iterdir()) == []
