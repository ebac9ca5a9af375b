"""``planarian demo --remote``, run as users run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MEMORY_AND_NOT = [
    pytest.param(("namespace", "criu"), id="namespace-criu", marks=pytest.mark.needs("namespaces", "criu")),
    pytest.param(("directory", "respawn"), id="directory-respawn"),
    pytest.param(("directory", "none"), id="directory-none"),
]


def demo(place: Path, *options: str, before: str = "", path: str = "") -> subprocess.CompletedProcess[str]:
    """The command with a temporary directory of its own; ``before`` runs in its process first."""
    (place / "tmp").mkdir(mode=0o755)
    script = f"{before}\nimport sys\nfrom planarian_core.cli.main import main\nsys.exit(main())"
    # The packages from npm stay where they are kept for all tests: HOME is as it was.
    variables = {"TMPDIR": str(place / "tmp"), "COLUMNS": "200", **({"PATH": path} if path else {})}
    return subprocess.run(
        [sys.executable, "-c", script, "demo", "--remote", *options],
        env={**os.environ, **variables}, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip


@pytest.mark.needs("postgresql", "npm")
@pytest.mark.parametrize("backends", MEMORY_AND_NOT)
def test_rows_file_and_server_go_back_together(tmp_path: Path, backends: tuple[str, str]) -> None:
    done = demo(tmp_path, "--json", "--sandbox", backends[0], "--process", backends[1])
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert [proof for proof in report["proofs"] if not proof["holds"]] == []
    claims = [proof["claim"] for proof in report["proofs"]]
    for state in ("before", "cleaned", "merged"):
        assert f"{state}: every row as it was" in claims
        assert f"{state}: the report as it was" in claims
        assert f"back at {state}: report and table agree" in claims
        assert (f"{state}: the server with its memory as it was" in claims) == (backends[1] == "criu")
        assert (f"back at {state}: server and table agree" in claims) == (backends[1] == "criu")
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.needs("postgresql", "npm")
def test_an_undo_that_does_nothing_is_found_out(tmp_path: Path) -> None:
    """The control: with compensations left out, files go back, and rows don't."""
    sabotage = (
        "from planarian_core.logged_service import LoggedService as L;"
        " L.compensate = lambda self, position, sandbox_id: ()"
    )
    done = demo(tmp_path, "--sandbox", "directory", "--process", "none", before=sabotage)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "NOT TRUE: before: every row as it was" in done.stdout
    assert "NOT TRUE: back at before: report and table agree" in done.stdout
    assert "proven: before: the report as it was" in done.stdout
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.needs("postgresql")
def test_what_the_host_lacks_is_said(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    done = demo(tmp_path, path=str(tmp_path / "nothing"))
    assert done.returncode == 4
    assert "npm" in done.stderr
    assert "apt-get install" in done.stderr
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("package", ["mcp", "psycopg"])
def test_a_missing_package_is_said(tmp_path: Path, package: str) -> None:
    hide = (
        "import importlib.util as u; f = u.find_spec;"
        f" u.find_spec = lambda name, *rest: None if name == {package!r} else f(name, *rest)"
    )
    done = demo(tmp_path, before=hide)
    assert done.returncode == 4
    assert "pip install 'planarian[mcp,sql]'" in done.stderr
