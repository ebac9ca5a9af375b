"""What goes wrong: killed processes, calls that raise, time out or are cancelled, two runs at once, other versions."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain", reason="needs planarian[langgraph]")
pytest.importorskip("langgraph.checkpoint.sqlite", reason="needs langgraph-checkpoint-sqlite")

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver

from planarian_core import Planarian
from planarian_core.testing.workloads import remove_all
from planarian_langgraph import Environments, StatepointMiddleware, StatepointSaver, sandbox_tools

Make = Callable[..., Environments]
Script = Callable[..., Any]
CONFIG: Any = {"configurable": {"thread_id": "T"}}

PROGRAM = """
import os, signal, sys
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from planarian_core import Planarian
from planarian_langgraph import Environments, StatepointMiddleware, StatepointSaver, sandbox_tools

home, workspace, saved, where = sys.argv[1:]

class Model(GenericFakeChatModel):
    def bind_tools(self, tools, **named):
        return self

def die(*arguments, **named):
    os.kill(os.getpid(), signal.SIGKILL)

class Dying(StatepointSaver):
    results = 0
    def put_writes(self, config, writes, task_id, task_path=""):
        told = any(channel == "planarian" for channel, _ in writes) and "result-2" in str(writes)
        if told and where == "before the checkpoint":
            die()
        super().put_writes(config, writes, task_id, task_path)
        if told and where == "after the writes":
            die()

def bash(number, command):
    call = {"name": "bash", "args": {"command": command}, "id": f"call-{number}"}
    return AIMessage("", tool_calls=[call])

planarian = Planarian.open(home)
def make(thread):
    return planarian.create_sandbox(workspace, sandbox="directory", filesystem="copy", process="respawn")
environments = Environments(planarian, make=make)
if where == "before the statepoint":
    original, times = environments.leave, []
    def leave(*arguments, **named):
        times.append(1)
        if len(times) == 2:
            die()
        return original(*arguments, **named)
    environments.leave = leave
model = Model(messages=iter([bash(1, "echo -n 1 >> f; echo result-1"), bash(2, "echo -n 2 >> f; echo result-2"),
                             AIMessage("done")]))
with SqliteSaver.from_conn_string(saved) as inner:
    agent = create_agent(model, tools=sandbox_tools(environments), middleware=[StatepointMiddleware(environments)],
                         checkpointer=Dying(inner, environments))
    config = {"configurable": {"thread_id": "T"}}
    agent.invoke({"messages": [HumanMessage("go")]}, config, durability="sync")
"""


def _agent(model: Any, environments: Environments, saver: Any) -> Any:
    return create_agent(
        model,
        tools=sandbox_tools(environments),
        middleware=[StatepointMiddleware(environments)],
        checkpointer=StatepointSaver(saver, environments),
    )


def _say(text: str) -> dict[str, Any]:
    return {"messages": [HumanMessage(text)]}


def _results(state: Any) -> list[str]:
    return [str(m.content) for m in state["messages"] if isinstance(m, ToolMessage)]


def _contexts(state: Any) -> list[str]:
    return [m.content for m in state["messages"] if m.name == "planarian"]


@pytest.mark.parametrize("goes_on", ["resumes", "says something new"])
@pytest.mark.parametrize("where", ["before the statepoint", "before the checkpoint", "after the writes"])
def test_the_frameworks_process_is_killed(tmp_path: Path, script: Script, where: str, goes_on: str) -> None:
    """A real ``kill -9``: the next start notices, and the environment is where the conversation is."""
    home, workspace, saved = tmp_path / "home", tmp_path / "project", tmp_path / "saved.sqlite"
    workspace.mkdir()
    command = [sys.executable, "-c", PROGRAM, str(home), str(workspace), str(saved), where]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (workspace / "f").read_text() == "12", "the second call had its effect"

    with Planarian.open(home) as planarian, SqliteSaver.from_conn_string(str(saved)) as inner:
        try:
            environments = Environments(planarian, make=lambda _: pytest.fail("there is one already"))
            if goes_on == "resumes":
                agent = _agent(script("cat f", "!done"), environments, inner)
                state = agent.invoke(None, CONFIG)
                assert _results(state) == ["result-1", "result-2", "12"], "done once"
                if where == "after the writes":
                    assert _contexts(state) == [], "nothing was lost: the checkpoint's writes name the statepoint"
                    return
            else:
                agent = _agent(script("cat f", "!done"), environments, inner)
                state = agent.invoke(_say("what is in f?"), CONFIG)
                assert _results(state)[-1] == "1", "as the conversation knows it"
            [context] = _contexts(state)
            [first, *_] = [s.metadata for s in agent.get_state_history(CONFIG) if len(_results(s.values)) == 1][::-1]
            assert f"belongs to {first['planarian_statepoint']}." in context, "which statepoint the checkpoint has"
        finally:
            remove_all(planarian)


def test_a_tool_that_raises_has_done_nothing_when_the_conversation_goes_on(make: Make, script: Script) -> None:
    from langchain_core.tools import tool

    environments = make()

    @tool
    def half() -> str:
        """Fail half-way."""
        environments.sandbox().run("echo -n half >> f")
        raise OSError("no more paper")

    model = script("echo -n 1 > f", "!done", "!unused", "cat f", "!end")
    saver = StatepointSaver(InMemorySaver(), environments)
    middleware = [StatepointMiddleware(environments)]
    agent: Any = create_agent(model, [*sandbox_tools(environments), half], middleware=middleware, checkpointer=saver)
    agent.invoke(_say("go"), CONFIG)
    from langchain_core.messages import AIMessage

    model.messages = iter([AIMessage("", tool_calls=[{"name": "half", "args": {}, "id": "h"}])])
    with pytest.raises(OSError, match="paper"):
        agent.invoke(_say("half"), CONFIG)
    model.messages = script("cat f", "!end").messages
    state = agent.invoke(_say("look"), CONFIG)
    assert _results(state)[-1] == "1"
    [context] = _contexts(state)
    assert "The tool call h was cut off" in context


def test_a_command_that_takes_too_long_is_a_result(make: Make, script: Script) -> None:
    environments = make()
    model = script("echo -n 1 > f; sleep 60", "cat f", "!done")
    tools = sandbox_tools(environments, timeout=1)
    saver = StatepointSaver(InMemorySaver(), environments)
    agent: Any = create_agent(model, tools, middleware=[StatepointMiddleware(environments)], checkpointer=saver)
    first, second = _results(agent.invoke(_say("go"), CONFIG))
    assert first == "(ended: it took longer than 1 seconds)"
    assert second == "1"


@pytest.mark.needs("linux")
def test_a_cancelled_call_ends_and_the_next_one_has_its_turn(make: Make, script: Script) -> None:
    environments = make()
    marker = f"{os.getpid()}{time.time_ns()}"
    agent = _agent(script(f"echo -n 1 > f; sleep 5{marker}", "!never"), environments, InMemorySaver())

    async def story() -> Any:
        running = asyncio.ensure_future(agent.ainvoke(_say("go"), CONFIG))
        while not _runs(f"5{marker}"):
            await asyncio.sleep(0.02)
        waiting = asyncio.ensure_future(_enter(environments))
        await asyncio.sleep(0.1)
        waiting.cancel()
        running.cancel()
        for task in (running, waiting):
            with pytest.raises(asyncio.CancelledError):
                await task
        assert not _runs(f"5{marker}"), "nothing of it goes on"
        again = _agent(script("cat f", "!done"), environments, InMemorySaver())
        return await again.ainvoke(_say("look"), CONFIG)

    state = asyncio.run(asyncio.wait_for(story(), 120))
    assert "No such file" in _results(state)[0], "what it had done is undone"


async def _enter(environments: Environments) -> None:
    """Wait for the thread's turn."""
    from planarian_langgraph.bringing import Step

    async with environments.acall(Step("T", "@other", "other"), None):
        raise AssertionError("it was another one's turn")


def _runs(argument: str) -> bool:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if argument.encode() in Path("/proc", pid, "cmdline").read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False


def test_a_thread_that_runs_twice_at_once_mixes_nothing(make: Make, script: Script) -> None:
    environments = make()
    saver = InMemorySaver()
    _agent(script("echo -n 0 > f", "!begun"), environments, saver).invoke(_say("begin"), CONFIG)
    both, states = threading.Barrier(2), {}

    def run(name: str) -> None:
        model = script(*[f"echo -n {name} >> f; cat f"] * 3, "!done")
        agent = _agent(model, environments, saver)
        both.wait()
        states[name] = agent.invoke(_say(name), CONFIG)

    threads = [threading.Thread(target=run, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    for name, state in states.items():
        seen = _results(state)[-3:]
        assert seen[0].endswith(name)
        assert seen[1:] == [seen[0] + name, seen[0] + name * 2], "each finds what its own conversation knows"
    assert set(states) == {"a", "b"}


def test_another_process_has_its_turn(make: Make) -> None:
    from planarian_core.errors import SandboxError
    from planarian_langgraph.bringing import Step

    environments = make()
    environments.planarian.with_config(lock_timeout=0.1)
    waits = Environments(environments.planarian, make=lambda _: pytest.fail("never"))
    with (
        environments.call(Step("T", "@one", "one"), None),
        pytest.raises(SandboxError, match="busy"),
        waits._turns.turn("T"),
    ):
        raise AssertionError("two at once")


WITHOUT = """
import importlib.metadata, sys
real = importlib.metadata.version
def version(name):
    if name in sys.argv[1:]:
        raise importlib.metadata.PackageNotFoundError(name)
    return real(name)
importlib.metadata.version = version
import planarian_langgraph
"""


@pytest.mark.parametrize("missing", ["langgraph", "langchain"])
def test_a_missing_framework_is_named(missing: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, missing], capture_output=True, text=True, check=False, timeout=60
    )
    assert f"{missing} isn't installed" in done.stderr
    assert "pip install 'planarian[langgraph]'" in done.stderr


def test_a_version_out_of_the_range_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from planarian_core.errors import ConfigurationError
    from planarian_core.requirements import require

    monkeypatch.setattr(importlib.metadata, "version", lambda _: "2.0.1")
    with pytest.raises(
        ConfigurationError, match=r"langgraph 2\.0\.1 is installed; at least 1\.2 and below 2 is needed"
    ):
        require("langgraph", "langgraph", at_least=(1, 2), below=(2,))
