"""Rules of the house that a program can check."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from planarian_core.faults import POINTS

ROOT = Path(__file__).parents[2]
LEFT_OUT = {"__pycache__", "build", "dist"}
# The brackets keep this file from holding what it looks for.
FOREIGN = re.compile(
    r"(?<![\w}*])/[w]ork/|/tmp/[v]env|/root/\.[p]yenv|/opt/[p]ypi|/opt/[w]heels|"
    r"[p]ypi\.org|[p]ythonhosted|[d]eb\.debian\.org|[r]egistry\.npmjs|[g]hcr\.io|[d]ocker\.io"
)
STAND_ALONE = sorted(
    path
    for path in [*ROOT.glob("plugins/*/*.py"), *ROOT.glob("integrations/*/*.py")]
    if re.search(r"^Stand-alone|\. Stand-alone", (ast.get_docstring(ast.parse(path.read_text())) or ""), re.MULTILINE)
)


def _text_files() -> Iterator[Path]:
    for folder, directories, files in os.walk(ROOT):
        kept = [d for d in directories if d not in LEFT_OUT and not d.endswith(".egg-info")]
        directories[:] = [d for d in kept if d == ".ci" or not d.startswith(".")]
        yield from (Path(folder, name) for name in files if not name.endswith((".pyc", ".whl")))


def test_no_file_names_a_path_of_a_machine_or_a_registry() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in _text_files()
        for match in FOREIGN.finditer(path.read_text(errors="replace"))
    ]
    assert not found


def test_stand_alone_scripts_are_known() -> None:
    assert {"launcher.py", "agent.py", "request_client.py", "session_holder.py"} <= {path.name for path in STAND_ALONE}


@pytest.mark.parametrize("path", STAND_ALONE, ids=lambda path: str(path.name))
def test_a_stand_alone_script_imports_the_standard_library_only(path: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add((node.module or "").split(".")[0])
    assert imported <= sys.stdlib_module_names


def test_every_fault_point_is_reached_and_no_other() -> None:
    folders = (ROOT / "integrations", ROOT / "plugins")
    places = [*(ROOT / "planarian_core").glob("*.py"), *(path for folder in folders for path in folder.rglob("*.py"))]
    sources = "\n".join(path.read_text() for path in places if path.name != "faults.py")
    assert set(re.findall(r"\breach\(\"([a-z._]+)\"\)", sources)) <= set(POINTS)
    assert [point for point in POINTS if f'"{point}"' not in sources] == []


def test_no_module_is_a_drawer() -> None:
    names = {path.name for path in _text_files()}
    assert not names & {"utils.py", "util.py", "helpers.py", "common.py", "misc.py"}


@pytest.mark.parametrize("name", ["run", "host-packages"])
def test_ci_scripts_can_be_run(name: str) -> None:
    script = ROOT / ".ci" / name
    assert os.access(script, os.X_OK)
    assert "set -euo pipefail" in script.read_text()
