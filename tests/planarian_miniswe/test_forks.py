"""What the agent does with forks in its own shell, and the setting ``fork``, on real backends."""

from __future__ import annotations

import re
from typing import Any

import pytest

from planarian_core.model import SandboxRecord
from planarian_miniswe import PlanarianEnvironment


def run(environment: PlanarianEnvironment, command: str) -> dict[str, Any]:
    return environment.execute({"command": command})


def forks(environment: PlanarianEnvironment) -> list[SandboxRecord]:
    return [r for r in environment.planarian.registry.sandboxes() if r.made_by]


def test_two_ways_are_tried_compared_and_the_better_one_is_promoted(environment: PlanarianEnvironment) -> None:
    run(environment, "echo base > f; planarian snapshot base")
    made = run(environment, "planarian fork base -n one && planarian fork base -n two")
    assert made["returncode"] == 0, made["output"]
    worked = run(environment, "planarian run one 'echo 1 > f; pwd'; planarian run two -- sh -c 'echo 22 > f; exit 3'")
    assert worked["returncode"] == 3, "the command's own exit code"
    compared = run(environment, "for way in one two; do planarian run $way 'cat f'; done; cat f")
    assert compared["output"] == "1\n22\nbase\n"
    promoted = run(environment, "planarian promote two; echo never")
    assert "never" not in promoted["output"]
    assert promoted["returncode"] == 0, promoted["output"]
    assert re.search(r"^# .*statepoint sp-\w+", promoted["output"], re.M)
    assert run(environment, "cat f; planarian rm one; planarian rm two")["output"].startswith("22\n")
    assert forks(environment) == []


def test_a_promotion_keeps_what_was_done_meanwhile(environment: PlanarianEnvironment) -> None:
    run(environment, "echo base > f; planarian snapshot base; planarian fork base -n one")
    run(environment, "planarian run one 'echo 1 > f'; echo newer > f")
    promoted = run(environment, "planarian promote one")["output"]
    assert run(environment, "cat f")["output"] == "1\n"
    kept = [s.id for s in environment.planarian.registry.statepoints(environment.sandbox.id) if s.id in promoted]
    contents = []
    for statepoint in kept:
        environment.sandbox.rollback(statepoint)
        contents.append(environment.sandbox.run("cat f").stdout)
    assert "newer\n" in contents, "the promotion's context names the statepoint that keeps it"


def test_a_statepoint_follows_a_command_in_a_fork_as_the_policy_says(environment: PlanarianEnvironment) -> None:
    run(environment, "planarian snapshot base; planarian fork base -n one")
    environment.planarian.set_policy(environment.planarian.sandbox("one"), "every-call")
    run(environment, "planarian run one 'echo 1 > f'")
    (taken,) = environment.planarian.registry.statepoints(environment.planarian.sandbox("one").id)
    assert taken.description == "echo 1 > f"


def test_a_command_in_a_fork_ends_with_the_action_s_time(environment: PlanarianEnvironment) -> None:
    run(environment, "planarian snapshot base; planarian fork base -n one")
    seen = environment.execute({"command": "echo begun; planarian run one 'sleep 600'"}, timeout=2)
    assert seen["output"].startswith("begun\n")
    assert seen["returncode"] != 0
    assert run(environment, "planarian run one 'pgrep -f \"[s]leep 600\"'")["returncode"] != 0


def test_an_agent_reaches_no_sandbox_but_its_own_forks(environment: PlanarianEnvironment) -> None:
    point = environment.sandbox.snapshot("base")
    theirs = environment.planarian.fork(point, name="theirs")
    for request in (f"run {theirs.id} id", "promote theirs", "rm theirs", f"run {environment.sandbox.id} id"):
        seen = run(environment, f"planarian {request}")
        assert seen["returncode"] == 1
        assert "is no fork of this environment" in seen["output"]
    assert environment.planarian.sandbox("theirs").run("echo lives").stdout == "lives\n"


def test_a_fork_s_command_can_t_reach_back(environment: PlanarianEnvironment) -> None:
    """It would wait for a lock that its own caller holds."""
    made = run(environment, "planarian snapshot base && planarian fork base -n one && planarian fork base -n two")
    assert made["returncode"] == 0, made
    for request in ("promote two", "run two id", "rm one"):
        seen = run(environment, f"planarian run one 'planarian {request}'")
        assert "can't be used from within a fork" in seen["output"]
    noted = run(environment, "planarian run one 'planarian snapshot inner && planarian ledger'")
    assert "`inner`" in noted["output"]


def test_none_makes_none(environment: PlanarianEnvironment) -> None:
    environment.config.fork = "none"
    seen = run(environment, "planarian snapshot base; planarian fork base || echo went on")
    assert "not to be forked" in seen["output"]
    assert seen["output"].endswith("went on\n")
    assert forks(environment) == []


def test_on_rollback_what_is_left_goes_on_in_a_fork(environment: PlanarianEnvironment) -> None:
    environment.config.fork = "on-rollback"
    run(environment, "echo good > f; planarian snapshot good; echo other > f")
    run(environment, "sleep 314159 >/dev/null 2>&1 &")
    seen = run(environment, "planarian rollback good")
    assert "# The environment was rolled back to statepoint" in seen["output"]
    (kept,) = forks(environment)
    assert f"goes on in the fork {kept.id}" in seen["output"]
    both = run(environment, f"cat f; planarian run {kept.id} 'cat f; pgrep -fc \"[s]leep 314159\"'")
    assert both["output"] == "good\nother\n1\n", "files and processes of both lines"
    assert environment.serialize()["info"]["planarian"]["forks"] == [kept.id]
    run(environment, f"planarian promote {kept.id}")
    assert run(environment, "cat f")["output"] == "other\n"


def test_a_rollback_happens_where_no_more_forks_are_allowed(environment: PlanarianEnvironment) -> None:
    environment.config.fork = "on-rollback"
    environment.planarian.with_config(agent_forks=0)
    run(environment, "echo good > f; planarian snapshot good; echo bad > f")
    seen = run(environment, "planarian rollback good")
    assert "does not go on in a fork" in seen["output"]
    assert "no more than 0" in seen["output"]
    assert run(environment, "cat f")["output"] == "good\n"


@pytest.mark.parametrize("environment", [("directory", "respawn")], indirect=True)
def test_the_agent_s_forks_end_with_a_sandbox_that_is_not_kept(environment: PlanarianEnvironment) -> None:
    environment.config.keep = False
    run(environment, "planarian snapshot base; planarian fork base -n one")
    environment.close()
    assert environment.planarian.registry.sandboxes() == []
