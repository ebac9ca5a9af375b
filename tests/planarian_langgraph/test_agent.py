"""Agents of langchain: tool calls in the thread's environment, and LangGraph's gestures that bring it along."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain", reason="needs planarian[langgraph]")

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver

from planarian_core import Planarian
from planarian_langgraph import Environments, StatepointMiddleware, StatepointSaver, sandbox_tools

Make = Callable[..., Environments]
Script = Callable[..., Any]
CONFIG: Any = {"configurable": {"thread_id": "T"}}
DURABILITIES = ["sync", "async", "exit"]


def _agent(model: Any, environments: Environments, saver: Any = None) -> Any:
    return create_agent(
        model,
        tools=sandbox_tools(environments),
        middleware=[StatepointMiddleware(environments)],
        checkpointer=StatepointSaver(saver or InMemorySaver(), environments),
    )


def _text(environments: Environments, sandbox: str = "") -> str:
    """What is in the file ``f`` of the thread's current sandbox."""
    thread = environments.store.find("T")
    assert thread is not None
    record = environments.planarian.registry.sandbox(sandbox or thread.current)
    file = Path(record.spec.workspace, "f")
    return file.read_text() if file.exists() else ""


def _say(text: str) -> dict[str, Any]:
    return {"messages": [HumanMessage(text)]}


def _contexts(state: Any) -> list[str]:
    return [m.content for m in state["messages"] if m.name == "planarian"]


def _checkpoint(agent: Any, text: str) -> Any:
    """The config of the newest checkpoint whose last message is this tool output, before the next model call."""
    for snapshot in agent.get_state_history(CONFIG):
        last = (snapshot.values.get("messages") or [None])[-1]
        if isinstance(last, ToolMessage) and last.content == text and snapshot.next:
            return snapshot.config
    raise AssertionError(f"no checkpoint after {text!r}")


def _run(agent: Any, given: Any, config: Any = None, **options: Any) -> Any:
    return agent.invoke(given, config or CONFIG, **options)


@pytest.mark.parametrize("durability", DURABILITIES)
def test_tool_calls_run_in_the_sandbox_and_leave_statepoints(make: Make, script: Script, durability: str) -> None:
    environments = make()
    agent = _agent(script("echo -n 1 > f; echo one", "echo -n 2 > f; echo two", "!done"), environments)
    state = _run(agent, _say("go"), durability=durability)
    assert [m.content for m in state["messages"] if isinstance(m, ToolMessage)] == ["one", "two"]
    assert _text(environments) == "2"
    mark = state["planarian"]
    points = environments.planarian.registry.statepoints(mark["sandbox"])
    assert [p.description for p in points][1:] == [
        "after bash(command='echo -n 1 > f; echo one')",
        "after bash(command='echo -n 2 > f; echo two')",
    ]
    assert mark["statepoint"] == points[-1].id
    found = list(agent.get_state_history(CONFIG, filter={"planarian_statepoint": points[-1].id}))
    assert found, "a checkpoint's metadata names its statepoint"


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_time_travel_brings_the_environment_back(make: Make, script: Script, durability: str) -> None:
    environments = make()
    model = script("echo -n 1 > f; echo one", "echo -n 2 > f; echo two", "!done", "cat f; echo -n 3 > f", "!again")
    agent = _agent(model, environments)
    _run(agent, _say("go"), durability=durability)
    old = _checkpoint(agent, "one")
    state = _run(agent, None, old, durability=durability)
    assert [m.content for m in state["messages"] if isinstance(m, ToolMessage)] == ["one", "1"], "as it was then"
    assert _text(environments) == "3"
    assert len(_contexts(state)) == 1
    assert "was rolled back to statepoint" in _contexts(state)[0]
    told = [any("was rolled back" in str(m.content) for m in given) for given in model.seen]
    assert told == [False, False, False, True, True], "the model is told before it goes on"


def test_reading_history_moves_nothing(make: Make, script: Script) -> None:
    environments = make()
    agent = _agent(script("echo -n 1 > f; echo one", "echo -n 2 > f; echo two", "!done"), environments)
    _run(agent, _say("go"))
    old = _checkpoint(agent, "one")
    agent.get_state(old)
    list(agent.get_state_history(CONFIG))
    assert _text(environments) == "2"


def test_time_travel_may_fork_instead(make: Make, script: Script) -> None:
    environments = make(on_time_travel="fork")
    model = script(
        "echo -n 1 > f; echo one", "echo -n 2 > f; echo two", "!done", "cat f; echo -n 3 > f", "!a", "cat f", "!b"
    )
    agent = _agent(model, environments)
    first = _run(agent, _say("go"))
    tip = agent.get_state(CONFIG).config
    state = _run(agent, None, _checkpoint(agent, "one"))
    assert [m.content for m in state["messages"] if isinstance(m, ToolMessage)] == ["one", "1"]
    assert "is a fork of" in _contexts(state)[0]
    assert state["planarian"]["sandbox"] != first["planarian"]["sandbox"]
    assert (_text(environments), _text(environments, first["planarian"]["sandbox"])) == ("3", "2")
    state = _run(agent, _say("and?"), tip)
    assert [m.content for m in state["messages"] if isinstance(m, ToolMessage)][-1] == "2", "the first line goes on"
    assert _contexts(state) == []


def test_a_state_updated_in_the_past_goes_on_from_there(make: Make, script: Script) -> None:
    environments = make()
    model = script("echo -n 1 > f; echo one", "echo -n 2 > f; echo two", "!done", "cat f", "!end")
    agent = _agent(model, environments)
    _run(agent, _say("go"))
    config = agent.update_state(_checkpoint(agent, "one"), _say("do it otherwise"))
    assert _text(environments) == "2", "an update alone moves nothing"
    state = _run(agent, None, config)
    assert [m.content for m in state["messages"] if isinstance(m, ToolMessage)] == ["one", "1"]


def test_parallel_calls_are_one_step(make: Make, script: Script) -> None:
    environments = make()
    model = script(["echo -n a >> f", "echo -n b >> f", "echo -n c >> f"], "cat f", "!done", "cat f", "!again")
    agent = _agent(model, environments)
    state = _run(agent, _say("go"))
    assert sorted(_text(environments)) == ["a", "b", "c"], "none of them was rolled back by another"
    assert _contexts(state) == []
    environments.planarian.sandbox().run("echo -n x > f")
    for snapshot in agent.get_state_history(CONFIG):
        if snapshot.next and len([m for m in snapshot.values.get("messages", []) if isinstance(m, ToolMessage)]) == 3:
            state = _run(agent, None, snapshot.config)
            break
    assert sorted(state["messages"][-2].content) == ["a", "b", "c"], "and they come back together"


def test_a_human_may_work_in_the_sandbox_between_turns(make: Make, script: Script) -> None:
    environments = make()
    agent = _agent(script("echo -n 1 > f", "!done", "cat f", "!end"), environments)
    _run(agent, _say("go"))
    environments.planarian.sandbox().run("echo -n by hand > f")
    state = _run(agent, _say("go on"))
    assert state["messages"][-2].content == "by hand"
    assert _contexts(state) == []


def test_a_call_that_failed_half_way_is_made_again_from_where_it_began(make: Make, script: Script) -> None:
    environments = make()
    agent = _agent(script("echo -n x >> f", "!done"), environments)
    failing = [True]
    original = environments.leave

    def leave(*arguments: Any, **named: Any) -> Any:
        if failing.pop() if failing else False:
            raise OSError("the process dies here")
        return original(*arguments, **named)

    environments.leave = leave  # type: ignore[method-assign]  # a crash between the tool and its mark
    with pytest.raises(OSError, match="dies"):
        _run(agent, _say("go"))
    _run(agent, None)
    assert _text(environments) == "x", "not twice"


def test_a_copied_thread_has_an_environment_of_its_own(make: Make, script: Script) -> None:
    environments = make()
    saver = InMemorySaver()
    agent = _agent(script("echo -n 1 > f", "!done", "echo -n 2 > f", "!end"), environments, saver)
    _run(agent, _say("go"))
    environments.copy("T", "U")
    target = environments.store.find("U")
    assert target is not None
    _run(agent, _say("on"))
    assert (_text(environments), _text(environments, target.current)) == ("2", "1")


def test_a_deleted_thread_takes_its_environment_along(planarian: Planarian, make: Make, script: Script) -> None:
    environments = make()
    agent = _agent(script("echo -n 1 > f", "!done", "cat f", "!fresh"), environments)
    _run(agent, _say("go"))
    agent.checkpointer.delete_thread("T")
    assert planarian.registry.sandboxes() == []
    state = _run(agent, _say("anew"))
    assert "No such file" in state["messages"][-2].content, "the same name begins with a fresh environment"


def test_a_thread_whose_checkpoints_are_gone_begins_with_the_first_environment(make: Make, script: Script) -> None:
    environments = make()
    _run(_agent(script("echo -n 1 > f", "!done"), environments), _say("go"))
    state = _run(_agent(script("cat f", "!done"), environments), _say("go"))
    assert "No such file" in state["messages"][-2].content


async def _arun(agent: Any, given: Any, config: Any = None) -> Any:
    return await agent.ainvoke(given, config or CONFIG)


def test_the_same_holds_for_coroutines(make: Make, script: Script) -> None:
    import asyncio

    environments = make()
    model = script(["echo -n a >> f", "echo -n b >> f"], "echo -n 2 > f; echo two", "!done", "cat f", "!again")
    agent = _agent(model, environments)

    async def story() -> Any:
        await _arun(agent, _say("go"))
        async for snapshot in agent.aget_state_history(CONFIG):
            results = [m for m in snapshot.values["messages"] if isinstance(m, ToolMessage)]
            if snapshot.next == ("model",) and len(results) == 2:
                return await _arun(agent, None, snapshot.config)

    state = asyncio.run(story())
    assert sorted(state["messages"][-2].content) == ["a", "b"]
    assert len(_contexts(state)) == 1
