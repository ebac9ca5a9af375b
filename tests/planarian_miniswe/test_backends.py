"""The adapter on real backends: what the agent does with ``planarian`` in its own shell."""

from __future__ import annotations

import re
from typing import Any

import pytest
from minisweagent.exceptions import Submitted

from planarian_core.errors import SandboxError
from planarian_miniswe import PlanarianEnvironment


def run(environment: PlanarianEnvironment, command: str, **keywords: Any) -> str:
    return str(environment.execute({"command": command}, **keywords)["output"])


def test_output_and_errors_come_in_order(environment: PlanarianEnvironment) -> None:
    assert run(environment, "echo 1; echo 2 >&2; echo 3; cat hello.txt") == "1\n2\n3\nhello\n"


def test_a_directory_inside_the_workspace(environment: PlanarianEnvironment) -> None:
    assert run(environment, "mkdir -p a/b; pwd", cwd="").strip() == environment.sandbox.workspace
    assert run(environment, "pwd", cwd="a/b").strip() == f"{environment.sandbox.workspace}/a/b"


def test_a_timeout_is_an_observation_with_what_was_said_before(environment: PlanarianEnvironment) -> None:
    seen = environment.execute({"command": "echo begun; sleep 60"}, timeout=0.5)
    assert seen["output"] == "begun\n"
    assert seen["returncode"] == -1
    assert "timed out after 0.5 seconds" in seen["exception_info"]
    assert seen["extra"]["exception_type"] == "TimeoutExpired"


def test_a_rollback_in_a_compound_command_ends_it(environment: PlanarianEnvironment) -> None:
    command = "echo a > f; planarian snapshot before; echo b > f; planarian rollback before; echo never > g; echo never"
    seen = environment.execute({"command": command})
    assert seen["returncode"] == 0
    assert "never" not in seen["output"].splitlines()
    assert re.search(r"^# The environment was rolled back to statepoint sp-\w+ \(`before`\)$", seen["output"], re.M)
    assert run(environment, "cat f; ls g") == "a\nls: cannot access 'g': No such file or directory\n"


def test_a_snapshot_in_the_middle_does_not_run_the_rest_again(environment: PlanarianEnvironment) -> None:
    run(environment, "echo 1 >> log; planarian snapshot middle; sleep 0.3; echo 2 >> log")
    assert run(environment, "cat log") == "1\n2\n"
    assert "rolled back" in run(environment, "planarian rollback middle")
    # Were the shell of the first action alive again, it would write its second line now.
    assert run(environment, "sleep 1; cat log") == "1\n"


def test_a_background_process_belongs_to_the_statepoint(environment: PlanarianEnvironment) -> None:
    run(environment, "echo 'while sleep 0.1; do date +%N > tick; done' > tick.sh; sh tick.sh >/dev/null 2>&1 &")
    ticks = 'a=$(cat tick); sleep 1; [ "$a" != "$(cat tick)" ] && echo ticking'
    assert "ticking" in run(environment, f"sleep 0.5; {ticks}")
    run(environment, "planarian snapshot ticking")
    assert "rolled back" in run(environment, "planarian rollback ticking")
    assert "ticking" in run(environment, f"sleep 0.5; {ticks}")


def test_evidence_from_inside(environment: PlanarianEnvironment) -> None:
    run(environment, "planarian snapshot start -d 'nothing done yet'")
    assert run(environment, "planarian outcome start tried and failed --status failed") == "noted\n"
    ledger = run(environment, "planarian ledger")
    assert "`start`" in ledger
    assert "nothing done yet" in ledger
    assert "outcome, failed: tried and failed" in ledger
    assert "tried and failed" in run(environment, "planarian rollback start")


def test_a_request_that_cannot_be_meant_fails_like_a_command(environment: PlanarianEnvironment) -> None:
    seen = environment.execute({"command": "planarian rollback nonesuch || echo went on"})
    assert "no statepoint is called 'nonesuch'" in seen["output"]
    assert seen["output"].endswith("went on\n")
    assert environment.execute({"command": "planarian frobnicate"})["returncode"] == 2


def test_a_fork_from_inside_is_a_sandbox_of_its_own(environment: PlanarianEnvironment) -> None:
    run(environment, "echo a > f; planarian snapshot before; echo b > f")
    fork = run(environment, "planarian fork before").split()[0]
    with PlanarianEnvironment(planarian=environment.planarian, attach=fork) as other:
        assert run(other, "cat f; echo c > f; cat f") == "a\nc\n"
    assert run(environment, "cat f") == "b\n"


def test_a_deleted_working_directory_is_an_observation(environment: PlanarianEnvironment) -> None:
    run(environment, "mkdir sub; planarian snapshot before; rm -r sub")
    seen = environment.execute({"command": "echo hello"}, cwd="sub")
    assert seen["returncode"] == 1
    assert "No such file or directory" in seen["output"]
    assert "planarian rollback" in seen["output"]
    assert "rolled back" in run(environment, "planarian rollback before", cwd="sub")
    assert run(environment, "echo hello", cwd="sub") == "hello\n"


def test_a_cut_output_submits_nothing(environment: PlanarianEnvironment) -> None:
    environment.config.output_limit = 1000
    marker = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
    seen = environment.execute({"command": f"echo {marker}; seq 10000"})
    assert "longer than 1000 bytes" in seen["exception_info"]
    environment.config.output_limit = 100_000
    with pytest.raises(Submitted):
        run(environment, f"echo {marker}; seq 10000")


def test_a_dead_sandbox_is_an_error_not_an_output(environment: PlanarianEnvironment) -> None:
    environment.sandbox.stop()
    with pytest.raises(SandboxError):
        run(environment, "echo hello")


def test_the_model_is_told_when_somebody_rolled_back_meanwhile(environment: PlanarianEnvironment) -> None:
    environment.planarian.set_policy(environment.sandbox, "every-call")
    run(environment, "echo one > f")
    run(environment, "echo two > f")
    environment.sandbox.rollback("@head~1")
    told, _, output = run(environment, "cat f").partition("statepoints.\n\n")
    assert told.startswith("# The environment was brought elsewhere")
    assert re.search(r"now at statepoint sp-\w+ echo one > f$", told, re.M)
    assert output == "one\n"
    assert run(environment, "cat f") == "one\n", "told once"


def test_a_rollback_to_where_one_is_counts_too(environment: PlanarianEnvironment) -> None:
    point = environment.sandbox.snapshot("start")
    run(environment, "echo one > f")
    environment.sandbox.rollback(point)
    seen = run(environment, "ls f")
    assert "brought elsewhere" in seen
    assert "`start`" in seen
