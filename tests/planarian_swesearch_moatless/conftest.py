"""Searches on directory sandboxes, whose model answers by a plan: what to do at each depth, at the how-manyth try."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("moatless", reason="needs planarian[moatless]")

from moatless.actions.finish import Finish
from moatless.agent.agent import ActionAgent
from moatless.repository.file import FileRepository

from planarian_core import Planarian, Sandbox
from planarian_core.testing.workloads import remove_all
from planarian_swesearch.moatless import NodeEnvironments, RunCommand, StatepointSearchTree

PLANNED = Path(__file__).with_name("planned.py")


@pytest.fixture(scope="session")
def planned() -> ModuleType:
    spec = importlib.util.spec_from_file_location("planned", PLANNED)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["planned"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def planarian(tmp_path: Path) -> Iterator[Planarian]:
    with Planarian.open(tmp_path / "home") as opened:
        yield opened
        remove_all(opened)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    (folder / "app.py").write_text("def answer():\n    return 1\n")
    return folder


@pytest.fixture
def repository(repo: Path) -> Path:
    """What moatless takes for the repository: a directory sandbox works in the other one."""
    return Path(shutil.copytree(repo, repo.with_name("repository")))


@pytest.fixture
def sandbox(planarian: Planarian, repo: Path) -> Sandbox:
    return planarian.create_sandbox(repo, sandbox="directory", filesystem="copy", process="respawn")


@pytest.fixture
def search(repository: Path, planned: ModuleType) -> Iterator[Callable[..., StatepointSearchTree]]:
    """Makes trees; ``plan`` is what the model does, ``rewards`` are by the output's last line."""
    made: list[StatepointSearchTree] = []

    def make(
        environments: NodeEnvironments, plan: Any, *, actions: Sequence[Any] = (), worth: Any = None, **named: Any
    ) -> StatepointSearchTree:
        path = named.get("persist_path")
        known = [RunCommand(runtime=environments), Finish(), *actions]
        agent = ActionAgent(completion=planned.PlannedModel(plan), system_prompt="Search.", actions=known)
        options = {"max_expansions": 2, "max_iterations": 8, "max_depth": 3, **named}
        files = FileRepository(repo_path=str(repository))
        if path and Path(path).exists():
            tree = StatepointSearchTree.from_file(
                path, repository=files, runtime=environments, agent=agent, value_function=worth or planned.Worth()
            )
            tree.max_iterations = options["max_iterations"]
        else:
            tree = StatepointSearchTree.create(
                message="Make it work.", repository=files, agent=agent, value_function=worth or planned.Worth(),
                runtime=environments, **options,
            )  # fmt: skip
        made.append(tree)
        return tree

    yield make
    for tree in made:
        tree.close()
