"""Searches on fakes, in forks and in place; files are counted past the runtime."""

from __future__ import annotations

import json
import threading
import time
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planarian_core import Planarian, Sandbox
from planarian_core.errors import ConfigurationError, LineageError, PlanarianError
from planarian_core.model import CommandResult, Status
from planarian_core.prune_choice import PrunePolicy
from planarian_core.testing.fakes import FakeFilesystem
from planarian_swesearch import Budget, Event, Judgement, Node, NodeStatus, Tree, TreeSearch

MODES = pytest.mark.parametrize("forks", [0, 1, 3])


def _letters(sandbox: Sandbox) -> str:
    path = Path(sandbox.record.spec.layer) / "letters"
    return path.read_text() if path.exists() else ""


def _has(nodes: int, tree: Tree) -> bool:
    return len(tree.nodes) >= nodes


def _states(planarian: Planarian) -> set[str]:
    """What the file backend keeps, by its own account."""
    return {path.name for path in (planarian.home / "fake-files").glob("*")}


@MODES
def test_the_word_is_found_and_taken(
    fake_planarian: Planarian, sandbox: Sandbox, letters: ModuleType, tmp_path: Path, forks: int
) -> None:
    with letters.search(fake_planarian, sandbox, tmp_path / "tree", forks=forks) as search:
        best = search.run(Budget(iterations=60, target=1.0))
        assert best is not None
        assert best.actions() == list("abb")
        assert best.value == 1.0
        assert forks == 0 or _letters(sandbox) == "", "forks leave their source alone"
        restored = search.take(best)
        assert _letters(sandbox) == "abb"
        assert restored.statepoint.id == best.statepoint
        assert [record.id for record in fake_planarian.registry.sandboxes()] == [sandbox.id]


@MODES
def test_outcomes_are_in_the_ledger_and_seen_by_the_next_proposal(
    fake_planarian: Planarian, sandbox: Sandbox, letters: ModuleType, tmp_path: Path, forks: int
) -> None:
    seen: dict[int, list[str]] = {}

    def propose(node: Node) -> list[str]:
        seen.setdefault(node.id, []).extend(outcome.text for outcome in node.outcomes)
        return ["a", "!"][: len(node.children) + 1]

    with letters.search(fake_planarian, sandbox, tmp_path / "tree", propose=propose, forks=forks) as search:
        search.run(Budget(iterations=4, depth=1, width=2))
        root = search.tree.root
        assert seen[0] == ["a is worth 0.333: 1 right"]
        found = fake_planarian.registry.outcomes(root.statepoint)
        assert [(outcome.status, outcome.text) for outcome in found] == [
            ("note", "a is worth 0.333: 1 right"),
            ("failed", "! failed: ValueError: no such letter"),
        ]
        assert "! failed" in fake_planarian.ledger(sandbox).to_markdown()


@MODES
def test_the_same_seed_gives_the_same_tree_whatever_takes_how_long(
    fake_planarian: Planarian, sandbox: Sandbox, letters: ModuleType, tmp_path: Path, forks: int
) -> None:
    """In one go, and in three with another search object each time."""

    def slow(sandbox: Sandbox, action: str) -> object:
        time.sleep(0.01 if action == "a" else 0.0)
        return letters.act(sandbox, action)

    with letters.search(fake_planarian, sandbox, tmp_path / "one", forks=forks) as search:
        search.run(Budget(iterations=15))
        expected = letters.shape(search.tree)
        fake_planarian.rollback(sandbox, search.tree.root.statepoint)
        search.end()
    for nodes in (5, 11, 99):
        with letters.search(fake_planarian, sandbox, tmp_path / "two", act=slow, forks=forks) as search:
            search.run(Budget(iterations=15, stop=partial(_has, nodes)))
    without = [{**node, "released": None} for node in letters.shape(search.tree)]
    assert without == [{**node, "released": None} for node in expected]


def test_forks_work_at_once_and_the_proposals_while_states_are_captured(
    fake_planarian: Planarian, sandbox: Sandbox, letters: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(2, timeout=60)
    proposing, captured = threading.Event(), threading.Event()
    capture = FakeFilesystem.capture

    def slow(self: FakeFilesystem, *arguments: Any) -> Any:
        assert proposing.wait(60), "no proposal was asked for while this is captured"
        captured.set()
        return capture(self, *arguments)

    def propose(node: Node) -> list[str]:
        if node.parent is not None:
            proposing.set()
            assert captured.wait(60)
        return ["a", "b"]

    def act(sandbox: Sandbox, action: str) -> object:
        together.wait()
        return letters.act(sandbox, action)

    with letters.search(fake_planarian, sandbox, tmp_path / "t", propose=propose, act=act, forks=2) as search:
        monkeypatch.setattr(FakeFilesystem, "capture", slow)
        search.run(Budget(iterations=4, width=2))
        assert len(search.tree.nodes) == 5
    assert captured.is_set()


@MODES
@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.integers(0, 10**6))
def test_random_searches_count_right_and_leave_nothing(
    fake_planarian: Planarian, sandbox: Sandbox, letters: ModuleType, tmp_path: Path, forks: int, seed: int
) -> None:
    keep, most = 4, 0

    def watch(tree: Tree) -> bool:
        nonlocal most
        ours = [record for record in fake_planarian.registry.sandboxes() if record.id != sandbox.id]
        assert len(ours) <= forks
        most = max(most, len(_states(fake_planarian)))
        return False

    before = _states(fake_planarian)
    path = tmp_path / f"tree-{seed}-{len(list(tmp_path.iterdir()))}"
    budget = Budget(iterations=18, width=1 + seed % 3, depth=1 + seed % 5, keep=keep, stop=watch)
    with letters.search(fake_planarian, sandbox, path, forks=forks, seed=seed) as search:
        search.run(budget)
        tree = search.tree
        assert len(tree.nodes) <= 19
        for node in tree.nodes.values():
            assert node.depth <= budget.depth
            assert len(node.children) <= budget.width
            assert node.visits == (node.value is not None) + sum(child.visits for child in node.children)
            assert (node.reserved, node.passing, node.capturing) == (0, 0, False)
        held = {node.statepoint for node in tree.nodes.values() if node.held}
        assert held == fake_planarian.registry.holds.all().keys(), "each held, and no other"
        assert len(held) <= keep + 1
        # beyond those held: the head, a safety statepoint, and in forks the round's own captures
        assert most <= len(before) + keep + 1 + 2 + 8 + 2 * forks
        search.end()
    assert not fake_planarian.registry.holds.all()
    assert [record.id for record in fake_planarian.registry.sandboxes()] == [sandbox.id]
    fake_planarian.prune(PrunePolicy(keep_last=0), [sandbox])
    committed = [s for s in fake_planarian.registry.statepoints() if s.status is Status.COMMITTED]
    assert len(committed) == 1, "the head"
    assert len(_states(fake_planarian)) == 1


# --- failures ---


@MODES
@pytest.mark.parametrize("failure", [OSError("no route"), TimeoutError("too slow"), RuntimeError("x" * 10_000)])
def test_an_action_that_fails_is_a_failed_node(
    fake_planarian: Planarian, sandbox: Sandbox, letters: ModuleType, tmp_path: Path, forks: int, failure: Exception
) -> None:
    def act(sandbox: Sandbox, action: str) -> object:
        letters.act(sandbox, "a")
        if action == "b":
            raise failure
        return sandbox.run(["cat", "letters"])

    def propose(node: Node) -> list[str]:
        return ["b", "a"]

    with letters.search(
        fake_planarian, sandbox, tmp_path / "t", act=act, propose=propose, forks=forks, worst=-1.0
    ) as search:
        search.run(Budget(iterations=2, width=2))
        failed, good = search.tree.root.children
        assert (failed.status, failed.value, failed.held) == (NodeStatus.FAILED, -1.0, False)
        assert failed.observation.startswith(type(failure).__name__)
        assert len(failed.observation) <= 4000
        assert good.observation == "a", "what the failed one had done is not there"


@MODES
def test_an_action_that_ends_its_sandbox_is_a_failed_node(
    fake_planarian: Planarian, sandbox: Sandbox, letters: ModuleType, tmp_path: Path, forks: int
) -> None:
    def act(sandbox: Sandbox, action: str) -> object:
        if action == "b":
            sandbox.stop()
        return letters.act(sandbox, action)

    with letters.search(fake_planarian, sandbox, tmp_path / "t", act=act, forks=forks) as search:
        search.run(Budget(iterations=9))
        assert len(search.tree.nodes) == 10
        for node in list(search.tree.nodes.values())[1:]:
            assert (node.status is NodeStatus.FAILED) == (node.action != "a")
            if node.action == "b":
                assert node.observation.startswith("the sandbox ended: ")


def test_a_sandbox_that_is_busy_is_no_fault_of_the_action(
    fake_planarian: Planarian, sandbox: Sandbox, letters: ModuleType, tmp_path: Path
) -> None:
    def act(sandbox: Sandbox, action: str) -> object:
        with fake_planarian.sandboxes.lock(sandbox.id).acquire(exclusive=True):
            fake_planarian.with_config(lock_timeout=0.1)
            try:
                return letters.act(sandbox, action)
            finally:
                fake_planarian.with_config(lock_timeout=60.0)

    with letters.search(fake_planarian, sandbox, tmp_path / "t", act=act, forks=1) as search:
        with pytest.raises(PlanarianError) as raised:
            search.run(Budget(iterations=1))
        assert raised.value.code == "sandbox-busy"
        assert len(search.tree.nodes) == 1
        assert search.tree.root.untried == ["a", "b", "!"]


def test_a_command_that_timed_out_is_a_failed_node(
    fake_planarian: Planarian, sandbox: Sandbox, letters: ModuleType, tmp_path: Path
) -> None:
    def act(sandbox: Sandbox, action: str) -> CommandResult:
        return CommandResult(124, "half", "", 3.0, timed_out=True)

    with letters.search(fake_planarian, sandbox, tmp_path / "t", act=act, forks=1) as search:
        search.run(Budget(iterations=1))
        assert search.tree.nodes[1].status is NodeStatus.FAILED
        assert search.tree.nodes[1].observation == "timed out after 3 s\nhalf"


@MODES
@pytest.mark.parametrize("name", ["propose", "value"])
def test_a_callable_that_fails_ends_the_run_and_the_next_one_goes_on(
    fake_planarian: Planarian, sandbox: Sandbox, letters: ModuleType, tmp_path: Path, forks: int, name: str
) -> None:
    whole = getattr(letters, name)
    broken = True

    def fails(node: Node, *rest: object) -> object:
        if broken and node.depth == 1:
            raise ConnectionError("the model is away")
        return whole(node, *rest)

    with letters.search(fake_planarian, sandbox, tmp_path / "t", forks=forks, **{name: fails}) as search:
        with pytest.raises(PlanarianError) as raised:
            search.run(Budget(iterations=12))
        assert raised.value.code == "search-callable"
        assert "the model is away" in raised.value.message
        assert str(tmp_path / "t") in raised.value.state
        assert "run()" in raised.value.remedy
        assert [record.id for record in fake_planarian.registry.sandboxes()] == [sandbox.id]
        broken = False
        search.run(Budget(iterations=12))
        assert len(search.tree.nodes) == 13
        held = {node.statepoint for node in search.tree.nodes.values() if node.held}
        assert held == fake_planarian.registry.holds.all().keys()


@pytest.mark.parametrize("worth", [float("nan"), float("inf"), "much"])
def test_a_value_that_is_none_is_said(
    fake_planarian: Planarian, sandbox: Sandbox, letters: ModuleType, tmp_path: Path, worth: Any
) -> None:
    with letters.search(fake_planarian, sandbox, tmp_path / "t", value=lambda node, box: worth) as search:
        with pytest.raises(PlanarianError, match="value: ValueError") as raised:
            search.run(Budget(iterations=1))
        assert raised.value.code == "search-callable"


def test_an_action_that_is_no_json_is_said(
    fake_planarian: Planarian, sandbox: Sandbox, letters: ModuleType, tmp_path: Path
) -> None:
    with letters.search(fake_planarian, sandbox, tmp_path / "t", propose=lambda node: [object()]) as search:
        with pytest.raises(PlanarianError, match="propose: TypeError") as raised:
            search.run(Budget(iterations=1))
        assert raised.value.code == "search-callable"


@pytest.mark.parametrize(
    ("forks", "point"),
    [(0, "snapshot.files"), (0, "rollback.staged"), (3, "snapshot.files"), (3, "fork.restored"), (3, "promote.begun")],
)
def test_a_full_disk_ends_the_run_with_the_next_step_and_loses_nothing(
    fake_planarian: Planarian, sandbox: Sandbox, letters: ModuleType, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, forks: int, point: str,
) -> None:  # fmt: skip
    with letters.search(fake_planarian, sandbox, tmp_path / "t", forks=forks) as search:
        search.run(Budget(iterations=4))
        before = len(search.tree.nodes)
        monkeypatch.setenv("PLANARIAN_FAULT", f"{point}=fail")
        with pytest.raises(PlanarianError) as raised:
            search.run(Budget(iterations=12))
        assert raised.value.remedy
        assert "free disk space" in raised.value.remedy
        assert "run()" in raised.value.remedy
        monkeypatch.delenv("PLANARIAN_FAULT")
        assert len(search.tree.nodes) >= before
        search.run(Budget(iterations=12))
        assert len(search.tree.nodes) == 13
        assert [record.id for record in fake_planarian.registry.sandboxes()] == [sandbox.id]
        assert {node.statepoint for node in search.tree.nodes.values() if node.held} == (
            fake_planarian.registry.holds.all().keys()
        )


def test_a_tree_that_can_not_be_saved_says_so_and_goes_on_afterwards(
    fake_planarian: Planarian, sandbox: Sandbox, letters: ModuleType, tmp_path: Path
) -> None:
    folder = tmp_path / "trees"
    folder.mkdir()
    with letters.search(fake_planarian, sandbox, folder / "t", forks=2) as search:
        search.run(Budget(iterations=2))
        saved = (folder / "t").read_text()
        (folder / "t.new").mkdir()
        with pytest.raises(PlanarianError) as raised:
            search.run(Budget(iterations=6))
        assert raised.value.code == "search-not-saved"
        assert (folder / "t").read_text() == saved
        (folder / "t.new").rmdir()
        search.run(Budget(iterations=6))
        assert len(search.tree.nodes) == 7
    assert len(json.loads((folder / "t").read_text())["nodes"]) == 7


# --- going on, and what stands in the way ---


def test_a_second_search_on_one_tree_is_refused(
    fake_planarian: Planarian, sandbox: Sandbox, letters: ModuleType, tmp_path: Path
) -> None:
    with letters.search(fake_planarian, sandbox, tmp_path / "t"):
        with pytest.raises(PlanarianError) as raised:
            letters.search(fake_planarian, sandbox, tmp_path / "t")
        assert raised.value.code == "search-busy"
    letters.search(fake_planarian, sandbox, tmp_path / "t").close()


def test_the_tree_of_another_sandbox_is_refused(
    fake_planarian: Planarian, sandbox: Sandbox, letters: ModuleType, tmp_path: Path
) -> None:
    letters.search(fake_planarian, sandbox, tmp_path / "t").close()
    other = fake_planarian.fork("@head", of=sandbox)
    with pytest.raises(ConfigurationError) as raised:
        letters.search(fake_planarian, other, tmp_path / "t")
    assert raised.value.code == "search-foreign"


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"version": 1}', "[" * 100_000, "\x00"])
def test_a_damaged_file_is_said_and_left(
    fake_planarian: Planarian, sandbox: Sandbox, letters: ModuleType, tmp_path: Path, content: str
) -> None:
    (tmp_path / "t").write_text(content)
    with pytest.raises(PlanarianError) as raised:
        letters.search(fake_planarian, sandbox, tmp_path / "t")
    assert raised.value.code == "search-unreadable"
    assert (tmp_path / "t").read_text() == content


def test_the_tree_is_not_kept_where_a_sandbox_writes(
    fake_planarian: Planarian, workspace: Path, letters: ModuleType, tmp_path: Path
) -> None:
    box = fake_planarian.create_sandbox(workspace, sandbox="directory", filesystem="copy", process="none")
    (tmp_path / "link").symlink_to(workspace / "tree")
    for path in (workspace / "tree", tmp_path / "link", tmp_path / "none" / "tree"):
        with pytest.raises(ConfigurationError) as raised:
            letters.search(fake_planarian, box, path)
        assert raised.value.code == "search-path"
    fake_planarian.remove_sandbox(box)


def test_states_that_somebody_removed_are_lost_and_the_search_goes_on_without(
    fake_planarian: Planarian, sandbox: Sandbox, letters: ModuleType, tmp_path: Path
) -> None:
    events: list[Event] = []
    with letters.search(fake_planarian, sandbox, tmp_path / "t", forks=2) as search:
        search.run(Budget(iterations=3))
        lost = search.tree.nodes[1]
    fake_planarian.release(lost.statepoint)
    fake_planarian.prune(PrunePolicy(keep_last=0, only=frozenset({lost.statepoint})))
    with letters.search(fake_planarian, sandbox, tmp_path / "t", forks=2, on_event=events.append) as search:
        search.run(Budget(iterations=8))
        assert search.tree.nodes[1].status is NodeStatus.LOST
        assert not search.tree.nodes[1].children
        root = search.tree.root.statepoint
    assert ("lost", 1) in [(event.kind, event.node) for event in events]
    fake_planarian.release(root)
    fake_planarian.snapshot(sandbox, name="later")
    fake_planarian.prune(PrunePolicy(keep_last=0, only=frozenset({root})))
    with letters.search(fake_planarian, sandbox, tmp_path / "t", forks=2) as search:
        with pytest.raises(LineageError) as raised:
            search.run(Budget(iterations=9))
        assert raised.value.code == "search-root-lost"


def test_a_sandbox_that_was_worked_in_is_not_overwritten_unasked(
    fake_planarian: Planarian, sandbox: Sandbox, letters: ModuleType, tmp_path: Path
) -> None:
    with letters.search(fake_planarian, sandbox, tmp_path / "t", forks=2) as search:
        search.run(Budget(iterations=6))
        sandbox.run(["sh", "-c", "echo mine >mine"])
        with pytest.raises(LineageError) as raised:
            search.take()
        assert raised.value.code == "search-source-moved"
        restored = search.take(force=True)
        assert not (Path(sandbox.record.spec.layer) / "mine").exists()
        assert restored.safety_id is not None
        fake_planarian.rollback(sandbox, restored.safety_id)
        assert (Path(sandbox.record.spec.layer) / "mine").read_text() == "mine\n"


def test_without_forks_what_was_there_is_kept_before_the_first_rollback(
    fake_planarian: Planarian, sandbox: Sandbox, letters: ModuleType, tmp_path: Path
) -> None:
    with letters.search(fake_planarian, sandbox, tmp_path / "t") as search:
        sandbox.run(["sh", "-c", "echo mine >mine"])
        search.run(Budget(iterations=3))
    safety = [s for s in fake_planarian.registry.statepoints(sandbox.id) if "before the rollback" in s.description]
    assert len(safety) == 1, "one for all of the search's rollbacks"
    fake_planarian.rollback(sandbox, safety[0])
    assert (Path(sandbox.record.spec.layer) / "mine").read_text() == "mine\n"


def test_a_fork_that_somebody_else_forked_stays_theirs(
    fake_planarian: Planarian, sandbox: Sandbox, letters: ModuleType, tmp_path: Path
) -> None:
    theirs: list[Sandbox] = []

    def value(node: Node, box: Sandbox) -> float:
        if not theirs:
            theirs.append(fake_planarian.fork(fake_planarian.snapshot(box, name="mine"), name="theirs"))
        return 0.5

    with letters.search(fake_planarian, sandbox, tmp_path / "t", value=value, forks=1) as search:
        search.run(Budget(iterations=4))
        assert len(search.tree.nodes) == 5
        assert _letters(theirs[0]) == "a"
        fake_planarian.remove_sandbox(theirs[0])
        search.run(Budget(iterations=5))
    assert [record.id for record in fake_planarian.registry.sandboxes()] == [sandbox.id]


# --- budgets and what is shown ---


def test_budgets_end_a_search(fake_planarian: Planarian, sandbox: Sandbox, letters: ModuleType, tmp_path: Path) -> None:
    with letters.search(fake_planarian, sandbox, tmp_path / "t", forks=2) as search:
        assert search.run(Budget(seconds=0)) is None
        assert search.run(Budget(stop=lambda tree: True)) is None
        search.run(Budget(iterations=7, width=2, depth=1))
        assert [node.id for node in search.tree.nodes.values()] == [0, 1, 2], "the tree is full"
        search.run(Budget(iterations=100, target=0.3))
        assert len(search.tree.nodes) == 3, "enough was reached before"
        for wrong in ({"iterations": -1}, {"width": 0}, {"depth": 0}, {"keep": 1}):
            with pytest.raises(ConfigurationError):
                Budget(**wrong)  # type: ignore[arg-type]  # ints all of them


def test_events_and_pictures(fake_planarian: Planarian, sandbox: Sandbox, letters: ModuleType, tmp_path: Path) -> None:
    events: list[Event] = []
    with letters.search(fake_planarian, sandbox, tmp_path / "t", forks=1, on_event=events.append) as search:
        best = search.run(Budget(iterations=3, depth=1))
        assert best is not None
        told = [(event.kind, event.node) for event in events]
        assert told == [
            ("proposed", 0), ("judged", 1), ("judged", 2), ("failed", 3), ("released", 2),
        ]  # fmt: skip
        lines = search.tree.render().split("\n")
        assert lines[0].startswith("- 0 root | visits 3")
        assert lines[1] == f"  * 1 a | value 0.333 | visits 1, mean 0.333 | {best.statepoint} | 1 right"
        assert lines[2].startswith("  - 2 b | value 0 |")
        assert "released" in lines[2]
        assert "failed | no state" in lines[3]
        assert json.loads((tmp_path / "t").read_text()) == search.tree.to_dict()
        search.end()
        with pytest.raises(LineageError) as raised:
            search.take(best)
        assert raised.value.code == "search-nothing"
        assert search.run(Budget(iterations=9)) is None, "the search is over"


def test_judgements_are_numbers_too(
    fake_planarian: Planarian, sandbox: Sandbox, letters: ModuleType, tmp_path: Path
) -> None:
    def value(node: Node, box: Sandbox) -> Judgement | float:
        return 1 if node.action == "a" else Judgement(0.2, terminal=True, text="no")

    with TreeSearch(
        fake_planarian, sandbox, propose=letters.propose, act=letters.act, value=value, path=tmp_path / "t"
    ) as search:
        search.run(Budget(iterations=2))
        first, second = search.tree.root.children
        assert (first.value, first.status) == (1.0, NodeStatus.OPEN)
        assert (second.value, second.status, second.text) == (0.2, NodeStatus.TERMINAL, "no")
