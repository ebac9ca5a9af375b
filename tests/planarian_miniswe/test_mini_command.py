"""Drop-in by YAML alone: the real ``mini`` command with ``examples/miniswe/planarian.yaml`` and a scripted model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from planarian_core import Planarian

EXAMPLES = Path(__file__).parents[2] / "examples" / "miniswe"


class Mini:
    """Runs ``mini`` in a workspace, with a home of its own for everything."""

    def __init__(self, place: Path, workspace: Path) -> None:
        self.home = place / "planarian"
        self.trajectory = place / "out.json"
        self._place, self._workspace = place, workspace

    def run(self, commands: Sequence[str], environment: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        answers = [{"role": "assistant", "content": "", "extra": {"actions": [{"command": c}]}} for c in commands]
        model = {"model_class": "minisweagent.models.test_models.DeterministicModel", "model_name": "scripted"}
        script = self._place / "script.yaml"
        script.write_text(json.dumps({"model": {**model, "outputs": answers}, "environment": environment}))
        configs = ["-c", "mini.yaml", "-c", str(EXAMPLES / "planarian.yaml"), "-c", str(script)]
        command = [sys.executable, "-m", "minisweagent.run.mini", *configs, "-t", "do it", "-y", "--exit-immediately"]
        variables = {"MSWEA_CONFIGURED": "true", "MSWEA_GLOBAL_CONFIG_DIR": str(self._place / "mini")}
        variables |= {
            "HOME": str(self._place),
            "PLANARIAN_HOME": str(self.home),
            "MSWEA_COST_TRACKING": "ignore_errors",
        }
        return subprocess.run(
            [*command, "-o", str(self.trajectory)], cwd=self._workspace, env={**os.environ, **variables},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.trajectory.read_text())
        return found


@pytest.fixture
def mini(tmp_path: Path, workspace: Path) -> Mini:
    return Mini(tmp_path, workspace)


def test_mini_works_in_a_sandbox_that_can_be_rolled_back_afterwards(mini: Mini) -> None:
    commands = [
        "echo good > state; planarian snapshot good; echo bad > state",
        "cat state; planarian rollback good; echo never",
        "cat state; echo worse > state",
        "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat state",
    ]
    done = mini.run(commands, {"sandbox": "directory"})
    assert done.returncode == 0, done.stdout + done.stderr
    trajectory = mini.read()
    assert trajectory["info"]["exit_status"] == "Submitted"
    assert trajectory["info"]["submission"] == "worse\n"
    observed = [m["extra"]["raw_output"] for m in trajectory["messages"] if "raw_output" in m.get("extra", {})]
    assert observed[1].startswith("bad\n# The environment was rolled back")
    assert observed[2] == "good\n"
    with Planarian.open(mini.home) as planarian:
        sandbox = planarian.sandbox(trajectory["info"]["planarian"]["sandbox"])
        try:
            assert planarian.resolve(sandbox, "@head").description == "the agent submitted"
            sandbox.rollback("good")
            assert sandbox.run("cat state").stdout == "good\n"
        finally:
            planarian.remove_sandbox(sandbox)


def test_a_wrong_setting_is_said_by_mini(mini: Mini) -> None:
    done = mini.run(["true"], {"polcy": "manual"})
    assert done.returncode != 0
    assert "unknown key 'polcy'" in " ".join((done.stdout + done.stderr).split())
