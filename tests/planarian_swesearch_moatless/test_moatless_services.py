"""Nodes whose actions change rows of a service too: wherever the search goes, files, memory and rows agree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

pytest.importorskip("moatless", reason="needs planarian[moatless]")
pytest.importorskip("apsw", reason="needs planarian[sql]")

from moatless.actions.model import ActionArguments, Observation
from moatless.file_context import FileContext

from planarian_core import Planarian
from planarian_core.testing import served_notes
from planarian_core.testing.served_notes import TOOL
from planarian_core.testing.workloads import ask_counter, remove_all, start_counter
from planarian_swesearch import CallFailed
from planarian_swesearch.moatless import NodeEnvironments, RunCommand, RunCommandArgs, StatepointSearchTree

Search = Callable[..., StatepointSearchTree]


class NoteArgs(RunCommandArgs):
    """Run a command, and note a text in the service."""

    text: str

    class Config:
        title = "Note"


class Note(RunCommand):
    """An action of a user's own: what the service says of a mistake is an observation."""

    args_schema: ClassVar[type[ActionArguments]] = NoteArgs

    def execute(self, args: Any, file_context: FileContext | None = None) -> Observation:
        observation = super().execute(args, file_context)
        try:
            self._runtime.call_tool("notes", TOOL, {"sql": f"INSERT INTO notes (text) VALUES ('{args.text}')"})  # noqa: S608
        except CallFailed as error:
            observation.message = f"{error} {observation.message}"
        return observation


@pytest.mark.needs("namespaces", "criu")
@pytest.mark.parametrize("forks", [False, True], ids=["rollback", "forks"])
def test_rows_go_with_each_node_s_files_and_memory(
    tmp_path: Path, repo: Path, search: Search, planned: ModuleType, forks: bool, request: pytest.FixtureRequest
) -> None:
    def plan(depth: int, tries: int) -> NoteArgs:
        return NoteArgs(command=planned.step(depth, tries).command, text=f"{depth}.{tries}")

    with served_notes.serve("sqlite", tmp_path, request) as notes, Planarian.open(notes.home) as planarian:
        try:
            sandbox = planarian.create_sandbox(repo, sandbox="namespace", filesystem="copy", process="criu")
            start_counter(sandbox, "counter")
            environments = NodeEnvironments(planarian, sandbox, forks=forks)
            tree = search(environments, plan, actions=[Note(runtime=environments)], max_iterations=7)
            assert tree.run_search() is not None
            held = [node for node in tree.root.get_all_nodes() if node.action and _is_held(tree, node)]
            assert len(held) > 2
            for node in held:
                tree.take(node)
                found = sandbox.run("cat trail").stdout, ask_counter(sandbox, "counter", "get")
                assert found == planned.expected(node)
                texts = [each.action.text for each in node.get_trajectory()[1:]]
                assert notes.rows(sandbox) == ([] if forks else texts), "a fork may not write there"
                assert ("notes is fenced off" in node.observation.message) == forks
            tree.close()
        finally:
            remove_all(planarian)


def _is_held(tree: StatepointSearchTree, node: Any) -> bool:
    return bool(tree.metadata["planarian"]["statepoints"].get(str(node.node_id)))
