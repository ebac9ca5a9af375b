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
FRAMEWORKS = ("planarian_autogen", "planarian_langgraph", "planarian_nanobot", "planarian_swesearch_moatless")
NODE = re.compile(r"`(tests/[\w/]+\.py(?:::\w+)+)`")


def _rows(text: str) -> list[list[str]]:
    """The cells of all table rows, without headings and rules."""
    lines = [line for line in text.splitlines() if line.startswith("|") and not re.match(r"\|[-| ]+\|$", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@cache
def _collected() -> frozenset[str]:
    """Node ids of all tests, without their parameters, as pytest itself finds them (inherited ones too)."""
    command = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "--collect-only", "-q", "tests"]
    command += ["-p", "no:cacheprovider", "--ignore=tests/upstream", "--continue-on-collection-errors"]
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    nodes = frozenset(line.split("[")[0].strip() for line in done.stdout.splitlines() if "::" in line)
    assert nodes, done.stdout + done.stderr
    return nodes


@pytest.mark.parametrize("text", [GUARANTEES, HAZARDS], ids=["guarantees", "hazards"])
def test_named_tests_exist(text: str) -> None:
    missing = set(NODE.findall(text)) - _collected()
    assert not {node for node in missing if not _needs_a_framework(node)}


def _needs_a_framework(node: str) -> bool:
    """Whether a test exists that can't be collected here, since its framework has an environment of its own."""
    path, _, name = node.rpartition("::")
    folder = path.split("/")[1]
    return folder in FRAMEWORKS and name in {
        each.name for each in ast.parse((ROOT / path).read_text()).body if isinstance(each, ast.FunctionDef)
    }


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
