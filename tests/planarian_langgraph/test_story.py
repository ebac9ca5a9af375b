"""The whole story: an agent acts, breaks something, is sent back by LangGraph's own time travel; files, memory and rows
agree; a fork goes another way, and the two are compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain", reason="needs planarian[langgraph]")
pytest.importorskip("apsw", reason="needs planarian[sql]")

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver

from planarian_core import Planarian, Sandbox
from planarian_core.testing import served_notes
from planarian_core.testing.served_notes import ServedNotes
from planarian_core.testing.workloads import ask_counter, remove_all, start_counter
from planarian_langgraph import Environments, StatepointMiddleware, StatepointSaver, remote_tools, sandbox_tools

CONFIG: Any = {"configurable": {"thread_id": "T"}}
GOOD = "INSERT INTO notes (id, text) VALUES (1, 'milk'), (2, 'bread')"
TEA = "INSERT INTO notes (id, text) VALUES (3, 'tea')"


def _calls(*turns: Any) -> list[AIMessage]:
    """``turns``: words, or calls as ``(tool, argument)`` in one message."""
    said = []
    for number, turn in enumerate(turns):
        calls = [
            {"name": name, "args": {"command" if name == "bash" else "sql": text}, "id": f"call-{number}-{index}"}
            for index, (name, text) in enumerate([] if isinstance(turn, str) else turn)
        ]
        said.append(AIMessage(turn if isinstance(turn, str) else "", tool_calls=calls))
    return said


@pytest.mark.needs("namespaces", "criu")
@pytest.mark.parametrize("kind", served_notes.KINDS)
def test_files_memory_and_rows_go_back_by_time_travel(
    tmp_path: Path, script: Callable[..., Any], kind: str, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "project").mkdir()
    with served_notes.serve(kind, tmp_path, request) as notes, Planarian.open(notes.home) as planarian:
        try:
            _story(planarian, tmp_path / "project", notes, script)
        finally:
            remove_all(planarian)


def _story(planarian: Planarian, project: Path, notes: ServedNotes, script: Callable[..., Any]) -> None:
    def make(_: str) -> Sandbox:
        sandbox = planarian.create_sandbox(project, sandbox="namespace", filesystem="copy", process="criu")
        start_counter(sandbox, "counter")
        return sandbox

    count = "python3 ask.py"
    (project / "ask.py").write_text(
        "import socket, sys\nclient = socket.socket(socket.AF_UNIX)\nclient.connect('counter')\n"
        "client.sendall(b'add')\nprint(client.recv(16).decode())\n"
    )
    model = script()
    turns = _calls(
        [
            ("bash", f"echo -n good > f; {count}"),
            ("execute_sql", "INSERT INTO notes (id, text) VALUES (1, 'milk'), (2, 'bread')"),
        ],
        [("bash", f"echo -n bad > f; {count}"), ("execute_sql", "DELETE FROM notes")],
        "broken",
        [("bash", f"echo -n better > f; {count}"), ("execute_sql", "SELECT text FROM notes ORDER BY id")],
        "mended",
        [
            ("bash", f"cat f; echo -n other > f; {count}"),
            ("execute_sql", "INSERT INTO notes (id, text) VALUES (3, 'tea')"),
        ],
        "otherwise",
    )
    model.messages = iter(turns)
    saver = InMemorySaver()

    def agent(on_time_travel: Any) -> Any:
        chosen = Environments(planarian, make=make, on_time_travel=on_time_travel)
        tools = [*sandbox_tools(chosen), *remote_tools(chosen, "notes")]
        middleware = [StatepointMiddleware(chosen)]
        return create_agent(model, tools=tools, middleware=middleware, checkpointer=StatepointSaver(saver, chosen))

    def seen(sandbox: Sandbox) -> tuple[str, int, list[str]]:
        """File, memory and rows."""
        return sandbox.run("cat f").stdout, ask_counter(sandbox, "counter", "get"), notes.rows(sandbox)

    first = agent("rollback")
    first.invoke({"messages": [HumanMessage("tidy the notes")]}, CONFIG)
    sandbox = planarian.sandbox()
    assert seen(sandbox) == ("bad", 2, [])

    good = next(s.config for s in first.get_state_history(CONFIG) if _results(s) == 2 and s.next == ("model",))
    assert seen(sandbox) == ("bad", 2, []), "looking at history moves nothing"
    state = first.invoke(None, good)
    assert seen(sandbox) == ("better", 2, ["milk", "bread"]), "they were as they had been, and went on from there"
    assert "milk" in _last_results(state)[1]
    [context] = [message.content for message in state["messages"] if message.name == "planarian"]
    assert "Remote effects undone" in context
    assert "of this conversation belongs to sp-" in context

    state = agent("fork").invoke(None, good)
    fork = planarian.sandbox(state["planarian"]["sandbox"])
    assert fork.id != sandbox.id
    assert _last_results(state)[0] == "good2", "the fork began with the file and the memory of that moment"
    assert fork.run("cat f").stdout == "other"
    assert seen(sandbox) == ("better", 2, ["milk", "bread"]), "the other line of work is as it was"
    if notes.branches:
        assert notes.rows(fork) == ["milk", "bread", "tea"], "with a branch of its own"
    else:
        assert "fenced off" in _last_results(state)[1], "the model reads why it can't write there"
    changed = planarian.diff(planarian.snapshot(sandbox), planarian.snapshot(fork))
    assert "f" in [Path(change.path).name for change in changed.files]


def _results(snapshot: Any) -> int:
    return len([m for m in snapshot.values.get("messages", []) if isinstance(m, ToolMessage)])


def _last_results(state: Any) -> list[str]:
    """Of the last two calls, in the order in which they were asked for."""
    return [str(message.content) for message in state["messages"] if isinstance(message, ToolMessage)][-2:]
