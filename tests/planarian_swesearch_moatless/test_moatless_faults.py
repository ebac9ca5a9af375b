"""What goes wrong in a search: killed processes, actions that raise or hang, lost states, a full disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("moatless", reason="needs planarian[moatless]")

from moatless.actions.action import Action
from moatless.exceptions import RejectError

from planarian_core import Planarian, Sandbox
from planarian_core.errors import ConfigurationError, LineageError, PlanarianError
from planarian_core.testing.workloads import ask_counter, remove_all, start_counter
from planarian_swesearch.moatless import NodeEnvironments, RunCommandArgs, StatepointSearchTree

Search = Callable[..., StatepointSearchTree]
KILLED = Path(__file__).with_name("killed.py")


def _check_whole(planarian: Planarian, sandbox: Sandbox, tree: StatepointSearchTree, planned: ModuleType) -> None:
    """Each state is its node's; nothing is there that no node has."""
    nodes = {str(node.node_id): node for node in tree.root.get_all_nodes()}
    assert [record.id for record in planarian.registry.sandboxes()] == [sandbox.id]
    held = {key: found for key, found in tree.metadata["planarian"]["statepoints"].items() if found}
    for key, statepoint in held.items():
        fork = planarian.fork(statepoint, of=sandbox)
        assert fork.run("cat trail 2>/dev/null").stdout == planned.expected(nodes[key])[0], f"node {key}"
        planarian.remove_sandbox(fork)
    assert set(planarian.registry.holds.all()) == set(held.values())


# --- kill -9 ---


@pytest.mark.parametrize(
    ("point", "forks"),
    [
        ("search.acted", "forks"),
        ("search.kept", "forks"),
        ("search.saved", "forks"),
        ("prune.marked", "forks"),
        ("search.entered", "rollback"),
        ("search.kept", "rollback"),
    ],
)
def test_a_killed_search_goes_on_from_its_saved_tree(
    planarian: Planarian,
    sandbox: Sandbox,
    search: Search,
    planned: ModuleType,
    repository: Path,
    tmp_path: Path,
    point: str,
    forks: str,
) -> None:
    start_counter(sandbox, "counter")
    environments = NodeEnvironments(planarian, sandbox, forks=forks == "forks")
    whole = search(environments, planned.step, max_iterations=8)
    whole.run_search()
    planarian.rollback(sandbox, whole.metadata["planarian"]["statepoints"]["0"])
    expected = planned.shape(whole)
    whole.end()

    path = tmp_path / "tree.json"
    half = search(environments, planned.step, persist_path=str(path), max_iterations=4)
    half.run_search()
    half.close()
    _kill(planarian, sandbox, repository, path, forks, point)

    planarian.recover()
    again = search(environments, planned.step, persist_path=str(path), max_iterations=8)
    again.run_search()
    assert planned.shape(again) == expected
    _check_whole(planarian, sandbox, again, planned)


def _kill(planarian: Planarian, sandbox: Sandbox, repository: Path, path: Path, forks: str, point: str) -> None:
    arguments = [str(planarian.home), sandbox.id, str(repository), str(path), forks]
    env = {**os.environ, "PLANARIAN_FAULT": f"{point}=kill"}
    command = [sys.executable, str(KILLED), *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]


@pytest.mark.needs("namespaces", "criu")
def test_a_killed_search_goes_on_with_its_server(
    tmp_path: Path, repo: Path, search: Search, planned: ModuleType
) -> None:
    path = tmp_path / "tree.json"
    with Planarian.open(tmp_path / "home") as planarian:
        try:
            sandbox = planarian.create_sandbox(repo, sandbox="namespace", filesystem="copy", process="criu")
            start_counter(sandbox, "counter")
            environments = NodeEnvironments(planarian, sandbox)
            half = search(environments, planned.step, persist_path=str(path), max_iterations=4)
            half.run_search()
            half.close()
            _kill(planarian, sandbox, repo, path, "forks", "search.kept")
            planarian.recover()
            again = search(environments, planned.step, persist_path=str(path), max_iterations=8)
            best = again.run_search()
            assert best is not None
            _check_whole(planarian, sandbox, again, planned)
            again.take(best)
            found = sandbox.run("cat trail").stdout, ask_counter(sandbox, "counter", "get")
            assert found == planned.expected(best)
            again.close()
        finally:
            remove_all(planarian)


# --- actions ---


def test_a_command_that_takes_too_long_is_an_observation(
    planarian: Planarian, sandbox: Sandbox, search: Search
) -> None:
    environments = NodeEnvironments(planarian, sandbox, timeout=1.0)
    plan = lambda depth, _: RunCommandArgs(command="echo began > f; sleep 600" if depth == 1 else "cat f")  # noqa: E731
    tree = search(environments, plan, max_iterations=3, max_expansions=1)
    tree.run_search()
    first, second = tree.root.get_all_nodes()[1:]
    assert "timed out" in first.observation.message
    assert first.observation.properties["timed_out"]
    assert first.observation.expect_correction
    assert second.observation.message == "began", "what it did until then is the node's state"


class Fails(Action):
    """Does something in the environment, then raises what it is told, as often as it is told."""

    args_schema = RunCommandArgs
    environments: Any
    error: Any
    times: int = 1

    def execute(self, args: Any, file_context: Any) -> Any:
        from moatless.actions.model import Observation

        ran = self.environments.run(args.command, file_context)
        if self.times:
            self.times -= 1
            raise self.error
        return Observation(message=ran.result.stdout)


@pytest.mark.parametrize("forks", [True, False], ids=["forks", "rollback"])
def test_an_action_that_raises_leaves_nothing_half_done(
    planarian: Planarian, sandbox: Sandbox, search: Search, planned: ModuleType, forks: bool
) -> None:
    start_counter(sandbox, "counter")
    environments = NodeEnvironments(planarian, sandbox, forks=forks)
    failing = Fails(environments=environments, error=ZeroDivisionError("the tool broke"))
    tree = search(environments, planned.step, max_iterations=4, actions=[failing])
    with pytest.raises(ZeroDivisionError, match="the tool broke"):
        tree.run_search()
    assert len(planarian.registry.sandboxes()) == 1
    assert tree.root.children[0].observation is None
    tree.run_search()
    assert len(tree.root.get_all_nodes()) == 4
    _check_whole(planarian, sandbox, tree, planned)


def test_a_rejected_action_ends_its_branch(planarian: Planarian, sandbox: Sandbox, search: Search) -> None:
    from moatless.actions.reject import Reject

    environments = NodeEnvironments(planarian, sandbox)
    failing = Fails(environments=environments, error=RejectError("not that"))
    plan = lambda _, tries: RunCommandArgs(command=f"echo {tries}")  # noqa: E731
    tree = search(environments, plan, max_iterations=3, actions=[failing, Reject()])
    tree.run_search()
    first = tree.root.children[0]
    assert (first.action.name, first.is_terminal()) == ("Reject", True)
    assert len(planarian.registry.sandboxes()) == 1


@pytest.mark.needs("namespaces", "criu")
def test_an_environment_that_an_action_ended_is_not_gone_on_from(tmp_path: Path, repo: Path, search: Search) -> None:
    with Planarian.open(tmp_path / "home") as planarian:
        try:
            sandbox = planarian.create_sandbox(repo, sandbox="namespace", filesystem="copy", process="criu")
            environments = NodeEnvironments(planarian, sandbox)
            failing = Fails(environments=environments, error=None, times=0)
            tree = search(environments, lambda _, tries: RunCommandArgs(command=f"echo {tries}"), max_iterations=3)
            tree.agent._action_map[RunCommandArgs] = _Ending(environments=environments, inner=failing)
            tree.run_search()
            first, second = tree.root.children
            assert first.is_terminal()
            assert tree.metadata["planarian"]["statepoints"][str(first.node_id)] == ""
            assert second.observation.message == "1\n", "its sibling begins from the parent's state"
            with pytest.raises(LineageError, match="was given up"):
                tree.take(first)
            tree.close()
        finally:
            remove_all(planarian)


class _Ending(Action):
    """Ends the sandbox after the first action, as an out-of-memory kill would."""

    args_schema = RunCommandArgs
    environments: Any
    inner: Any
    ended: bool = False

    def execute(self, args: Any, file_context: Any) -> Any:
        done = self.inner.execute(args, file_context)
        if not self.ended:
            self.ended = True
            self.environments._trial.sandbox.stop()
        return done


# --- states ---


def test_a_statepoint_that_can_t_be_taken_leaves_the_node_untried(
    planarian: Planarian, sandbox: Sandbox, search: Search, planned: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_counter(sandbox, "counter")
    tree = search(NodeEnvironments(planarian, sandbox), planned.step, max_iterations=3)
    tree.max_iterations = 2
    tree.run_search()
    tree.max_iterations = 4
    monkeypatch.setenv("PLANARIAN_FAULT", "snapshot.files=fail")
    with pytest.raises(PlanarianError):
        tree.run_search()
    monkeypatch.delenv("PLANARIAN_FAULT")
    assert len(planarian.registry.sandboxes()) == 1
    tree.run_search()
    assert len(tree.root.get_all_nodes()) == 4
    _check_whole(planarian, sandbox, tree, planned)


def test_a_lost_state_is_not_expanded(
    planarian: Planarian, sandbox: Sandbox, search: Search, planned: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    from planarian_core.prune_choice import PrunePolicy

    start_counter(sandbox, "counter")
    tree = search(NodeEnvironments(planarian, sandbox), planned.step, max_iterations=3)
    tree.run_search()
    lost = tree.metadata["planarian"]["statepoints"]["2"]
    planarian.release(lost)
    planarian.prune(PrunePolicy(keep_last=0, only=frozenset([lost])), [sandbox])
    tree.max_iterations = 8
    tree.run_search()
    assert "The state of node 2 is lost" in caplog.text
    assert tree.get_node_by_id(2).children == []
    _check_whole(planarian, sandbox, tree, planned)


def test_a_root_that_is_gone_is_said(
    planarian: Planarian, sandbox: Sandbox, search: Search, planned: ModuleType
) -> None:
    from planarian_core.prune_choice import PrunePolicy

    start_counter(sandbox, "counter")
    tree = search(NodeEnvironments(planarian, sandbox), planned.step, max_iterations=2)
    tree.run_search()
    root = tree.metadata["planarian"]["statepoints"]["0"]
    tree.end()
    tree.metadata["planarian"]["statepoints"]["0"] = root
    planarian.snapshot(sandbox)
    planarian.prune(PrunePolicy(keep_last=0, only=frozenset([root])), [sandbox])
    with pytest.raises(LineageError, match="the state that this search began from is gone"):
        tree.run_search()


# --- the saved tree ---


def test_a_saved_tree_that_can_t_be_used_is_said(
    planarian: Planarian, sandbox: Sandbox, search: Search, planned: ModuleType, tmp_path: Path, repo: Path
) -> None:
    environments = NodeEnvironments(planarian, sandbox)
    path = tmp_path / "tree.json"
    plan = lambda _, tries: RunCommandArgs(command=f"echo {tries}")  # noqa: E731
    first = search(environments, plan, persist_path=str(path), max_iterations=2)
    first.run_search()
    with pytest.raises(PlanarianError, match="another search uses"):
        search(environments, plan, persist_path=str(path))
    first.close()
    with pytest.raises(ConfigurationError, match="holds a tree already"):
        StatepointSearchTree.create(message="x", agent=first.agent, runtime=environments, persist_path=str(path))
    saved = path.read_text()
    (tmp_path / "other").mkdir()
    other = planarian.create_sandbox(tmp_path / "other", sandbox="directory", filesystem="copy", process="none")
    with pytest.raises(ConfigurationError, match=f"this tree is of sandbox {sandbox.id}"):
        search(NodeEnvironments(planarian, other), plan, persist_path=str(path))
    planarian.remove_sandbox(other)
    path.write_text(saved[: len(saved) // 2])
    with pytest.raises(PlanarianError, match="is no tree that can be gone on with"):
        search(environments, plan, persist_path=str(path))
    path.write_text('{"root": {"children": []}}')
    with pytest.raises(PlanarianError, match="this is no saved tree: KeyError: 'node_id'"):
        search(environments, plan, persist_path=str(path))
    with pytest.raises(ConfigurationError, match="can write"):
        search(environments, plan, persist_path=str(repo / "tree.json"))
    with pytest.raises(FileNotFoundError):
        StatepointSearchTree.from_file(str(tmp_path / "none"), runtime=environments)
    path.write_text(saved)
    assert json.loads(saved)["metadata"]["planarian"]["sandbox"] == sandbox.id
