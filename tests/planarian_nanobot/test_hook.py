"""The hook: statepoints after others' tools, what is told meanwhile, and failures that end the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from nanobot.agent.loop import AgentLoop
from nanobot.agent.tools.base import Tool
from nanobot.agent.tools.registry import ToolRegistry

from planarian_core import Planarian
from planarian_core.errors import PlanarianError
from planarian_nanobot import Environments
from tests.planarian_nanobot.conftest import Bots, bash, run


class Stamp(Tool):
    """A user's own tool that works in the sandbox, and fails when it is told to."""

    def __init__(self, workspace: Path, meanwhile: Any = None) -> None:
        self._workspace = workspace
        self._meanwhile = meanwhile

    @property
    def name(self) -> str:
        return "stamp"

    @property
    def description(self) -> str:
        return "Stamp."

    @property
    def parameters(self) -> dict[str, Any]:
        return {"type": "object", "properties": {"fail": {"type": "boolean"}}}

    async def execute(self, **arguments: Any) -> str:
        (self._workspace / "stamped").write_text("yes")
        if self._meanwhile is not None:
            self._meanwhile()
        if arguments.get("fail"):
            raise RuntimeError("told to fail")
        return "stamped"


def _told(bots: Bots, environments: Environments, stamp: Stamp, *steps: Any) -> Any:
    async def story() -> Any:
        with bots.looping(steps, environments) as (loop, model):
            loop.tools.register(stamp)
            await loop.process_direct("go")
            await loop.aclose()
            return model

    return run(story())


def test_calls_of_other_tools_leave_statepoints(bots: Bots, environments: Environments, planarian: Planarian) -> None:
    _told(bots, environments, Stamp(bots.workspace), ("stamp", {}), ("stamp", {"fail": True}), ("ledger", {}))
    points = planarian.registry.statepoints(planarian.sandbox().id)
    described = [point.description for point in points]
    assert described[:2] == ["after: stamp {}", 'after: stamp {"fail": true}']
    assert described[-1].startswith("the end of a run")


def test_a_rollback_by_a_user_during_a_run_is_told_at_once(
    bots: Bots, environments: Environments, planarian: Planarian
) -> None:
    def meanwhile() -> None:
        with Planarian.open(bots.home) as other:
            other.rollback(other.sandbox(), "one")

    model = _told(
        bots, environments, Stamp(bots.workspace, meanwhile), bash("echo -n one > f"), ("snapshot", {"name": "one"}),
        bash("echo -n two > f"), ("stamp", {}), bash("cat f"),
    )  # fmt: skip
    before_the_last_call = model.seen[-2].raw["messages"][-1]
    assert before_the_last_call["role"] == "user"
    assert "was rolled back to statepoint" in before_the_last_call["content"]
    assert "one\nExit code: 0" in model.seen[-1].results[-1]
    assert sum("was rolled back to" in str(message) for message in model.seen[-1].raw["messages"]) == 1


def test_progress_of_a_user_is_no_rollback(bots: Bots, environments: Environments, planarian: Planarian) -> None:
    def meanwhile() -> None:
        with Planarian.open(bots.home) as other:
            other.sandbox().run("echo -n theirs > g")
            other.snapshot(other.sandbox(), name="theirs")

    model = _told(bots, environments, Stamp(bots.workspace, meanwhile), ("stamp", {}), bash("cat g"))
    assert "[planarian]" not in str(model.seen[-1].raw["messages"])
    assert model.seen[-1].results[-1] == "theirs\nExit code: 0"


def test_an_environment_that_cannot_be_made_ends_the_run(bots: Bots, planarian: Planarian, tmp_path: Path) -> None:
    missing = Environments(planarian, tmp_path / "nowhere", sandbox="directory", filesystem="copy", process="none")

    async def story() -> None:
        with bots.looping([bash("true")], missing) as (loop, model):
            with pytest.raises(PlanarianError, match="nowhere"):
                await loop.process_direct("go")
            assert model.seen == []
            await loop.aclose()

    run(story())


def test_a_sandbox_that_was_removed_is_made_anew_and_that_is_told(
    bots: Bots, environments: Environments, planarian: Planarian
) -> None:
    def meanwhile() -> None:
        planarian.remove_sandbox(planarian.sandbox())

    model = _told(bots, environments, Stamp(bots.workspace, meanwhile), ("stamp", {}), bash("cat stamped"))
    assert "was removed since" in str(model.seen[-1].raw["messages"])
    assert model.seen[-1].results[-1] == "yes\nExit code: 0"


def test_the_loop_takes_the_hook_as_nanobot_s_own(environments: Environments) -> None:
    """AgentLoop and ToolRegistry are nanobot's public ways in; what is registered by hand is what is offered."""
    assert {"hooks", "tool_registry"} <= set(AgentLoop.__init__.__annotations__)
    assert not len(ToolRegistry())
