"""kill -9 in a call of a declared service, around it, and between the calls that undo one: nothing is lost, nothing is
undone twice. On the memory server from npm; the oracle is its file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planarian_core import Planarian
from planarian_core.faults import POINTS
from planarian_core.model import EffectState
from planarian_core.testing import mcp_servers
from planarian_core.testing.workloads import remove_all

pytestmark = [pytest.mark.needs("npm"), pytest.mark.thorough]

OPERATE = Path(__file__).with_name("operate_declared.py")
CALLS = [point for point in POINTS if point.startswith("call.") or point == "declared.called"]
MOVES = [point for point in POINTS if point.startswith("compensate.") or point == "declared.step"]


class World:
    """A sandbox with one declared service, a memory of two things."""

    def __init__(self, tmp_path: Path) -> None:
        self.home, self.workspace, self.file = tmp_path / "home", tmp_path / "workspace", tmp_path / "memory.jsonl"
        self.home.mkdir()
        self.workspace.mkdir()
        (self.home / "planarian.toml").write_text(
            f"""
[services.memory]
kind = "declared"
include = "memory"
command = {mcp_servers.as_configuration(mcp_servers.memory())}
env = {{ MEMORY_FILE_PATH = {json.dumps(str(self.file))} }}
"""
        )
        self.file.write_text(
            '{"type":"entity","name":"A","entityType":"t","observations":["x","y","z"]}\n'
            '{"type":"entity","name":"B","entityType":"t","observations":[]}\n'
            '{"type":"relation","from":"A","to":"B","relationType":"knows"}'
        )

    def state(self) -> list[str]:
        return sorted(self.file.read_text().split("\n"))

    def call(self, tool: str, *, fault: str = "", **arguments: Any) -> None:
        self.operate("memory", json.dumps([tool, arguments]), fault=fault)

    def operate(self, what: str, given: str, *, fault: str = "") -> None:
        env = {**os.environ, "PLANARIAN_FAULT": fault}
        argv = [sys.executable, str(OPERATE), str(self.home), what, given]
        done = subprocess.run(argv, env=env, capture_output=True, timeout=120, check=False)
        assert done.returncode == (-9 if fault else 0), done.stderr.decode()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    with Planarian.open(made.home) as planarian:
        planarian.create_sandbox(made.workspace, sandbox="directory", filesystem="copy", process="respawn")
    yield made
    with Planarian.open(made.home) as planarian:
        remove_all(planarian)


@pytest.mark.parametrize("point", CALLS)
def test_killed_around_a_call(world: World, point: str) -> None:
    with Planarian.open(world.home) as planarian:
        before = planarian.snapshot(planarian.sandbox()), world.state()
    world.call("delete_observations", deletions=[{"entityName": "A", "observations": ["y"]}], fault=f"{point}=kill")
    happened = point != "call.begun"
    assert (world.state() != before[1]) is happened
    with Planarian.open(world.home) as planarian:
        sandbox = planarian.sandbox()
        after = planarian.snapshot(sandbox), world.state()
        states = [effect.state for effect in planarian.effects(sandbox)]
        assert states == [EffectState.APPLIED if happened else EffectState.VOID]
        for point_id, wanted in (before, after, before):
            planarian.rollback(sandbox, point_id)
            assert world.state() == wanted


@pytest.mark.parametrize("point", MOVES)
def test_killed_between_the_calls_of_an_undo(world: World, point: str) -> None:
    with Planarian.open(world.home) as planarian:
        early = planarian.snapshot(planarian.sandbox()).id, world.state()
    world.call("create_entities", entities=[{"name": "C", "entityType": "t", "observations": []}])
    world.call("delete_observations", deletions=[{"entityName": "A", "observations": ["y"]}])
    world.call("delete_entities", entityNames=["A"])  # undone first, and by two calls
    with Planarian.open(world.home) as planarian:
        late = planarian.snapshot(planarian.sandbox()).id, world.state()
    for wanted in (early, late, early):  # there, forward again, and there, each killed once
        world.operate("rollback", wanted[0], fault=f"{point}=kill")
        with Planarian.open(world.home) as planarian:
            assert [done.error for done in planarian.recovered] == [""], planarian.recovered
            assert world.state() == wanted[1]
            state = EffectState.UNDONE if wanted is early else EffectState.APPLIED
            assert [effect.state for effect in planarian.effects(planarian.sandbox())] == [state] * 3
