"""The adapter on fakes: settings, policy, failures, what a trajectory gets."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib.metadata import requires
from pathlib import Path

import pytest
from minisweagent.exceptions import Submitted

from planarian_core import Planarian
from planarian_core.errors import ConfigurationError, LineageError, SandboxError
from planarian_core.hookspecs import BackendFactory, hookimpl
from planarian_core.interfaces import Layer
from planarian_core.model import Artefact, Statepoint
from planarian_core.testing.fakes import FakeFilesystem, FakePlugin
from planarian_miniswe import PlanarianEnvironment, requirements

MakeEnvironment = Callable[..., PlanarianEnvironment]
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo the; echo patch"


def run(environment: PlanarianEnvironment, *commands: str) -> list[dict[str, object]]:
    return [environment.execute({"command": command}) for command in commands]


def statepoints(environment: PlanarianEnvironment) -> list[Statepoint]:
    environment.planarian.sandboxes.lock(environment.sandbox.id).acquire(exclusive=True).release()
    return environment.planarian.registry.statepoints(environment.sandbox.id)


# --- importing and settings ---


def test_importing_needs_no_mini_swe_agent_and_making_one_says_what_is_missing() -> None:
    script = """
import sys
sys.modules["minisweagent"] = sys.modules["pydantic"] = None
from planarian_miniswe import PlanarianEnvironment, requirements
try:
    PlanarianEnvironment()
except Exception as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert "mini-swe-agent can't be imported" in done.stdout, done.stderr
    assert "pip install 'planarian[miniswe]'" in done.stdout


def test_importing_prints_nothing_and_loads_no_framework() -> None:
    script = "import sys, planarian_miniswe; sys.exit('minisweagent' in sys.modules or 'pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"polcy": "manual"}, "unknown key 'polcy'"),
        ({"timeout": "30"}, "timeout must be float"),
        ({"keep": 1}, "keep must be bool"),
        ({"timeout": True}, "timeout must be float"),
        ({"env": {"ANSWER": 42}}, "ANSWER must be a string"),
        ({"policy": "sometimes"}, "policy 'sometimes' is unknown"),
        ({"sandbox": "nonesuch"}, "no sandbox backend called 'nonesuch'"),
        ({"workspace": "/nonesuch"}, "/nonesuch can't be used"),
        ({"fork": "always"}, "fork can't be 'always'"),
        ({"interpreter": []}, "interpreter must be words"),
    ],
)
def test_settings_that_cannot_be_meant_are_named(
    make: MakeEnvironment, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make(**settings)


def test_workspace_is_cwd_by_default(make: MakeEnvironment, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert make(workspace="", cwd=str(workspace)).sandbox.workspace == str(workspace)
    monkeypatch.chdir(workspace)
    assert make(workspace="").sandbox.workspace == str(workspace)


def test_variables_are_forwarded_only_when_named(make: MakeEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORWARDED_ONE", "1")
    monkeypatch.setenv("SECRET_KEY", "s")
    environment = make(forward_env=["FORWARDED_*"], env={"OWN": "2"})
    (seen,) = run(environment, 'echo "$FORWARDED_ONE $OWN [$SECRET_KEY]"')
    assert seen["output"] == "1 2 []\n"


def test_the_interpreter_gets_the_action_as_its_last_argument(make: MakeEnvironment) -> None:
    (seen,) = run(make(interpreter=["python3", "-c"], policy="manual"), "print(6 * 7)")
    assert seen["output"] == "42\n"


def test_a_file_for_bash_to_begin_with_is_read_once(make: MakeEnvironment, workspace: Path) -> None:
    (workspace / "begin").write_text("echo begun")
    environment = make(policy="manual", env={"BASH_ENV": str(workspace / "begin")})
    assert run(environment, "echo done")[0]["output"] == "begun\ndone\n"


# --- what is said through mini-swe-agent's loader ---


LOAD = """
import sys
{before}
from minisweagent.environments import get_environment
try:
    get_environment({{"environment_class": "planarian_miniswe.PlanarianEnvironment"}})
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (
            "import importlib.metadata as m; m.version = lambda name: '3.0.1'",
            ["ConfigurationError", "mini-swe-agent 3.0.1 is installed", "pip install 'planarian[miniswe]'"],
        ),
        ("sys.modules['pluggy'] = None", ["RuntimeError", "not whole", "pluggy", "'planarian[miniswe]'"]),
    ],
    ids=["a version outside the range", "a part of Planarian is missing"],
)
def test_mini_swe_agent_s_loader_shows_what_is_wrong(before: str, said: list[str]) -> None:
    """Without ImportErrors: it would say "Unknown environment type" for those."""
    script = LOAD.format(before=before)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    for words in said:
        assert words in done.stdout, done.stdout + done.stderr


def test_the_range_is_that_of_the_extra() -> None:
    wanted = {r.partition(";")[0].strip() for r in requires("planarian") or () if r.startswith("mini-swe-agent")}
    assert wanted == {"mini-swe-agent<3,>=2.4"}
    assert (requirements.AT_LEAST, requirements.BELOW) == ((2, 4), (3,))


# --- observations ---


def test_an_observation_is_that_of_the_local_environment(make: MakeEnvironment) -> None:
    seen, failed = run(make(policy="manual"), "echo out; echo err >&2; echo out again", "exit 7")
    assert seen == {"output": "out\nerr\nout again\n", "returncode": 0, "exception_info": ""}
    assert failed == {"output": "", "returncode": 7, "exception_info": ""}


@pytest.mark.parametrize(
    ("command", "kind"),
    [("echo \0", "ValueError"), ("echo " + "x" * 200_000, "OSError"), ("echo \ud800", "UnicodeEncodeError")],
    ids=["null", "long", "surrogate"],
)
def test_a_command_that_no_system_could_run_is_an_observation(make: MakeEnvironment, command: str, kind: str) -> None:
    (seen,) = run(make(), command)
    assert seen["returncode"] == -1
    assert seen["extra"]["exception_type"] == kind  # type: ignore[index]  # an observation is plain data


def test_a_failure_of_the_sandbox_is_raised(make: MakeEnvironment) -> None:
    environment = make()
    environment.sandbox.stop()
    with pytest.raises(SandboxError):
        run(environment, "true")


# --- statepoints by policy ---


@pytest.mark.parametrize(
    ("policy", "taken"),
    [
        ("every-call", ["one", "two", "three"]),
        ("every:2", ["two"]),
        ("on-change", ["one", "two", "three"]),
        ("milestones", []),
        ("manual", []),
    ],
)
def test_a_statepoint_after_an_action_as_the_policy_says(make: MakeEnvironment, policy: str, taken: list[str]) -> None:
    environment = make(policy=policy)
    run(environment, "echo one", "echo two", "echo three")
    found = statepoints(environment)
    assert [s.description.removeprefix("echo ") for s in found] == taken
    assert all(s.automatic for s in found)


def test_the_description_is_the_action_bounded(make: MakeEnvironment) -> None:
    environment = make()
    run(environment, "echo first\n: " + "x" * 1000)
    (statepoint,) = statepoints(environment)
    assert statepoint.description.startswith("echo first : xxx")
    assert len(statepoint.description) <= 300


def test_the_next_observation_names_the_statepoint_that_it_began_from(make: MakeEnvironment) -> None:
    environment = make()
    first, second = run(environment, "true", "true")
    assert "extra" not in first
    assert second["extra"] == {"planarian": {"statepoint": statepoints(environment)[0].id}}


class _GatedFilesystem(FakeFilesystem):
    """A capture lasts until the gate is opened."""

    name = "gated"
    begun, gate = threading.Event(), threading.Event()

    def capture(self, layer: Layer, statepoint_id: str) -> Artefact:
        self.begun.set()
        assert self.gate.wait(30)
        return super().capture(layer, statepoint_id)


class _GatedPlugin:
    @hookimpl
    def planarian_backends(self) -> list[BackendFactory]:
        return [BackendFactory("filesystem", "gated", _GatedFilesystem, rank=-20)]


def test_the_capture_overlaps_what_follows_the_action(tmp_path: Path, workspace: Path) -> None:
    with Planarian.open(tmp_path / "home", plugins=[FakePlugin(), _GatedPlugin()]) as planarian:
        planarian.with_config(sandbox="fake", process="fake")
        with PlanarianEnvironment(planarian=planarian, workspace=str(workspace), filesystem="gated") as environment:
            run(environment, "true")  # returns although the capture can't end
            assert _GatedFilesystem.begun.wait(30)
            _GatedFilesystem.gate.set()
            (seen,) = run(environment, "true")
            assert "statepoint" in seen["extra"]["planarian"]  # type: ignore[index]  # plain data


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots fail as they do on a full disk."""
    monkeypatch.setenv("PLANARIAN_FAULT", "snapshot.files=fail")


@pytest.mark.usefixtures("full_disk")
def test_a_failed_automatic_snapshot_is_reported_and_logged(
    make: MakeEnvironment, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = make()
    first, second = run(environment, "echo one", "echo two")
    assert first["output"] == "one\n"
    assert second["output"] == "two\n"
    assert second["extra"]["planarian"]["snapshot_error"]["error"] == "capture"  # type: ignore[index]  # plain data
    monkeypatch.delenv("PLANARIAN_FAULT")
    environment.close()
    errors = [r for r in caplog.records if r.levelno == logging.ERROR and "No statepoint was taken" in r.getMessage()]
    assert errors


# --- submission ---


def test_a_submission_takes_a_last_statepoint(make: MakeEnvironment) -> None:
    environment = make(policy="milestones")
    with pytest.raises(Submitted) as caught:
        run(environment, SUBMIT)
    (statepoint,) = statepoints(environment)
    assert statepoint.description == "the agent submitted"
    (message,) = caught.value.messages
    assert message["content"] == message["extra"]["submission"] == "the\npatch\n"
    assert message["extra"]["exit_status"] == "Submitted"
    assert message["extra"]["planarian"] == {"sandbox": environment.sandbox.id, "statepoint": statepoint.id}


@pytest.mark.usefixtures("full_disk")
def test_a_submission_goes_through_without_its_statepoint_and_says_so(make: MakeEnvironment) -> None:
    with pytest.raises(Submitted) as caught:
        run(make(policy="milestones"), SUBMIT)
    extra = caught.value.messages[0]["extra"]
    assert extra["submission"] == "the\npatch\n"
    assert extra["planarian"]["snapshot_error"]["error"] == "capture"


def test_under_manual_a_submission_takes_none(make: MakeEnvironment) -> None:
    environment = make(policy="manual")
    with pytest.raises(Submitted):
        run(environment, SUBMIT)
    assert statepoints(environment) == []


def test_a_failed_command_submits_nothing(make: MakeEnvironment) -> None:
    (seen,) = run(make(policy="manual"), f"{SUBMIT}; false")
    assert seen["returncode"] == 1


# --- life cycle ---


def test_attach_goes_on_in_a_sandbox_and_never_removes_it(make: MakeEnvironment, fake_planarian: Planarian) -> None:
    first = make(name="mine")
    second = make(attach="mine", keep=False)
    assert second.sandbox.id == first.sandbox.id
    second.close()
    assert fake_planarian.sandbox("mine").id == first.sandbox.id
    with pytest.raises(LineageError, match="nonesuch"):
        make(attach="nonesuch")


def test_attach_picks_a_stopped_sandbox_up_and_sets_its_policy(
    make: MakeEnvironment, fake_planarian: Planarian, caplog: pytest.LogCaptureFixture
) -> None:
    first = make(name="mine", policy="manual")
    fake_planarian.snapshot(first.sandbox, name="kept")
    first.sandbox.stop()
    second = make(attach="mine", policy="every:2")
    assert "was picked up again at statepoint" in caplog.text
    (seen,) = run(second, "echo runs")
    assert str(seen["output"]).startswith("# The environment was picked up again at statepoint")
    assert str(seen["output"]).endswith("\n\nruns\n")
    assert run(second, "echo runs")[0]["output"] == "runs\n", "told once"
    assert second.sandbox.record.policy == "every:2"
    assert make(attach="mine").sandbox.record.policy == "every:2", "it stays with the sandbox"


@pytest.mark.parametrize("keep", [True, False])
def test_the_sandbox_stays_unless_told_otherwise(make: MakeEnvironment, fake_planarian: Planarian, keep: bool) -> None:
    with make(keep=keep) as environment:
        run(environment, "true")
    assert [r.id for r in fake_planarian.registry.sandboxes()] == ([environment.sandbox.id] if keep else [])
    environment.close()  # a second time changes nothing


def test_a_sandbox_that_a_fork_needs_stays(make: MakeEnvironment, caplog: pytest.LogCaptureFixture) -> None:
    environment = make(keep=False)
    environment.planarian.fork(environment.sandbox.snapshot("before"))
    environment.close()
    assert "was not removed" in caplog.text


def test_the_trajectory_says_where_to_go_back_to(make: MakeEnvironment) -> None:
    environment = make(env={"A": "b"})
    info = json.loads(json.dumps(environment.serialize()))["info"]
    assert info["config"]["environment"]["env"] == {"A": "b"}
    assert info["config"]["environment_type"] == "planarian_miniswe.environment.PlanarianEnvironment"
    said = info["planarian"]
    assert said["sandbox"] == environment.sandbox.id
    assert said["statepoint"] is None
    run(environment, "echo one; planarian fork @head || true")
    (first,) = statepoints(environment)
    assert environment.serialize()["info"]["planarian"]["statepoint"] == first.id
    environment.close()
    json.dumps(environment.serialize())  # also after the end


def test_the_trajectory_names_the_remote_services(make: MakeEnvironment, fake_planarian: Planarian) -> None:
    fake_planarian.with_config(services={"shop": {"kind": "sql", "dsn": "postgresql://user:secret@host/shop"}})
    said = make().serialize()["info"]["planarian"]
    assert said["services"] == {"shop": "sql"}
    assert "secret" not in json.dumps(said)


# --- what somebody else does meanwhile ---


def test_a_statepoint_that_somebody_takes_is_none_of_the_model_s_business(make: MakeEnvironment) -> None:
    environment = make()
    run(environment, "echo one > f")
    environment.sandbox.snapshot("by a user")
    assert run(environment, "cat f")[0]["output"] == "one\n"


def test_what_was_told_is_no_submission_s_obstacle(make: MakeEnvironment) -> None:
    environment = make()
    run(environment, "echo one")
    environment.planarian.rollback(environment.sandbox, statepoints(environment)[0])
    with pytest.raises(Submitted):
        run(environment, SUBMIT)


def test_templates_get_what_the_local_environment_offers(make: MakeEnvironment) -> None:
    variables = make(timeout=12).get_template_vars(task="t")
    assert variables["timeout"] == 12
    assert variables["task"] == "t"
    assert {"system", "release", "machine", "PATH"} <= variables.keys()
