"""The documents name tests, files and fault points that exist."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUARANTEES = (ROOT / "docs" / "guarantees.md").read_text()
HAZARDS = (ROOT / "docs" / "hazards.md").read_text()
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
NODE = re.compile(r"`(tests/[\w/]+\.py(?:::\w+)+)`")


def _rows(text: str) -> list[list[str]]:
    """The cells of all table rows, without headings and rules."""
    lines = [line for line in text.splitlines() if line.startswith("|") and not re.match(r"\|[-| ]+\|$", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@cache
def _collected(*files: str) -> frozenset[str]:
    """Node ids of all tests in these files, without their parameters, as pytest itself finds them (inherited ones
    too).
    """
    command = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "--collect-only", "-q", *files]
    command += ["-p", "no:cacheprovider", "--continue-on-collection-errors"]
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    nodes = frozenset(line.split("[")[0].strip() for line in done.stdout.splitlines() if "::" in line)
    assert nodes, done.stdout + done.stderr
    return nodes


@pytest.mark.parametrize("text", [GUARANTEES, HAZARDS], ids=["guarantees", "hazards"])
def test_named_tests_exist(text: str, request: pytest.FixtureRequest) -> None:
    here = {item.nodeid.split("[")[0] for item in request.session.items}
    missing = {node for node in set(NODE.findall(text)) - here if not _is_written(node)}
    if missing:
        missing -= _collected(*sorted({node.partition("::")[0] for node in missing}))
    assert not missing


def _is_written(node: str) -> bool:
    """Whether a file of tests has this function: what it imports, a framework perhaps, needn't be installed here."""
    path, _, name = node.partition("::")
    functions = {each.name for each in ast.parse((ROOT / path).read_text()).body if isinstance(each, ast.FunctionDef)}
    return name.startswith("test_") and Path(path).name.startswith("test_") and name in functions


def test_each_guarantee_is_held_and_tested() -> None:
    rows = {row[0]: row for row in _rows(GUARANTEES) if row[0].isdigit()}
    assert rows.keys() == {str(number) for number in range(1, 11)}
    for number, (_, promise, held_by, tests) in rows.items():
        assert promise, number
        assert held_by, number
        assert NODE.search(tests), f"guarantee {number} names no test"


def test_each_hazard_has_a_policy_and_a_test_or_says_that_it_has_none() -> None:
    rows = [row for row in _rows(HAZARDS) if row[0] != "hazard"]
    assert len(rows) > 20
    for hazard, policy, tests, status in rows:
        assert policy, hazard
        assert status in ("held", "said", "refused", "by hand", "open"), hazard
        assert NODE.search(tests) or status in ("by hand", "open"), f"{hazard}: no test, but {status}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.name))
def test_links_and_named_files_exist(document: Path) -> None:
    text = document.read_text()
    targets = [link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    missing = [target for target in targets if target and not (document.parent / target).exists()]
    named = re.findall(r"`((?:planarian_core|plugins|integrations|tests|docs|benchmarks)/[\w/.-]+\.\w+)`", text)
    missing += [name for name in named if not (ROOT / name).exists()]
    assert not missing
