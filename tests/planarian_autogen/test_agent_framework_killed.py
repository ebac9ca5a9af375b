"""A workflow's process is killed, for real, between the environment's statepoint and the framework's checkpoint: the
next start knows which belong together, brings the environment there and says so.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agent_framework", reason="needs planarian[agentframework]")

from agent_framework import FileCheckpointStorage

from planarian_autogen import Environment
from planarian_autogen.agent_framework import StatepointCheckpointStorage
from planarian_core import Planarian
from planarian_core.model import Status
from planarian_core.testing.workloads import remove_all

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("killed_after", "point", "newest", "left"),
    [
        pytest.param("b", "snapshot.begun", "a", "ab", id="before the statepoint"),
        pytest.param("b", "snapshot.durable", "a", "ab", id="in the statepoint"),
        pytest.param("b", "snapshot.committed", "a", "ab", id="the statepoint is there, the checkpoint isn't"),
        pytest.param("b", "checkpoint.taken", "a", "ab", id="just before the checkpoint"),
        pytest.param("b", "checkpoint.saved", "b", "ab", id="just after the checkpoint"),
        pytest.param("c", "snapshot.begun", "b", "abc", id="the checkpoint is there, the environment went on"),
    ],
)
def test_the_next_start_knows_which_statepoint_belongs_to_which_checkpoint(
    tmp_path: Path,
    run: Callable[[Any], Any],
    monkeypatch: pytest.MonkeyPatch,
    killed_after: str,
    point: str,
    newest: str,
    left: str,
) -> None:
    home, workspace, files = tmp_path / "home", tmp_path / "project", tmp_path / "checkpoints"
    workspace.mkdir()
    program = [sys.executable, "-c", "import appending; appending.main()"]
    command = [*program, str(home), str(workspace), str(files), killed_after, point]
    env = {**os.environ, "PYTHONPATH": str(HERE)}
    killed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (workspace / "f").read_text() == left
    monkeypatch.syspath_prepend(HERE)
    steps = importlib.import_module("appending")  # by the name that the killed process knew it by

    async def story(planarian: Planarian) -> None:
        environment = Environment(planarian, workspace, name="team")
        storage = StatepointCheckpointStorage(FileCheckpointStorage(files), environment)
        saved = sorted(await storage.list_checkpoints(workflow_name=steps.NAME), key=lambda found: found.timestamp)
        assert len(saved) == {"a": 2, "b": 3}[newest], "one from before the first step, and one after each"
        _check_pairs(planarian, saved, orphan=point in ("snapshot.committed", "checkpoint.taken"))
        checkpoint = saved[-1]
        resumed = await steps.workflow(environment, storage).run(checkpoint_id=checkpoint.checkpoint_id)
        assert resumed.get_outputs() == ["abc"], "no step is done twice, and none is missing"
        told = environment.take_context()
        if newest == left[-1]:
            assert told == "", "the environment is where the checkpoint is: nothing is to be told"
            return
        assert f"was rolled back to statepoint {checkpoint.metadata['planarian']['statepoint']}" in told
        assert f"It holds: checkpoint {checkpoint.checkpoint_id}" in told
        kept = told.partition("The state before is kept as ")[2].split(":")[0]
        planarian.rollback(environment.sandbox, kept)
        assert (workspace / "f").read_text() == left, "nothing was lost"

    with Planarian.open(home) as planarian:
        try:
            run(story(planarian))
        finally:
            remove_all(planarian)


def _check_pairs(planarian: Planarian, saved: list[Any], *, orphan: bool) -> None:
    """Each checkpoint names its statepoint, which is whole and names it; a statepoint without one is told apart."""
    points = {point.id: point for point in planarian.registry.statepoints(planarian.sandbox().id)}
    of_checkpoints = {i for i, p in points.items() if p.description.startswith("checkpoint ")}
    whole = {i for i in of_checkpoints if points[i].status is Status.COMMITTED}
    named = set()
    for checkpoint in saved:
        statepoint = checkpoint.metadata["planarian"]["statepoint"]
        assert points[statepoint].description == f"checkpoint {checkpoint.checkpoint_id}"
        named.add(statepoint)
    assert named <= whole
    assert len(whole - named) == (1 if orphan else 0)
