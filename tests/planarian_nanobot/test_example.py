"""The example runs as it stands."""

from __future__ import annotations

from pathlib import Path

from tests.examples.running import run


def test_the_page_is_served_again(tmp_path: Path) -> None:
    done = run(tmp_path, "nanobot_agent.py", timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("-> hello")
    assert list((tmp_path / "tmp").iterdir()) == []
