"""The whole story on real backends: a server counts in memory; wrong actions break it; the best branch is taken."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from planarian_core import Planarian, Sandbox
from planarian_core.testing.workloads import ask_counter, remove_all, start_counter
from planarian_swesearch import Budget, Judgement, Node, NodeStatus, TreeSearch

SOCKET = "counter"
ADD = "add"
KILL = "kill -KILL $(cat pid)"
SPOIL = "rm -f log; echo spoilt >spoilt"
HANG = "sleep 1000"


def _propose(node: Node) -> list[str]:
    return [KILL, SPOIL, ADD] if node.depth else [HANG, SPOIL, ADD]


def _act(sandbox: Sandbox, action: str) -> object:
    if action == ADD:
        count = ask_counter(sandbox, SOCKET, "add", tries=50)
        return sandbox.run(["sh", "-c", f"echo {count} >>log; cat log"], timeout=60)
    return sandbox.run(action, timeout=1 if action == HANG else 60)


def _value(node: Node, sandbox: Sandbox) -> Judgement:
    """Worth as many thirds as the server has counted, as long as it answers and the log says the same."""
    if sandbox.run("test -e spoilt").exit_code == 0:
        return Judgement(0.0, terminal=True, text="the log is spoilt")
    if sandbox.run("kill -0 $(cat pid)").exit_code != 0:
        return Judgement(0.0, terminal=True, text="the server is gone")
    return Judgement(ask_counter(sandbox, SOCKET, "get", tries=50) / 3, text="the server answers")


@pytest.mark.needs("namespaces", "criu")
@pytest.mark.parametrize("forks", [0, 2])
def test_the_branch_in_which_the_server_lives_is_taken(tmp_path: Path, workspace: Path, forks: int) -> None:
    sandboxes: set[str] = set()
    guard = threading.Lock()

    def act(sandbox: Sandbox, action: str) -> object:
        with guard:
            sandboxes.add(sandbox.id)
        return _act(sandbox, action)

    with Planarian.open(tmp_path / "home") as planarian:
        try:
            sandbox = planarian.create_sandbox(workspace, sandbox="namespace", filesystem="copy", process="criu")
            start_counter(sandbox, SOCKET)
            sandbox.run("pgrep -f counter | head -n 1 >pid")
            with TreeSearch(
                planarian, sandbox, propose=_propose, act=act, value=_value, path=tmp_path / "t", forks=forks
            ) as search:
                search.run(Budget(iterations=4, depth=4))
            with TreeSearch(
                planarian, sandbox, propose=_propose, act=act, value=_value, path=tmp_path / "t", forks=forks
            ) as search:
                best = search.run(Budget(iterations=30, depth=4, target=1.0))
                assert best is not None
                assert best.actions() == [ADD, ADD, ADD], search.tree.render()
                failed = [node for node in search.tree.nodes.values() if node.status is NodeStatus.FAILED]
                assert [node.action for node in failed] == [HANG]
                assert (sandbox.id in sandboxes) == (forks == 0)
                if forks:
                    assert ask_counter(sandbox, SOCKET, "get") == 0, "the source isn't touched"
                    assert sandbox.run("cat log").exit_code != 0
                search.take(best, force=forks > 0)  # it was asked, above
                said = planarian.ledger(sandbox, limit=20_000).to_markdown(20_000)
                search.end()
            assert ask_counter(sandbox, SOCKET, "get") == 3, "memory, too, is that of the best branch"
            assert sandbox.run("cat log").stdout == "1\n2\n3\n"
            assert sandbox.run("test -e spoilt").exit_code != 0
            assert "the log is spoilt" in said
            assert f"{HANG} failed" in said
            assert "outcome, succeeded: add is worth 1" in said
            assert [record.id for record in planarian.registry.sandboxes()] == [sandbox.id]
        finally:
            remove_all(planarian)


def test_the_search_works_without_isolation(tmp_path: Path, workspace: Path) -> None:
    """``directory`` and ``respawn``: files and processes, memory apart."""
    with Planarian.open(tmp_path / "home") as planarian:
        try:
            sandbox = planarian.create_sandbox(workspace, sandbox="directory", filesystem="copy", process="respawn")

            def value(node: Node, box: Sandbox) -> float:
                return len(box.run(["cat", "word"]).stdout) / 2

            with TreeSearch(
                planarian, sandbox, propose=lambda node: ["printf a >>word", "exit 3"], value=value,
                path=tmp_path / "t", forks=2,
            ) as search:  # fmt: skip
                best = search.run(Budget(iterations=12, target=1.0))
                assert best is not None
                assert not (workspace / "word").exists()
                assert any(node.observation == "exit code 3\n" for node in search.tree.nodes.values())
                search.take(best)
            assert (workspace / "word").read_text() == "aa"
        finally:
            remove_all(planarian)
