"""Drop-in by YAML alone: the real ``mini`` command with ``examples/miniswe/planarian.yaml`` and a scripted model."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from minisweagent.config import get_config_from_spec
from minisweagent.models.utils.actions_text import format_observation_messages

from planarian_core import Planarian
from planarian_core.errors import CaptureError

EXAMPLES = Path(__file__).parents[2] / "examples" / "miniswe"


class Mini:
    """Runs ``mini`` in a workspace, with a home of its own for everything."""

    def __init__(self, place: Path, workspace: Path) -> None:
        self.home = place / "planarian"
        self.trajectory = place / "out.json"
        self._place, self._workspace = place, workspace

    def run(
        self, commands: Sequence[str], environment: dict[str, Any], **of_model: Any
    ) -> subprocess.CompletedProcess[str]:
        answers = [{"role": "assistant", "content": "", "extra": {"actions": [{"command": c}]}} for c in commands]
        model = {"model_class": "minisweagent.models.test_models.DeterministicModel", "model_name": "scripted"}
        script = self._place / "script.yaml"
        script.write_text(json.dumps({"model": {**model, **of_model, "outputs": answers}, "environment": environment}))
        configs = ["-c", "mini.yaml", "-c", str(EXAMPLES / "planarian.yaml"), "-c", str(script)]
        command = [sys.executable, "-m", "minisweagent.run.mini", *configs, "-t", "do it", "-y", "--exit-immediately"]
        variables = {"MSWEA_CONFIGURED": "true", "MSWEA_GLOBAL_CONFIG_DIR": str(self._place / "mini")}
        variables |= {
            "HOME": str(self._place),
            "PLANARIAN_HOME": str(self.home),
            "MSWEA_COST_TRACKING": "ignore_errors",
            "PYTHONPATH": str(self._place),
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


BACKENDS = [
    pytest.param("directory", "respawn", id="directory-respawn"),
    pytest.param("namespace", "criu", id="namespace-criu", marks=pytest.mark.needs("root", "namespaces", "criu")),
]

MODEL = """
from contextlib import closing
from minisweagent.models.test_models import DeterministicModel
from planarian_core import Planarian

SQL = {1: "INSERT INTO notes VALUES (1, 'milk')", 3: "UPDATE notes SET note = 'spoiled'"}

class CallingModel(DeterministicModel):
    # A harness that calls a service, beside what the agent does in its shell.
    calls = 0
    def query(self, *arguments, **named):
        sql, self.calls = SQL.get(self.calls), self.calls + 1
        if sql:
            with Planarian.open() as planarian:
                notes = planarian.remote_session(planarian.sandbox("story"), "notes")
                with closing(notes.kind.connect()) as server:
                    assert not notes.call("execute_sql", {"sql": sql}, server).get("isError")
        return super().query(*arguments, **named)
"""


@pytest.mark.parametrize(("sandbox", "process"), BACKENDS)
def test_the_whole_story(mini: Mini, tmp_path: Path, workspace: Path, sandbox: str, process: str) -> None:
    """Act, break, go back: files, memory and rows agree; fork, compare, promote."""
    mini.home.mkdir()
    file = tmp_path / "notes.db"
    table = {"kind": "sql", "dialect": "sqlite", "path": str(file)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    (mini.home / "planarian.toml").write_text("[services.notes]\n" + "\n".join(lines))
    with closing(sqlite3.connect(file)) as owner, owner:
        owner.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, note TEXT)")
    (tmp_path / "calling.py").write_text(MODEL)
    shutil.copyfile(str(files("planarian_miniswe") / "demo_counter.py"), workspace / "counter.py")
    commands = [
        "python3 counter.py serve >/dev/null 2>&1 & python3 counter.py add 3; echo good > f",
        "planarian snapshot good -d 'all works'",
        "echo bad > f; rm hello.txt; python3 counter.py add 4; planarian outcome good 'not so' --status failed",
        "planarian rollback good",
        "cat f hello.txt; python3 counter.py show",
        "planarian fork good -n a; planarian fork good -n b; planarian run a 'echo 1 > f; python3 counter.py add 10'",
        "planarian run b 'echo 2 > f; python3 counter.py add 20'",
        "planarian run a 'cat f'; planarian run b 'cat f'; cat f; planarian promote b",
        "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat f; python3 counter.py show",
    ]
    wanted = {"name": "story", "sandbox": sandbox, "process": process, "keep": False}
    done = mini.run(commands, wanted, model_class="calling.CallingModel")
    assert done.returncode == 0, done.stdout + done.stderr
    trajectory = mini.read()
    info, read = trajectory["info"], [m["content"] for m in trajectory["messages"] if m["role"] == "user"]
    back = next(i for i, text in enumerate(read) if "# The environment was rolled back" in text)
    assert "not so" in read[back], "the model reads what was tried from there"
    assert "notes" in read[back], "and what was undone in the service"
    kept = process == "criu"
    assert read[back + 1].endswith(f"good\nhello\n{3 if kept else 0}\n")
    counted = [text.split()[-1] for text in read[back + 2 : back + 4]]
    assert counted == (["13", "23"] if kept else ["10", "20"]), "the forks counted by themselves"
    assert "1\n2\ngood\n" in read[back + 4]
    assert info["submission"] == f"2\n{23 if kept else 0}\n"
    assert info["planarian"]["services"] == {"notes": "sql"}
    assert len(info["planarian"]["forks"]) == 2
    with closing(sqlite3.connect(file)) as reader:
        assert reader.execute("SELECT note FROM notes").fetchall() == [("milk",)]
    with Planarian.open(mini.home) as planarian:
        assert planarian.registry.sandboxes() == [], "keep: false"


def test_the_model_reads_that_a_statepoint_failed() -> None:
    """By the template of the example configuration."""
    template = get_config_from_spec(str(EXAMPLES / "planarian.yaml"))["model"]["observation_template"]
    error = CaptureError("the disk is full").to_dict()
    output = {"output": "x" * 10_001, "returncode": 3, "exception_info": "cut"}
    with_error = {**output, "extra": {"planarian": {"snapshot_error": error}}}
    (told,) = format_observation_messages([with_error], observation_template=template)
    assert "no statepoint was taken before this action: the disk is full" in told["content"]
    assert "1 characters, is left out" in told["content"]
    assert told["content"].startswith("error: cut\nexit code: 3\n")
    for extra in ({}, {"extra": {"exception_type": "x"}}, {"extra": {"planarian": {"statepoint": "sp-1"}}}):
        (plain,) = format_observation_messages([{**output, "output": "seen", **extra}], observation_template=template)
        assert "statepoint" not in plain["content"]
        assert plain["content"].endswith("output:\nseen")
