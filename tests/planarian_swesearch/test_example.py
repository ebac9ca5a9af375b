"""The example runs as it stands."""

from __future__ import annotations

from pathlib import Path

from tests.examples.running import run


def test_the_server_is_repaired(tmp_path: Path) -> None:
    done = run(tmp_path, "tree_search.py", timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("the server says: hello")
    assert "the server is gone" in done.stdout, "an action that breaks it was tried, in its own branch"
    assert list((tmp_path / "tmp").iterdir()) == []
