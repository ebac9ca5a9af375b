"""kill -9 of a search at named points, then go on: the same tree as without, and nothing of the killed one is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from planarian_core import Planarian, Sandbox
from planarian_core.testing.fakes import FakePlugin
from planarian_swesearch import Budget

LETTERS = Path(__file__).with_name("letters.py")
SEARCH = ["search.entered", "search.acted", "search.kept", "search.saved", "search.proposed", "search.released"]
SNAPSHOT = ["snapshot.begun", "snapshot.durable", "snapshot.committed", "prune.marked"]
CASES = [
    *((0, point) for point in (*SEARCH, *SNAPSHOT, "rollback.staged", "rollback.stopped", "rollback.switched")),
    *((2, point) for point in (*SEARCH, *SNAPSHOT, "fork.begun", "fork.restored", "promote.begun", "remove.begun")),
]
FEW, ALL = 4, 12


def _run(home: Path, tree: Path, forks: int, iterations: int, point: str = "") -> None:
    env = {**os.environ, "PLANARIAN_FAULT": f"{point}=kill" if point else ""}
    arguments = [str(home), "box", str(tree), str(forks), str(iterations)]
    done = subprocess.run(
        [sys.executable, str(LETTERS), *arguments], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == (-signal.SIGKILL if point else 0), done.stderr


@pytest.fixture(scope="session")
def begun(tmp_path_factory: pytest.TempPathFactory, letters: ModuleType) -> dict[int, tuple[Path, Any]]:
    """By the number of forks: a folder in which a search is begun, and the shape of the tree without a kill."""
    found = {}
    for forks in (0, 2):
        folder = tmp_path_factory.mktemp(f"begun-{forks}")
        (folder / "workspace").mkdir()
        with Planarian.open(folder / "home", plugins=[FakePlugin()]) as planarian:
            planarian.with_config(sandbox="fake", filesystem="fake", process="fake")
            sandbox = planarian.create_sandbox(folder / "workspace", name="box")
            with letters.search(planarian, sandbox, folder / "whole", forks=forks) as search:
                search.run(Budget(iterations=FEW))
                search.run(Budget(iterations=ALL))
                expected = letters.shape(search.tree)
                planarian.rollback(sandbox, search.tree.root.statepoint)
                search.end()
        _run(folder / "home", folder / "tree", forks, FEW)
        found[forks] = folder, expected
    return found


@pytest.mark.parametrize(("forks", "point"), CASES)
def test_a_killed_search_goes_on(
    begun: dict[int, tuple[Path, Any]], tmp_path: Path, letters: ModuleType, forks: int, point: str
) -> None:
    begun_in, expected = begun[forks]
    # the fake backends keep their absolute paths: the copy takes the place of the original
    shutil.copytree(begun_in, tmp_path / "kept", symlinks=True)
    try:
        _run(begun_in / "home", begun_in / "tree", forks, ALL, point)
        _run(begun_in / "home", begun_in / "tree", forks, ALL)
        _check(begun_in, letters, forks, expected)
    finally:
        shutil.rmtree(begun_in)
        shutil.copytree(tmp_path / "kept", begun_in, symlinks=True)


def _check(folder: Path, letters: ModuleType, forks: int, expected: Any) -> None:
    with Planarian.open(folder / "home", plugins=[FakePlugin()]) as planarian:
        assert planarian.registry.operations() == []
        assert [record.name for record in planarian.registry.sandboxes()] == ["box"], "no fork is left"
        sandbox = planarian.sandbox("box")
        with letters.search(planarian, sandbox, folder / "tree", forks=forks) as search:
            found = letters.shape(search.tree)
            assert [_without_release(node) for node in found] == [_without_release(node) for node in expected]
            held = {node.statepoint for node in search.tree.nodes.values() if node.held}
            assert held == planarian.registry.holds.all().keys()
            for node in search.tree.nodes.values():
                _check_outcomes(planarian, node.statepoint, [child.id for child in node.children])
            _check_state(planarian, sandbox, search)
    assert len(json.loads((folder / "tree").read_text())["nodes"]) == ALL + 1


def _check_outcomes(planarian: Planarian, statepoint: str, children: list[int]) -> None:
    said = [outcome.author for outcome in planarian.registry.outcomes(statepoint)] if statepoint else []
    assert sorted(int(author.split()[-1]) for author in said) == children, "each once"


def _check_state(planarian: Planarian, sandbox: Sandbox, search: Any) -> None:
    """What is held is the state that the actions make."""
    for node in [node for node in search.tree.nodes.values() if node.held]:
        planarian.rollback(sandbox, node.statepoint, safety=False)
        file = Path(sandbox.record.spec.layer) / "letters"
        assert (file.read_text() if file.exists() else "") == "".join(node.actions())


def _without_release(node: dict[str, Any]) -> dict[str, Any]:
    """When a state is given up depends on where runs ended."""
    return {**node, "released": None}
