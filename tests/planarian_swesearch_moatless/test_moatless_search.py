"""A search in an environment: branches keep apart, states are released, outcomes are told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("moatless", reason="needs planarian[moatless]")

from moatless.actions.finish import FinishArgs
from moatless.completion.model import Completion, Usage
from moatless.value_function.base import ValueFunction

from planarian_core import Planarian, Sandbox
from planarian_core.model import Status
from planarian_core.testing.workloads import ask_counter, remove_all, start_counter
from planarian_swesearch.moatless import NodeEnvironments, StatepointSearchTree

Search = Callable[..., StatepointSearchTree]


def _held(tree: StatepointSearchTree) -> dict[str, str]:
    return {key: found for key, found in tree.metadata["planarian"]["statepoints"].items() if found}


@pytest.mark.needs("namespaces", "criu")
@pytest.mark.parametrize("forks", [True, False], ids=["forks", "rollback"])
def test_each_node_continues_its_parent_s_files_and_memory(
    tmp_path: Path, repo: Path, search: Search, planned: ModuleType, forks: bool
) -> None:
    with Planarian.open(tmp_path / "home") as planarian:
        try:
            sandbox = planarian.create_sandbox(repo, sandbox="namespace", filesystem="copy", process="criu")
            start_counter(sandbox, "counter")
            environments = NodeEnvironments(planarian, sandbox, forks=forks)
            tree = search(environments, planned.step, persist_path=str(tmp_path / "tree.json"), max_iterations=9)
            best = tree.run_search()
            assert best is not None
            nodes = {str(node.node_id): node for node in tree.root.get_all_nodes()}
            assert len(nodes) == 9
            for key, statepoint in _held(tree).items():
                fork = planarian.fork(statepoint, of=sandbox)
                found = fork.run("cat trail 2>/dev/null").stdout, ask_counter(fork, "counter", "get")
                assert found == planned.expected(nodes[key]), f"node {key}"
                planarian.remove_sandbox(fork)
            assert len(planarian.registry.sandboxes()) == 1, "forks don't outlive their trial"
            tree.take(best)
            assert (sandbox.run("cat trail").stdout, ask_counter(sandbox, "counter", "get")) == planned.expected(best)
            tree.close()
        finally:
            remove_all(planarian)


@pytest.mark.parametrize("forks", [True, False], ids=["forks", "rollback"])
def test_a_spent_node_s_state_is_given_up(
    planarian: Planarian, sandbox: Sandbox, search: Search, planned: ModuleType, tmp_path: Path, forks: bool
) -> None:
    start_counter(sandbox, "counter")
    tree = search(
        NodeEnvironments(planarian, sandbox, forks=forks), planned.step, persist_path=str(tmp_path / "tree.json")
    )
    tree.run_search()
    states = tree.metadata["planarian"]["statepoints"]
    for node in tree.root.get_all_nodes():
        needed = node.parent is None or node.is_leaf() or (node.is_expandable() and node.get_depth() < 3)
        assert bool(states[str(node.node_id)]) is needed, f"node {node.node_id}"
    assert "" in states.values(), "the search was long enough for a node to be spent"
    own = {s.id for s in planarian.registry.statepoints(sandbox.id) if s.status is Status.COMMITTED and s.automatic}
    assert own >= set(_held(tree).values())
    assert own - set(_held(tree).values()) <= _not_of_the_search(planarian, sandbox, tree)
    leaf = max(tree.root.get_all_nodes(), key=lambda node: node.node_id)
    tree.end(keep=[leaf])
    assert _held(tree) == {str(leaf.node_id): states[str(leaf.node_id)]}


def _not_of_the_search(planarian: Planarian, sandbox: Sandbox, tree: StatepointSearchTree) -> set[str]:
    """The safety statepoint of the first rollback isn't the search's; nor is a head ever pruned."""
    mine = f"{tree.metadata['planarian']['search']} node"
    others = {s.id for s in planarian.registry.statepoints(sandbox.id) if not s.description.startswith(mine)}
    return others | {planarian.registry.branch(sandbox.id).head or ""}


def test_a_pruned_branch_releases_its_states(
    planarian: Planarian, sandbox: Sandbox, search: Search, planned: ModuleType
) -> None:
    start_counter(sandbox, "counter")
    tree = search(NodeEnvironments(planarian, sandbox), planned.step, max_iterations=6)
    tree.run_search()
    branch = tree.root.children[0]
    gone = {_held(tree)[str(n.node_id)] for n in branch.get_all_nodes() if str(n.node_id) in _held(tree)}
    tree.root.children.remove(branch)
    tree.maybe_persist()
    assert gone
    assert {planarian.registry.statepoint(statepoint).status for statepoint in gone} == {Status.PRUNED}


def test_what_was_tried_from_a_state_is_told_to_the_next_attempt(
    planarian: Planarian, sandbox: Sandbox, search: Search, planned: ModuleType
) -> None:
    start_counter(sandbox, "counter")
    tree = search(NodeEnvironments(planarian, sandbox), planned.step, max_iterations=2)
    tree.run_search()
    root = _held(tree)["0"]
    planarian.append_outcome(root, "the tests need the network", status="failed", author="a colleague")
    tree.max_iterations = 3
    tree.run_search()
    second = tree.root.children[1]
    assert "- note: Run command:" in second.feedback
    assert "is worth 10: it printed 10" in second.feedback
    assert "- failed: the tests need the network" in second.feedback
    assert second.feedback in tree.agent.completion.asked[-1], "the model reads it"


def test_an_action_without_environment_has_its_parent_s_state(
    planarian: Planarian, sandbox: Sandbox, search: Search, planned: ModuleType
) -> None:
    start_counter(sandbox, "counter")

    def plan(depth: int, tries: int) -> Any:
        return planned.step(depth, tries) if depth == 1 else FinishArgs(scratch_pad="", finish_reason="99")

    tree = search(NodeEnvironments(planarian, sandbox), plan, max_iterations=4, max_expansions=1)
    best = tree.run_search()
    assert best is not None
    assert best.is_finished()
    assert set(_held(tree)) == {"0", "1"}
    tree.take(best)
    assert sandbox.run("cat trail").stdout == "1.0 "


def test_a_duplicate_is_not_executed(
    planarian: Planarian, sandbox: Sandbox, search: Search, planned: ModuleType
) -> None:
    start_counter(sandbox, "counter")
    tree = search(NodeEnvironments(planarian, sandbox), lambda depth, _: planned.step(depth, 0), max_iterations=5)
    tree.run_search()
    duplicates = [node for node in tree.root.get_all_nodes() if node.is_duplicate]
    assert duplicates
    assert not {str(node.node_id) for node in duplicates} & set(_held(tree))
    for key, statepoint in _held(tree).items():
        fork = planarian.fork(statepoint, of=sandbox)
        expected = "".join(f"{depth}.0 " for depth in range(1, tree.get_node_by_id(int(key)).get_depth() + 1))
        assert fork.run("cat trail 2>/dev/null").stdout == expected


def test_a_state_is_captured_while_the_value_function_asks(
    planarian: Planarian, sandbox: Sandbox, search: Search, planned: ModuleType
) -> None:
    environments = NodeEnvironments(planarian, sandbox)
    begun: list[bool] = []

    class Watching(planned.Worth):  # type: ignore[name-defined]  # a module that is loaded by its path
        def get_reward(self, node: Any) -> Any:
            begun.append(environments._trial is not None and environments._trial.capture is not None)
            return super().get_reward(node)

    start_counter(sandbox, "counter")
    search(environments, planned.step, worth=Watching(), max_iterations=3).run_search()
    assert begun == [True, True]


def test_moatless_s_own_value_function_knows_our_action(
    planarian: Planarian, sandbox: Sandbox, search: Search, planned: ModuleType
) -> None:
    prompts: list[str] = []

    class Judge(planned.PlannedModel):  # type: ignore[name-defined]  # a module that is loaded by its path
        def create_completion_with_response_model(self, messages: Any, system_prompt: str, response_model: Any) -> Any:
            prompts.append(system_prompt)
            return response_model(value=7, explanation="fine"), Completion(model="planned", usage=Usage())

    start_counter(sandbox, "counter")
    worth = ValueFunction(completion=Judge(planned.step))
    tree = search(NodeEnvironments(planarian, sandbox), planned.step, worth=worth, max_iterations=2)
    tree.run_search()
    assert tree.root.children[0].reward.value == 7
    assert "**RunCommand**: Run a bash command in the repository's directory" in prompts[0]
