"""Workbenches around an environment: calls and their statepoints, streams, turns, cancellation, states, components."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("autogen_core", reason="needs planarian[autogen]")

from autogen_agentchat.agents import AssistantAgent
from autogen_core import CancellationToken
from autogen_core.tools import BaseStreamTool, FunctionTool, StaticStreamWorkbench, StaticWorkbench, Workbench
from pydantic import BaseModel

from planarian_autogen import Environment, SandboxWorkbench, StatepointWorkbench
from planarian_autogen.environment import _living as living
from planarian_core.errors import CaptureError, ConfigurationError, SandboxError

Run = Callable[[Any], Any]


def _file(environment: Environment, name: str = "f") -> str:
    file = Path(environment.sandbox.workspace, name)
    return file.read_text() if file.exists() else ""


def _descriptions(environment: Environment) -> list[str]:
    return [point.description for point in environment.planarian.registry.statepoints(environment.sandbox.id)]


def test_calls_work_in_the_sandbox_and_leave_statepoints(environment: Environment, run: Run) -> None:
    async def story() -> list[Any]:
        async with SandboxWorkbench(environment) as workbench:
            return [
                await workbench.call_tool("bash", {"command": "echo -n 1 > f; echo one"}),
                await workbench.call_tool("write_file", {"path": "a/b", "content": "x\ny\n"}),
                await workbench.call_tool("edit_file", {"path": "a/b", "old": "y", "new": "z"}),
                await workbench.call_tool("read_file", {"path": "a/b"}),
                await workbench.call_tool("bash", {"command": "echo out; echo wrong >&2; exit 3"}),
            ]

    results = run(story())
    assert [result.to_text() for result in results] == [
        "one", "a/b written", "a/b changed", "1\tx\n2\tz", "out\nwrong\n(exit code 3)",
    ]  # fmt: skip
    assert [result.is_error for result in results] == [False, False, False, False, True]
    assert _file(environment) == "1"
    assert _descriptions(environment)[:3] == [
        "as the team found it",
        "after bash(command='echo -n 1 > f; echo one')",
        "after write_file(path='a/b', content='x\\ny\\n')",
    ]
    assert len(_descriptions(environment)) == 6, "a call that failed has changed something too"


def test_any_workbench_keeps_its_tools_and_gets_the_primitives(environment: Environment, run: Run) -> None:
    async def upload(text: str) -> str:
        """Write it."""
        done = await environment.run(["tee", "uploaded"], stdin=text)
        return done.stdout

    inner = StaticWorkbench([FunctionTool(upload, description="Write it.")])
    workbench = StatepointWorkbench(inner, environment, primitives=True)
    plain = StatepointWorkbench(inner, environment)

    async def story() -> None:
        assert await plain.list_tools() == await inner.list_tools()
        names = [tool["name"] for tool in await workbench.list_tools()]
        assert names == ["upload", "snapshot", "rollback", "ledger", "outcome"]
        assert (await workbench.call_tool("upload", {"text": "mine"})).to_text() == "mine"
        kept = await workbench.call_tool("snapshot", {"name": "good", "description": "it was good"})
        assert "(good)" in kept.to_text()
        await workbench.call_tool("upload", {"text": "bad"})
        await workbench.call_tool("outcome", {"statepoint": "good", "text": "wrote nonsense", "status": "failed"})
        back = await workbench.call_tool("rollback", {"statepoint": "good"})
        assert "was rolled back to statepoint" in back.to_text()
        assert "wrote nonsense" in back.to_text()
        assert "it was good" in (await workbench.call_tool("ledger")).to_text()
        missing = await workbench.call_tool("rollback", {"statepoint": "nowhere"})
        assert missing.is_error
        assert "nowhere" in missing.to_text()

    run(story())
    assert _file(environment, "uploaded") == "mine"


def test_tools_with_a_primitive_s_name_are_refused(environment: Environment, run: Run) -> None:
    def snapshot() -> str:
        return ""

    inner = StaticWorkbench([FunctionTool(snapshot, description="")])
    with pytest.raises(ConfigurationError, match="snapshot"):
        run(StatepointWorkbench(inner, environment, primitives=True).list_tools())


class Count(BaseModel):
    to: int


class Counted(BaseModel):
    number: int


class Counter(BaseStreamTool[Count, Counted, Counted]):
    """Says each number, and appends it to a file in the environment."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(Count, Counted, "count", "Count.")
        self._environment = environment

    async def run(self, args: Count, cancellation_token: CancellationToken) -> Counted:
        return Counted(number=args.to)

    async def run_stream(self, args: Count, cancellation_token: CancellationToken) -> AsyncGenerator[Counted, None]:
        for number in range(1, args.to + 1):
            await self._environment.run(f"echo -n {number} >> f")
            yield Counted(number=number)


def test_what_streams_inside_streams_outside(environment: Environment, run: Run) -> None:
    workbench = StatepointWorkbench(StaticStreamWorkbench([Counter(environment)]), environment)
    assert isinstance(workbench, StaticStreamWorkbench), "AutoGen's agents ask for exactly that"

    async def story() -> list[Any]:
        seen = []
        async for item in workbench.call_tool_stream("count", {"to": 3}):
            seen.append((item, _file(environment)))
        await environment.settle()
        return seen

    seen = run(story())
    assert [item.number for item, _ in seen[:-1]] == [1, 2]
    assert seen[0][1] != "123", "the first item comes before the last is made"
    assert json.loads(seen[-1][0].to_text()) == {"number": 3}
    assert _descriptions(environment)[-1] == "after count(to=3)"


def test_a_stream_that_nobody_reads_to_its_end_lets_the_next_call_go_on(environment: Environment, run: Run) -> None:
    workbench = StatepointWorkbench(StaticStreamWorkbench([Counter(environment)]), environment)

    async def story() -> str:
        stream = workbench.call_tool_stream("count", {"to": 1000})
        await anext(stream)
        await stream.aclose()
        before = _file(environment)
        await environment.run("true")
        assert _file(environment) == before, "nothing of it goes on"
        return (await workbench.call_tool("count", {"to": 1})).to_text()

    assert json.loads(run(story())) == {"number": 1}


def test_calls_made_at_once_take_turns(environment: Environment, run: Run) -> None:
    command = "test ! -e busy || echo overlap; touch busy; sleep 0.2; rm busy; echo -n {} >> f"

    async def story() -> list[str]:
        async with SandboxWorkbench(environment) as one:
            other = SandboxWorkbench(environment)
            calls = [w.call_tool("bash", {"command": command.format(n)}) for n, w in enumerate((one, other, one))]
            return [result.to_text() for result in await asyncio.gather(*calls)]

    assert run(story()) == ["(no output)"] * 3
    assert sorted(_file(environment)) == ["0", "1", "2"]
    assert len(_descriptions(environment)) == 4, "each has a statepoint of its own"


def test_an_agent_as_a_tool_is_part_of_the_call(
    environment: Environment, run: Run, script: Callable[..., Any], bash: Callable[[str], Any]
) -> None:
    inner_agent = AssistantAgent(
        "inner", model_client=script(bash("echo -n inner > f")), workbench=SandboxWorkbench(environment)
    )

    async def delegate(task: str) -> str:
        return (await inner_agent.run(task=task)).messages[-1].to_text()

    workbench = StatepointWorkbench(StaticWorkbench([FunctionTool(delegate, description="")]), environment)
    assert run(workbench.call_tool("delegate", {"task": "do it"})).to_text() == "(no output)"
    assert _file(environment) == "inner"


def test_a_cancelled_call_ends_with_all_it_started(
    environment: Environment, run: Run, ended: Callable[[str], bool]
) -> None:
    workbench = SandboxWorkbench(environment)

    async def story() -> None:
        await workbench.start()
        token = CancellationToken()
        command = {"command": "setsid sleep 98765 & echo -n begun > f; sleep 98764; echo -n over > f"}
        call = asyncio.create_task(workbench.call_tool("bash", command, token))
        while _file(environment) != "begun":
            await asyncio.sleep(0.01)
        token.cancel()
        cancelled = await call
        assert (cancelled.is_error, cancelled.to_text()) == (True, "The call was cancelled.")
        assert ended("98765")
        assert ended("98764")
        assert (await workbench.call_tool("bash", {"command": "cat f"})).to_text() == "begun"

    run(story())


def test_one_that_waits_for_its_turn_can_be_cancelled(environment: Environment, run: Run) -> None:
    workbench = SandboxWorkbench(environment)

    async def story() -> None:
        await workbench.start()
        long = asyncio.create_task(workbench.call_tool("bash", {"command": "sleep 0.5; echo done"}))
        await asyncio.sleep(0.1)
        waiting = asyncio.create_task(workbench.call_tool("bash", {"command": "touch never"}))
        await asyncio.sleep(0.1)
        waiting.cancel()
        assert (await long).to_text() == "done"
        assert (await workbench.call_tool("bash", {"command": "ls"})).to_text() == "(no output)"

    run(story())


def test_a_cancelled_rollback_is_over_before_anything_else_happens(environment: Environment, run: Run) -> None:
    workbench = SandboxWorkbench(environment)

    async def story() -> None:
        await workbench.call_tool("bash", {"command": "echo -n 1 > f"})
        mark = await environment.save()
        await workbench.call_tool("bash", {"command": "echo -n 2 > f"})
        restoring = asyncio.create_task(environment.restore(mark))
        await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        restoring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await restoring
        assert (await workbench.call_tool("bash", {"command": "cat f"})).to_text().startswith("1")

    run(story())


def test_a_tool_that_raises_leaves_a_statepoint_too(environment: Environment, run: Run) -> None:
    class Raising(StaticWorkbench):
        async def call_tool(self, *arguments: Any, **named: Any) -> Any:
            await environment.run("echo -n half > f")
            raise OSError("the tool broke")

    workbench = StatepointWorkbench(Raising([]), environment)

    async def story() -> None:
        with pytest.raises(OSError, match="broke"):
            await workbench.call_tool("any", {})
        await environment.settle()

    run(story())
    assert _file(environment) == "half"
    assert _descriptions(environment)[-1] == "after any()"


def test_a_failed_statepoint_is_told_and_the_result_stays(
    environment: Environment, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    workbench = SandboxWorkbench(environment)

    def full(*_: Any, **__: Any) -> Any:
        raise CaptureError("the disk is full", state="nothing was committed")

    async def story() -> tuple[str, str]:
        await workbench.start()
        with monkeypatch.context() as patch:
            patch.setattr(environment.planarian.statepoints, "snapshot_anyway", full)  # what a full disk does
            await workbench.call_tool("bash", {"command": "echo one"})
            second = (await workbench.call_tool("bash", {"command": "echo two"})).to_text()
            assert environment._pending is not None
            await asyncio.to_thread(wait, [environment._pending])
        return second, (await workbench.call_tool("bash", {"command": "echo three"})).to_text()

    second, third = run(story())
    assert second.startswith("two\nNo statepoint was taken after the call before this one: the disk is full")
    assert third.startswith("three\nNo statepoint was taken")


def test_a_failed_sandbox_is_an_error_that_the_agent_reads(
    environment: Environment, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any, **__: Any) -> Any:
        raise SandboxError("the host is out of processes", state="the command did not run")

    async def story() -> Any:
        async with SandboxWorkbench(environment) as workbench:
            monkeypatch.setattr(environment, "_bind", gone)  # as when it can't be revived
            return await workbench.call_tool("bash", {"command": "true"})

    result = run(story())
    assert result.is_error
    assert result.to_text() == "the host is out of processes\nNow: the command did not run"


def test_a_state_holds_the_environment(environment: Environment, run: Run) -> None:
    workbench = SandboxWorkbench(environment)

    async def story() -> None:
        await workbench.call_tool("bash", {"command": "echo -n 1 > f"})
        state = json.loads(json.dumps(await workbench.save_state()))
        await workbench.call_tool("bash", {"command": "echo -n 2 > f; touch g"})
        await workbench.load_state(state)
        first = (await workbench.call_tool("bash", {"command": "cat f"})).to_text()
        assert first.startswith("1\n")
        assert "was rolled back to statepoint" in first, "whoever goes on is told, once"
        assert (await workbench.call_tool("bash", {"command": "ls"})).to_text() == "f"

    run(story())


def test_reset_brings_back_how_it_was_found(make: Callable[..., Environment], run: Run, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "f").write_text("found")
    environment = make(workspace=tmp_path / "project")

    async def story() -> None:
        async with SandboxWorkbench(environment) as workbench:
            await workbench.call_tool("bash", {"command": "echo -n 1 > f"})
            await workbench.reset()

    run(story())
    assert _file(environment) == "found"


def test_the_policy_decides(make: Callable[..., Environment], run: Run) -> None:
    every, never, off = make(policy="every:2"), make(policy="manual"), make(snapshot=False)

    async def story(environment: Environment) -> int:
        async with SandboxWorkbench(environment) as workbench:
            for _ in range(4):
                await workbench.call_tool("bash", {"command": "date +%N > f"})
        return len(_descriptions(environment)) - 1

    assert [run(story(environment)) for environment in (every, never, off)] == [2, 0, 0]


def test_a_configuration_names_the_environment(environment: Environment, run: Run) -> None:
    inner = StaticStreamWorkbench([])
    for workbench in (
        StatepointWorkbench(inner, environment, primitives=True),
        SandboxWorkbench(environment, primitives=False, timeout=5),
    ):
        model = workbench.dump_component()
        model = type(model).model_validate_json(model.model_dump_json())
        loaded = Workbench.load_component(model)
        assert type(loaded) is type(workbench)
        assert isinstance(loaded, StatepointWorkbench)
        assert loaded.environment is environment, "parts of one team share it"
        assert loaded.dump_component() == model
        assert run(loaded.list_tools()) == run(workbench.list_tools())


def test_a_configuration_finds_its_sandbox_in_another_runtime(environment: Environment, run: Run) -> None:
    async def first() -> Any:
        async with SandboxWorkbench(environment) as workbench:
            await workbench.call_tool("bash", {"command": "echo -n here > f"})
            return workbench.dump_component()

    model = run(first())
    living.clear()  # as in another process

    async def second() -> str:
        async with Workbench.load_component(model) as workbench:
            assert isinstance(workbench, StatepointWorkbench)
            assert workbench.environment is not environment
            assert workbench.environment.sandbox.id == environment.sandbox.id
            return (await workbench.call_tool("bash", {"command": "cat f"})).to_text()

    assert run(second()) == "here"


def test_an_agent_can_be_dumped_with_it(environment: Environment, script: Callable[..., Any]) -> None:
    agent = AssistantAgent("a", model_client=script("hi"), workbench=SandboxWorkbench(environment))
    loaded = AssistantAgent.load_component(json.loads(agent.dump_component().model_dump_json()))
    (workbench,) = loaded._workbench
    assert isinstance(workbench, SandboxWorkbench)
    assert workbench.environment is environment
