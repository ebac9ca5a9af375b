"""Agent Framework: tool calls of its agents in an environment, and checkpoints of its workflows that bring it along."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agent_framework", reason="needs planarian[agentframework]")

from agent_framework import Agent, FileCheckpointStorage, InMemoryCheckpointStorage

from planarian_autogen import Environment
from planarian_autogen.agent_framework import StatepointCheckpointStorage, primitive_tools, sandbox_tools
from planarian_core.errors import CaptureError
from tests.planarian_autogen.appending import NAME, workflow
from tests.planarian_autogen.scripted_agents import agent, bash, results

Run = Callable[[Any], Any]


def _agent(environment: Environment, *turns: Any) -> Agent[Any]:
    return agent(environment, [*sandbox_tools(environment), *primitive_tools(environment)], *turns)


def test_an_agent_works_in_the_environment(environment: Environment, run: Run) -> None:
    overlap = "test ! -e busy || echo overlap; touch busy; sleep 0.1; rm busy; echo -n {} >> f"
    worker = _agent(
        environment,
        [bash(overlap.format(n)) for n in "abc"],
        [("snapshot", {"name": "abc"})],
        [bash("rm f; echo gone; exit 1")],
        [("rollback", {"statepoint": "abc"})],
        [("read_file", {"path": "f"}), ("rollback", {"statepoint": "nowhere"})],
        "done",
    )
    response = run(worker.run("go"))
    found = results(response)
    assert found[:3] == ["(no output)"] * 3
    assert found[4] == "gone\n(exit code 1)"
    assert "was rolled back to statepoint" in found[5]
    assert sorted(found[6].removeprefix("1\t")) == ["a", "b", "c"]
    assert "nowhere" in found[7]
    assert response.text == "done"
    points = environment.planarian.registry.statepoints(environment.sandbox.id)
    assert len([point for point in points if point.description.startswith("after bash(command='test")]) == 3


def test_a_failed_statepoint_is_told(environment: Environment, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise CaptureError("the disk is full")

    async def story() -> Any:
        await environment.start()
        monkeypatch.setattr(environment.planarian.statepoints, "snapshot_anyway", full)  # what a full disk does
        return await _agent(environment, [bash("echo 1")], [bash("echo 2")], "done").run("go")

    first, second = results(run(story()))
    assert first == "1"
    assert second.startswith("2\nNo statepoint was taken after the call before this one: the disk is full")


def _file(environment: Environment) -> str:
    return Path(environment.sandbox.workspace, "f").read_text()


async def _checkpoint_after(storage: Any, letter: str) -> str:
    """The checkpoint that was saved when the step of that letter had ended."""
    found = sorted(await storage.list_checkpoints(workflow_name=NAME), key=lambda checkpoint: checkpoint.timestamp)
    return str(found["abc".index(letter) - len("abc")].checkpoint_id)


def test_a_workflow_that_resumes_finds_the_environment_as_it_was(environment: Environment, run: Run) -> None:
    async def story() -> None:
        storage = StatepointCheckpointStorage(InMemoryCheckpointStorage(), environment)
        outputs = (await workflow(environment, storage).run("go")).get_outputs()
        assert outputs == ["abc"]
        old = await _checkpoint_after(storage, "a")
        assert _file(environment) == "abc", "reading moves nothing"
        resumed = await workflow(environment, storage).run(checkpoint_id=old)
        assert resumed.get_outputs() == ["abc"], "not abcbc"

    run(story())
    assert _file(environment) == "abc"


def test_a_resume_may_fork(make: Callable[..., Environment], run: Run) -> None:
    environment = make(on_load="fork")

    async def story() -> None:
        storage = StatepointCheckpointStorage(InMemoryCheckpointStorage(), environment)
        await workflow(environment, storage).run("go")
        source = environment.sandbox
        source.run("echo -n more >> f")
        old = await _checkpoint_after(storage, "b")
        await workflow(environment, storage).run(checkpoint_id=old)
        assert environment.sandbox.id != source.id
        assert (_file(environment), Path(source.workspace, "f").read_text()) == ("abc", "abcmore")

    run(story())


def test_looking_at_a_checkpoint_moves_nothing(environment: Environment, run: Run) -> None:
    async def story() -> None:
        storage = StatepointCheckpointStorage(InMemoryCheckpointStorage(), environment)
        await workflow(environment, storage).run("go")
        newest = await storage.get_latest(workflow_name=NAME)
        assert newest is not None
        await storage.load(newest.checkpoint_id)
        await environment.run("echo -n by hand >> f")
        assert _file(environment) == "abcby hand"
        await storage.load(await _checkpoint_after(storage, "a"))
        later = type(newest)(NAME, "hash", previous_checkpoint_id=newest.checkpoint_id)
        await storage.save(later)
        await environment.run("true")
        assert _file(environment) == "abcby hand"

    run(story())


def test_checkpoints_in_files_are_found_by_another_process(environment: Environment, run: Run, tmp_path: Path) -> None:
    files = tmp_path / "checkpoints"

    async def first() -> None:
        storage = StatepointCheckpointStorage(FileCheckpointStorage(files), environment)
        await workflow(environment, storage).run("go")

    async def second() -> None:
        settings = environment.settings
        again = Environment(environment.planarian, settings.workspace, name=settings.name)
        storage = StatepointCheckpointStorage(FileCheckpointStorage(files), again)
        old = await _checkpoint_after(storage, "b")
        resumed = await workflow(again, storage).run(checkpoint_id=old)
        assert resumed.get_outputs() == ["abc"]
        assert again.sandbox.id == environment.sandbox.id

    run(first())
    run(second())


def test_without_a_statepoint_there_is_no_checkpoint(
    environment: Environment, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise CaptureError("the disk is full")

    async def story() -> list[Any]:
        await environment.start()
        monkeypatch.setattr(environment.planarian.statepoints, "snapshot", full)  # what a full disk does
        storage = StatepointCheckpointStorage(InMemoryCheckpointStorage(), environment)
        await workflow(environment, storage).run("go")
        return await storage.list_checkpoints(workflow_name=NAME)

    assert run(story()) == []
