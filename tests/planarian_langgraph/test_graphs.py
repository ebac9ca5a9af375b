"""Graphs without an agent: a ``ToolNode``, plain node functions, subgraphs and interrupts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest

pytest.importorskip("langgraph", reason="needs planarian[langgraph]")

from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt

from planarian_core.errors import ConfigurationError
from planarian_langgraph import (
    Environments,
    StatepointSaver,
    StatepointState,
    environment_node,
    sandbox_tools,
    wrap_tool_calls,
)

Make = Callable[..., Environments]
CONFIG: Any = {"configurable": {"thread_id": "T"}}


class State(StatepointState):
    messages: Annotated[list[Any], add_messages]


class Numbers(StatepointState):
    seen: Annotated[list[str], lambda one, other: [*one, *other]]


def _appending(environments: Environments, text: str) -> Any:
    def node(state: Numbers) -> dict[str, Any]:
        done = environments.sandbox().run(f"echo -n {text} >> f; cat f")
        return {"seen": [done.stdout]}

    node.__name__ = f"append_{text}"
    return environment_node(environments)(node)


def _line(environments: Environments, *texts: str) -> Any:
    graph = StateGraph(Numbers)
    for text in texts:
        graph.add_node(text, _appending(environments, text))
    for before, after in zip((START, *texts), (*texts, END), strict=True):
        graph.add_edge(before, after)
    return graph.compile(checkpointer=StatepointSaver(InMemorySaver(), environments))


def _after(graph: Any, count: int) -> Any:
    return next(s.config for s in graph.get_state_history(CONFIG) if len(s.values.get("seen", [])) == count)


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_plain_nodes_work_in_the_environment(make: Make, durability: str) -> None:
    graph = _line(make(), "a", "b", "c")
    assert graph.invoke({"seen": []}, CONFIG, durability=durability)["seen"] == ["a", "ab", "abc"]


@pytest.mark.parametrize("mode", ["rollback", "fork"])
def test_a_replay_finds_what_was_there(make: Make, mode: str) -> None:
    graph = _line(make(on_time_travel=mode), "a", "b", "c")
    graph.invoke({"seen": []}, CONFIG)
    for count in (1, 2, 0, 1):
        assert graph.invoke(None, _after(graph, count))["seen"] == ["a", "ab", "abc"]


def test_a_tool_node_of_ones_own(make: Make) -> None:
    environments = make()
    graph = StateGraph(State)
    graph.add_node("tools", ToolNode(sandbox_tools(environments), **wrap_tool_calls(environments)))
    graph.add_edge(START, "tools")
    app = graph.compile(checkpointer=StatepointSaver(InMemorySaver(), environments))

    def call(name: str, **arguments: Any) -> str:
        message = AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": f"{name}-1"}])
        state = app.invoke({"messages": [message]}, CONFIG)
        assert state["planarian"]["statepoint"]
        return str(state["messages"][-1].content)

    assert call("write_file", path="sub/g", content="one\ntwo\n") == "sub/g written"
    assert call("edit_file", path="sub/g", old="two", new="2") == "sub/g changed"
    assert "occurs 0 times" in call("edit_file", path="sub/g", old="two", new="2")
    assert call("read_file", path="sub/g", first_line=2) == "2\t2"
    assert call("bash", command="exit 3") == "(exit code 3)"


def test_a_subgraph_works_in_its_threads_environment(make: Make) -> None:
    environments = make()
    inner = StateGraph(Numbers)
    inner.add_node("x", _appending(environments, "x"))
    inner.add_node("y", _appending(environments, "y"))
    inner.add_edge(START, "x")
    inner.add_edge("x", "y")
    graph = StateGraph(Numbers)
    graph.add_node("a", _appending(environments, "a"))
    graph.add_node("sub", inner.compile())
    graph.add_node("b", _appending(environments, "b"))
    for before, after in ((START, "a"), ("a", "sub"), ("sub", "b")):
        graph.add_edge(before, after)
    app = graph.compile(checkpointer=StatepointSaver(InMemorySaver(), environments))
    assert app.invoke({"seen": []}, CONFIG)["seen"][-1] == "axyb"
    assert len(environments.planarian.registry.sandboxes()) == 1
    assert app.invoke(None, _after(app, 1))["seen"][-1] == "axyb", "and it comes back for a replay"


def test_a_subgraph_that_knows_no_environment_by_itself(make: Make) -> None:
    """A state without the channel: whatever the thread's environment is, is meant."""
    environments = make()

    class Bare(TypedDict):
        seen: list[str]

    def bare(state: Bare) -> dict[str, Any]:
        return {"seen": [environments.sandbox().run("cat f").stdout]}

    def outer(state: Numbers) -> dict[str, Any]:
        graph = StateGraph(Bare)
        graph.add_node("bare", environment_node(environments)(bare))
        graph.add_edge(START, "bare")
        return {"seen": graph.compile().invoke({"seen": []})["seen"]}

    graph = StateGraph(Numbers)
    graph.add_node("a", _appending(environments, "a"))
    graph.add_node("outer", environment_node(environments)(outer))
    graph.add_edge(START, "a")
    graph.add_edge("a", "outer")
    app = graph.compile(checkpointer=StatepointSaver(InMemorySaver(), environments))
    assert app.invoke({"seen": []}, CONFIG)["seen"] == ["a", "a"]


def test_after_an_interrupt_a_node_begins_where_it_began(make: Make) -> None:
    environments = make()

    def node(state: Numbers) -> dict[str, Any]:
        environments.sandbox().run("echo -n x >> f")
        answer = interrupt("may I?")
        return {"seen": [environments.sandbox().run("cat f").stdout + answer]}

    graph = StateGraph(Numbers)
    graph.add_node("a", _appending(environments, "a"))
    graph.add_node("asks", environment_node(environments)(node))
    graph.add_edge(START, "a")
    graph.add_edge("a", "asks")
    app = graph.compile(checkpointer=StatepointSaver(InMemorySaver(), environments))
    assert app.invoke({"seen": []}, CONFIG)["__interrupt__"]
    assert app.invoke(Command(resume="!"), CONFIG)["seen"] == ["a", "ax!"], "what it did before asking isn't done twice"


def test_without_a_wrapper_a_tool_says_what_is_missing(make: Make) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make().sandbox()
    assert "StatepointMiddleware" in caught.value.remedy
