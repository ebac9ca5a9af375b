"""The process is killed, for real, between the environment's statepoint and the saved state, in both orders."""

from __future__ import annotations

import json
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

from planarian_autogen import Environment, SandboxWorkbench, load_state
from planarian_core import Planarian
from planarian_core.testing.workloads import remove_all

PROGRAM = """
import asyncio, json, os, signal, sys
from pathlib import Path
from autogen_core import CancellationToken
from planarian_autogen import Environment, SandboxWorkbench, save_state
from planarian_core import Planarian

home, workspace, saved, where = sys.argv[1:]

def die(*arguments, **named):
    os.kill(os.getpid(), signal.SIGKILL)

async def story():
    planarian = Planarian.open(home)
    environment = Environment(planarian, workspace, name="team",
                              sandbox="directory", filesystem="copy", process="respawn")
    workbench = SandboxWorkbench(environment)
    async def call(command):
        await workbench.call_tool("bash", {"command": command}, CancellationToken())
    await call("echo -n 1 > f")
    Path(saved).write_text(json.dumps(await workbench.save_state()))
    await call("echo -n 2 >> f")
    if where == "before the statepoint":
        planarian.snapshot = die
    state = json.dumps(await workbench.save_state())
    die()

asyncio.run(story())
"""


@pytest.mark.parametrize("where", ["before the statepoint", "before the state is written"])
def test_the_last_state_that_was_written_finds_its_environment(
    tmp_path: Path, run: Callable[[Any], Any], script: Callable[..., Any], bash: Callable[[str], Any], where: str
) -> None:
    home, workspace, saved = tmp_path / "home", tmp_path / "project", tmp_path / "saved.json"
    workspace.mkdir()
    command = [sys.executable, "-c", PROGRAM, str(home), str(workspace), str(saved), where]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (workspace / "f").read_text() == "12", "it had gone on after the state was written"
    state = json.loads(saved.read_text())

    async def story(planarian: Planarian) -> None:
        environment = Environment(planarian, workspace, name="team")
        workbench = SandboxWorkbench(environment)
        agent = AssistantAgent("coder", model_client=script(bash("cat f"), "done"), workbench=workbench)
        team = RoundRobinGroupChat([agent], max_turns=1)
        first = await team.save_state()
        restored = await load_state(team, environment, {**first, "planarian": state["planarian"]})
        assert restored is not None, "it is noticed that the environment is elsewhere"
        assert restored.statepoint.id == state["planarian"]["statepoint"]
        assert (workspace / "f").read_text() == "1"
        said = str((await team.run(task="look")).messages)
        assert f"was rolled back to statepoint {restored.statepoint.id}" in said, "and told"
        await environment.settle()
        after = planarian.rollback(environment.sandbox, str(restored.safety_id))
        assert after is not None
        assert (workspace / "f").read_text() == "12", "nothing was lost"

    with Planarian.open(home) as planarian:
        try:
            run(story(planarian))
        finally:
            remove_all(planarian)
