"""Teams whose saved states hold their environment: files and processes go back with the messages."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("autogen_agentchat", reason="needs planarian[autogen]")

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import CancellationToken
from autogen_core.models import LLMMessage

from planarian_autogen import Environment, SandboxWorkbench, load_state, save_state
from planarian_core import Planarian
from planarian_core.errors import ConfigurationError, LineageError
from planarian_core.testing.workloads import ask_counter, start_counter

Run = Callable[[Any], Any]


def _agent(model: Any, environment: Environment, name: str = "coder", **options: Any) -> AssistantAgent:
    return AssistantAgent(name, model_client=model, workbench=SandboxWorkbench(environment), **options)


def _team(*agents: AssistantAgent) -> RoundRobinGroupChat:
    return RoundRobinGroupChat(list(agents), max_turns=len(agents))


async def _messages(agent: AssistantAgent) -> list[LLMMessage]:
    return await agent.model_context.get_messages()


async def _say(team: RoundRobinGroupChat, text: str) -> str:
    return str((await team.run(task=text)).messages[-1].to_text())


def _tasks(environment: Environment) -> tuple[int, ...]:
    """Host pids of what runs in the sandbox."""
    record = environment.sandbox.record
    assert record.live is not None
    return environment.planarian.plugins.sandbox(record.spec.backend).tasks(record.spec, record.live)


def test_a_team_goes_on_wrongly_and_is_loaded(
    environment: Environment, run: Run, script: Callable[..., Any], bash: Callable[[str], Any]
) -> None:
    def team(*turns: Any) -> tuple[RoundRobinGroupChat, AssistantAgent]:
        agent = _agent(script(*turns), environment)
        return _team(agent), agent

    async def story() -> None:
        first, _ = team(bash("echo -n good > f"), bash("rm f; echo -n wrong > g"))
        sandbox = await environment.start()
        start_counter(sandbox, "counter")
        assert ask_counter(sandbox, "counter", "get") == 0
        await _say(first, "make it")
        saved = json.loads(json.dumps(await save_state(first, environment)))
        await _say(first, "and now?")
        for pid in _tasks(environment):
            os.kill(pid, signal.SIGKILL)
        assert not Path(sandbox.workspace, "f").exists()

        second, agent = team(bash("cat f"))
        restored = await load_state(second, environment, saved)
        assert restored is not None
        assert restored.statepoint.id == saved["planarian"]["statepoint"]
        assert Path(sandbox.workspace, "f").read_text() == "good"
        assert not Path(sandbox.workspace, "g").exists()
        assert ask_counter(sandbox, "counter", "get", tries=100) == 0, "the server runs again"
        told = (await _messages(agent))[-1]
        assert "was rolled back to statepoint" in str(told.content)
        assert told.type == "UserMessage"
        assert await _say(second, "go on") == "good", "told once, and not again with the tool's result"

    run(story())


def test_agent_chat_can_load_such_a_state_by_itself(
    environment: Environment, run: Run, script: Callable[..., Any], bash: Callable[[str], Any]
) -> None:
    async def story() -> None:
        first, second = _agent(script(bash("echo 1")), environment), _agent(script("hi"), environment)
        await _say(_team(first), "go")
        saved = await save_state(_team(first), environment)
        await _team(second).load_state(saved)

    run(story())


def test_each_agent_of_a_team_is_told_but_those_that_never_spoke(
    environment: Environment, run: Run, script: Callable[..., Any], bash: Callable[[str], Any]
) -> None:
    async def story() -> None:
        agents = [
            _agent(script(bash("echo 1"), bash("echo 2")), environment),
            _agent(script("a word", "another"), environment, "critic"),
        ]
        saved = await save_state(_team(*agents), environment)
        await load_state(_team(*agents), environment, saved)
        assert [len(await _messages(agent)) for agent in agents] == [0, 0]
        await _say(_team(*agents), "go")
        saved = await save_state(_team(*agents), environment)
        await environment.run("touch f")
        await load_state(_team(*agents), environment, saved)
        for agent in agents:
            assert "was rolled back" in str((await _messages(agent))[-1].content)
        saved = await save_state(_team(*agents), environment)
        assert await load_state(_team(*agents), environment, saved) is None, "nothing has happened meanwhile"

    run(story())


def test_no_message_stands_between_a_call_and_its_result(
    environment: Environment, run: Run, script: Callable[..., Any], bash: Callable[[str], Any]
) -> None:
    call = {"id": "1", "name": "bash", "arguments": "{}"}
    waiting = {"type": "AssistantMessage", "source": "coder", "content": [call], "thought": None}

    async def story() -> None:
        agent = _agent(script(bash("echo on")), environment)
        saved = await save_state(agent, environment)
        saved["llm_context"] = {"messages": [waiting]}
        await environment.run("touch f")
        await load_state(agent, environment, saved)
        assert len(await _messages(agent)) == 1
        result = await SandboxWorkbench(environment).call_tool("bash", {"command": "echo on"})
        assert "was rolled back" in result.to_text(), "the next result tells it"

    run(story())


def test_a_load_may_fork(
    make: Callable[..., Environment], run: Run, script: Callable[..., Any], bash: Callable[[str], Any]
) -> None:
    environment = make(on_load="fork")

    async def story() -> None:
        agent = _agent(script(bash("echo -n 1 > f"), bash("echo -n 2 > f"), bash("cat f")), environment)
        await _say(_team(agent), "go")
        saved = await save_state(_team(agent), environment)
        await _say(_team(agent), "on")
        source = environment.sandbox
        restored = await load_state(_team(agent), environment, saved)
        assert restored is not None
        assert restored.action == "fork"
        assert environment.sandbox.id != source.id
        assert await _say(_team(agent), "and?") == "1"
        assert Path(source.workspace, "f").read_text() == "2", "the other line stays"

    run(story())


def test_parallel_calls_of_an_agent_are_one_after_the_other(
    environment: Environment, run: Run, script: Callable[..., Any], bash: Callable[[str], Any]
) -> None:
    command = "test ! -e busy && touch busy && sleep 0.1 && rm busy && echo -n {} >> f"

    async def story() -> None:
        agent = _agent(script([bash(command.format(n)) for n in "abc"], "done"), environment, max_tool_iterations=2)
        assert await _say(_team(agent), "go") == "done"
        assert sorted(Path(environment.sandbox.workspace, "f").read_text()) == ["a", "b", "c"]

    run(story())


def test_a_cancelled_run_ends_its_command_and_the_team_can_go_on(
    environment: Environment,
    run: Run,
    script: Callable[..., Any],
    bash: Callable[[str], Any],
    ended: Callable[[str], bool],
) -> None:
    async def story() -> None:
        agent = _agent(script(bash("touch begun; sleep 32109"), bash("ls")), environment)
        saved = await save_state(_team(agent), environment)
        token = CancellationToken()
        running = asyncio.create_task(_team(agent).run(task="go", cancellation_token=token))
        while not Path(environment.sandbox.workspace, "begun").exists():
            await asyncio.sleep(0.01)
        token.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert ended("32109")
        await load_state(_team(agent), environment, saved)
        result = await _say(_team(agent), "again")
        assert result.startswith("(no output)"), "what it had begun was rolled back"

    run(story())


def test_a_state_that_can_t_be_loaded_changes_nothing(
    planarian: Planarian, make: Callable[..., Environment], run: Run, script: Callable[..., Any]
) -> None:
    one, other = make(), make()

    async def story() -> None:
        agent = _agent(script("hi"), one)
        saved = await save_state(agent, one)
        await other.run("echo -n mine > f")
        with pytest.raises(LineageError, match="belongs to sandbox") as foreign:
            await load_state(agent, other, saved)
        assert foreign.value.code == "state-foreign"
        assert Path(other.sandbox.workspace, "f").read_text() == "mine"
        with pytest.raises(ConfigurationError, match="names no statepoint"):
            await load_state(agent, one, await agent.save_state())
        gone = {**saved, "planarian": {**saved["planarian"], "statepoint": "sp-000000000000"}}
        before = len(planarian.registry.statepoints(one.sandbox.id))
        with pytest.raises(LineageError):
            await load_state(agent, one, gone)
        assert len(planarian.registry.statepoints(one.sandbox.id)) == before

    run(story())


KILLED = """
import asyncio, json, os, signal, sys
from planarian_core import Planarian
from planarian_autogen import Environment, SandboxWorkbench

async def story(home, workspace, state):
    environment = Environment(Planarian.open(home), workspace, name="team", sandbox="directory",
                              filesystem="copy", process="respawn")
    async with SandboxWorkbench(environment) as workbench:
        await workbench.call_tool("bash", {"command": "echo -n good > f; sleep 54321 >/dev/null 2>&1 & echo $! > pid"})
        with open(state, "w") as file:
            json.dump(dict(await workbench.save_state()), file)
        await workbench.call_tool("bash", {"command": "echo -n wrong > f; kill $(cat pid)"})
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(story(*sys.argv[1:]))
"""


@pytest.mark.needs("linux")
@pytest.mark.parametrize("stopped", [False, True], ids=["as killed", "after a restart of the host"])
def test_a_new_process_picks_the_team_up(tmp_path: Path, planarian: Planarian, run: Run, stopped: bool) -> None:
    (tmp_path / "project").mkdir()
    state = tmp_path / "state.json"
    arguments = [str(planarian.home), str(tmp_path / "project"), str(state)]
    killed = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / "project" / "f").read_text() == "wrong"
    if stopped:
        planarian.sandbox("team").stop()

    async def story() -> str:
        environment = Environment(planarian, tmp_path / "project", name="team")
        workbench = SandboxWorkbench(environment)
        await workbench.load_state(json.loads(state.read_text()))
        assert environment.sandbox.id == planarian.sandbox("team").id, "no second sandbox was made"
        running = [Path("/proc", str(pid), "cmdline").read_bytes() for pid in _tasks(environment)]
        assert running == [b"sleep\x0054321\x00"]
        return (await workbench.call_tool("bash", {"command": "cat f"})).to_text()

    assert run(story()).startswith("good\n")


@pytest.mark.needs("namespaces", "criu")
def test_memory_goes_back_where_it_is_captured(
    make: Callable[..., Environment], run: Run, script: Callable[..., Any], bash: Callable[[str], Any]
) -> None:
    environment = make(sandbox="namespace", filesystem="copy", process="criu")

    async def story() -> None:
        agent = _agent(script(bash("echo -n good > f"), bash("echo -n wrong > f")), environment)
        sandbox = await environment.start()
        start_counter(sandbox, "counter")
        assert ask_counter(sandbox, "counter", "add") == 1
        await _say(_team(agent), "make it")
        saved = await save_state(_team(agent), environment)
        assert ask_counter(sandbox, "counter", "add") == 2
        await _say(_team(agent), "and now?")
        await load_state(_team(agent), environment, saved)
        assert ask_counter(sandbox, "counter", "get") == 1
        assert sandbox.run("cat f").stdout == "good"

    run(story())


@pytest.mark.needs("namespaces")
def test_a_cancelled_call_ends_in_a_namespace_too(
    make: Callable[..., Environment], run: Run, ended: Callable[[str], bool]
) -> None:
    environment = make(sandbox="namespace", filesystem="copy", process="respawn")

    async def story() -> str:
        workbench = SandboxWorkbench(environment)
        await workbench.start()
        call = asyncio.create_task(
            workbench.call_tool("bash", {"command": "touch begun; setsid sleep 43210 & sleep 4"})
        )
        while (await asyncio.to_thread(environment.sandbox.run, "test -e begun")).exit_code:
            await asyncio.sleep(0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert ended("43210")
        assert ended("43211")
        return (await workbench.call_tool("bash", {"command": "ls"})).to_text()

    assert run(story()) == "begun"
