"""The whole story with a service: actions change files, a server's memory and rows, and some break them; wherever the
search goes the three agree, and in the end they are those of the best node.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from planarian_core import Planarian, Sandbox
from planarian_core.errors import PlanarianError
from planarian_core.testing import served_notes
from planarian_core.testing.served_notes import TOOL, ServedNotes
from planarian_core.testing.workloads import ask_counter, remove_all, start_counter
from planarian_swesearch import Budget, CallFailed, Judgement, Node, NodeStatus, TreeSearch, call_tool

WORD = ["a", "b", "c"]
Action = dict[str, str]
State = tuple[str, int, list[str]]
"""A file, a count in a server's memory, and rows; each action that goes well adds its letter to all three."""

BREAK = {"do": "break"}
LATE = {"do": "fail when everything is changed"}
WRONG = {"do": "add", "letter": "z"}
FORBIDDEN = {"do": "ask for what the service refuses"}


def _propose(node: Node) -> list[Action]:
    """Those that break something first, so that they are tried before the right one; from the root a wrong one too."""
    right = {"do": "add", "letter": WORD[node.depth]}
    return [BREAK, right] if node.depth else [FORBIDDEN, LATE, BREAK, WRONG, right]


def _sql(sandbox: Sandbox, statement: str) -> str:
    return call_tool(sandbox, "notes", TOOL, {"sql": statement})


def _write(sandbox: Sandbox, letter: str, number: int) -> None:
    sandbox.run(["sh", "-c", f"printf {letter} >>word"], timeout=60)
    ask_counter(sandbox, "counter", "add", tries=50)
    _sql(sandbox, f"INSERT INTO notes (id, text) VALUES ({number}, '{letter}')")  # noqa: S608  # ours


def _act(sandbox: Sandbox, action: Action) -> str:
    seen = sandbox.run("cat word").stdout
    if action == FORBIDDEN:
        return _sql(sandbox, "VACUUM")
    if action == BREAK:
        sandbox.run("printf broken >word")
        return _sql(sandbox, "DELETE FROM notes WHERE id >= 0")
    _write(sandbox, action.get("letter", "x"), len(seen) + 1)
    if action == LATE:
        raise ValueError("too late to change nothing")
    return sandbox.run("cat word").stdout


def _rows(sandbox: Sandbox) -> list[str]:
    """As a tool shows them to a model."""
    return re.findall(r'"text":\s*"(\w)"', _sql(sandbox, "SELECT text FROM notes ORDER BY id"))


def _value(node: Node, sandbox: Sandbox) -> Judgement:
    word, rows = sandbox.run("cat word").stdout, _rows(sandbox)
    if list(word) != rows:
        return Judgement(0.0, terminal=True, text="file and rows don't agree")
    right = sum(found == wanted for found, wanted in zip(rows, WORD, strict=False))
    return Judgement(right / len(WORD), text=f"rows {rows}")


class Story:
    """A search for :data:`WORD`, and what was seen in each sandbox before each action."""

    def __init__(self, planarian: Planarian, notes: ServedNotes, folder: Path, forks: int) -> None:
        self.planarian, self.notes, self.path, self.forks = planarian, notes, folder / "tree.json", forks
        (folder / "project").mkdir()
        self.sandbox = planarian.create_sandbox(
            folder / "project", sandbox="namespace", filesystem="copy", process="criu"
        )
        start_counter(self.sandbox, "counter")
        self.sandbox.run("touch word")
        self.begun: list[State] = []
        self.ended: dict[int, State] = {}
        self.worked_in: set[str] = set()
        self._guard = threading.Lock()

    def seen(self, sandbox: Sandbox) -> State:
        """The rows read past Planarian."""
        word, count = sandbox.run("cat word").stdout, ask_counter(sandbox, "counter", "get", tries=50)
        with self._guard:
            return word, count, self.notes.rows(sandbox)

    def _act(self, sandbox: Sandbox, action: Action) -> str:
        self.begun.append(self.seen(sandbox))
        self.worked_in.add(sandbox.id)
        return _act(sandbox, action)

    def _value(self, node: Node, sandbox: Sandbox) -> Judgement:
        self.ended[node.id] = self.seen(sandbox)
        return _value(node, sandbox)

    @contextmanager
    def search(self) -> Iterator[TreeSearch]:
        with TreeSearch(
            self.planarian, self.sandbox, propose=_propose, act=self._act, value=self._value, path=self.path,
            forks=self.forks, exploration=0.3,
        ) as search:  # fmt: skip
            yield search

    def run(self) -> Node:
        """Search to the end, in two parts as after a restart. All that was seen on the way is as it has to be."""
        with self.search() as search:
            search.run(Budget(iterations=4, width=5))
        with self.search() as search:
            best = search.run(Budget(iterations=40, width=5, target=1.0))
            assert best is not None, search.tree.render()
            assert best.actions() == [{"do": "add", "letter": letter} for letter in WORD], search.tree.render()
            assert len(self.ended) > len(WORD)
            for node_id, state in self.ended.items():
                assert state == _expected(search.tree.nodes[node_id]), node_id
            assert all(state == _written(state[0]) for state in self.begun), "each action began with a node's state"
            nodes = [node for node in search.tree.nodes.values() if node.parent]
            ended = {node.action["do"]: node.status for node in nodes if node.status is not NodeStatus.OPEN}
            assert ended == {
                FORBIDDEN["do"]: NodeStatus.FAILED,
                LATE["do"]: NodeStatus.FAILED,
                BREAK["do"]: NodeStatus.TERMINAL,
            }
            return best


def _written(word: str) -> State:
    return word, len(word), list(word)


def _expected(node: Node) -> State:
    """What a node's state is, by its actions alone."""
    letters = "".join(action.get("letter", "") for action in node.actions())
    return ("broken", len(letters), []) if node.action == BREAK else _written(letters)


@contextmanager
def _story(kind: str, folder: Path, request: pytest.FixtureRequest, forks: int) -> Iterator[Story]:
    with served_notes.serve(kind, folder, request) as notes, Planarian.open(notes.home) as planarian:
        try:
            yield Story(planarian, notes, folder, forks)
        finally:
            remove_all(planarian)


@pytest.mark.needs("namespaces", "criu", "postgresql")
def test_rows_go_back_with_files_and_memory_by_rollback(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with _story("postgresql", tmp_path, request, forks=0) as story:
        story.run()
        assert story.worked_in == {story.sandbox.id}
        with story.search() as search:
            search.take(search.tree.root)
            assert story.seen(story.sandbox) == _written("")
            said = story.planarian.ledger(story.sandbox, limit=20_000).to_markdown(20_000)
            assert "file and rows don't agree" in said
            assert "refused" in said
            restored = search.take()
            assert len(restored.remote_redone) == 3, "the best node's rows are made again"
            search.end()
        assert story.seen(story.sandbox) == _written("abc")


@pytest.mark.needs("namespaces", "criu", "doltlite")
def test_each_fork_has_rows_of_its_own_and_those_of_the_best_are_taken(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with _story("doltlite", tmp_path, request, forks=2) as story:
        planarian, sandbox = story.planarian, story.sandbox
        best = story.run()
        assert sandbox.id not in story.worked_in
        assert len(story.worked_in) == len(story.begun), "each action in a fork of its own"
        assert story.seen(sandbox) == _written(""), "the source isn't touched"
        compared = planarian.diff("@head", best.statepoint, of=sandbox)
        assert "word" in [Path(change.path).name for change in compared.files]
        fork = planarian.fork(best.statepoint, of=sandbox)
        assert story.seen(fork) == _written("abc")
        planarian.remove_sandbox(fork)
        with story.search() as search:
            search.take(force=True)  # it was asked, above
            search.end()
        assert story.seen(sandbox) == _written("abc")
        assert [record.id for record in planarian.registry.sandboxes()] == [sandbox.id]


def test_what_a_fork_may_not_call_is_a_failed_action(
    tmp_path: Path, workspace: Path, request: pytest.FixtureRequest
) -> None:
    with served_notes.serve("sqlite", tmp_path, request) as notes, Planarian.open(notes.home) as planarian:
        try:
            sandbox = planarian.create_sandbox(workspace, sandbox="directory", filesystem="copy", process="none")
            with TreeSearch(
                planarian, sandbox, propose=lambda node: ["INSERT INTO notes (text) VALUES ('x')"], act=_sql,
                value=lambda node, box: 1.0, path=tmp_path / "t", forks=1,
            ) as search:  # fmt: skip
                assert search.run(Budget(iterations=1)) is None
                [node] = search.tree.root.children
            assert node.status is NodeStatus.FAILED
            assert "CallFailed: notes is fenced off" in node.observation
            assert notes.rows(sandbox) == []
        finally:
            remove_all(planarian)


@pytest.mark.needs("doltlite")
def test_a_service_that_can_t_be_reached_stops_the_search_which_goes_on_later(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "project").mkdir()
    with served_notes.serve("doltlite", tmp_path, request) as notes, Planarian.open(notes.home) as planarian:
        try:
            sandbox = planarian.create_sandbox(
                tmp_path / "project", sandbox="directory", filesystem="copy", process="none"
            )
            with TreeSearch(
                planarian, sandbox, propose=lambda node: ["INSERT INTO notes (text) VALUES ('x')"], act=_sql,
                value=lambda node, box: 1.0, path=tmp_path / "t", forks=1,
            ) as search:  # fmt: skip
                away = (tmp_path / "notes.db").rename(tmp_path / "away.db")
                with pytest.raises(PlanarianError) as caught:
                    search.run(Budget(iterations=1))
                assert caught.value.code == "service-unreachable"
                assert "it goes on" in caught.value.remedy
                away.rename(tmp_path / "notes.db")
                assert search.run(Budget(iterations=1)) is not None
                search.take()
            assert notes.rows(sandbox) == ["x"]
        finally:
            remove_all(planarian)


def test_a_tool_that_answers_with_an_error_says_why(
    tmp_path: Path, workspace: Path, request: pytest.FixtureRequest
) -> None:
    with served_notes.serve("sqlite", tmp_path, request) as notes, Planarian.open(notes.home) as planarian:
        try:
            sandbox = planarian.create_sandbox(workspace, sandbox="directory", filesystem="copy", process="none")
            with pytest.raises(CallFailed, match="no such table"):
                _sql(sandbox, "INSERT INTO nowhere (text) VALUES ('x')")
            with pytest.raises(CallFailed, match="refused"):
                _sql(sandbox, "VACUUM")
        finally:
            remove_all(planarian)
