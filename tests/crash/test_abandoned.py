"""A runtime is killed in the middle of a tool call: no statepoint is of that middle (guarantee 2)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from planarian_core import Planarian
from planarian_core.sandbox import Sandbox

RUNTIME = """\
import sys
from planarian_core import Planarian
home, sandbox, command, session = sys.argv[1:]
with Planarian.open(home) as planarian:
    planarian.sandbox(sandbox).run(command, session=session)
"""
CALL = "mkfifo go; echo begun > f; cat go; echo ended > f"
LOOP = "mkfifo go; echo begun > f; for i in 1 2 3; do cat go; done; echo ended > f"
"""They go on when something is written to ``go``."""


def _tasks(planarian: Planarian, sandbox: Sandbox) -> set[tuple[str, ...]]:
    """Argument lists of what runs in the sandbox, as the host sees it."""
    record = planarian.sandbox(sandbox.id).record
    assert record.live is not None
    found = set()
    for pid in planarian.plugins.sandbox(record.spec.backend).tasks(record.spec, record.live):
        try:
            content = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        found.add(tuple(os.fsdecode(argument) for argument in content.split(b"\0")[:-1]))
    return found


def _call_whose_runtime_is_killed(planarian: Planarian, sandbox: Sandbox, command: str, session: str = "") -> None:
    """Run a command that writes ``begun`` to ``f``, and kill its runtime then."""
    arguments = [sys.executable, "-c", RUNTIME, str(planarian.home), sandbox.id, command, session]
    runtime = subprocess.Popen(arguments)
    try:
        deadline = time.monotonic() + 60
        while sandbox.run("cat f").stdout != "begun\n":
            assert runtime.poll() is None, "the runtime ended by itself"
            assert time.monotonic() < deadline, "the call did not begin"
            time.sleep(0.05)
    finally:
        runtime.kill()
        runtime.wait()


def _goes_on(sandbox: Sandbox) -> bool:
    """Whether something waits at ``go``: the kernel makes the writer wait for that."""
    return sandbox.run(["timeout", "1", "sh", "-c", "echo > go"]).exit_code == 0


def _leftovers(sandbox: Sandbox) -> list[Path]:
    spec = sandbox.record.spec
    places = [Path(spec.layer) / "upper/run/planarian", Path(spec.home, "sandboxes", sandbox.id, "run")]
    if not any(place.is_dir() for place in places):
        places = [Path(spec.layer)]
    folders = [f for place in places if place.is_dir() for f in place.rglob("*") if f.name in ("listening", "calls")]
    assert folders
    return [path for folder in folders for path in folder.iterdir() if path.name != "agent.sock"]


@pytest.mark.parametrize(
    ("command", "session"),
    [
        pytest.param(CALL, "", id="plain"),
        pytest.param(f"env -i sh -c '{CALL}'", "", id="without-its-mark"),
        pytest.param(f"(trap '' INT HUP; setsid -w sh -c '{CALL}'); true", "shell", id="deaf-in-a-shell"),
        pytest.param(LOOP, "shell", id="shell-loop"),
    ],
)
def test_a_snapshot_ends_the_call_first(planarian: Planarian, sandbox: Sandbox, command: str, session: str) -> None:
    server = ("sleep", "1001")
    sandbox.spawn(list(server))
    sandbox.run("sleep 1002 </dev/null >/dev/null 2>&1 &")
    sandbox.run("x=kept; sleep 1003 </dev/null >/dev/null 2>&1 &", session="shell")
    kept = {server, ("sleep", "1002"), ("sleep", "1003")}
    _call_whose_runtime_is_killed(planarian, sandbox, command, session)
    assert _tasks(planarian, sandbox) > {*kept, ("cat", "go")}
    point = planarian.snapshot(sandbox, name="middle")
    assert {task for task in _tasks(planarian, sandbox) if task[0] in ("cat", "sleep")} == kept
    assert {process.argv for process in point.process_list if process.argv[0] in ("cat", "sleep")} == kept
    assert _leftovers(sandbox) == []
    assert not _goes_on(sandbox)
    assert sandbox.run("cat f").stdout == "begun\n"
    assert sandbox.run("echo $x", session="shell").stdout == "kept\n"
    planarian.rollback(sandbox, "middle")
    assert not _goes_on(sandbox)
    assert sandbox.run("cat f").stdout == "begun\n", "the rest of the call does not run after a rollback"


def test_it_is_known_still_when_other_calls_came_between(planarian: Planarian, sandbox: Sandbox) -> None:
    _call_whose_runtime_is_killed(planarian, sandbox, "echo begun > f; sleep 1000; echo ended > f")
    assert sandbox.run("planarian outcome nothing x").exit_code != 69, "requests are answered"
    planarian.snapshot(sandbox)
    assert ("sleep", "1000") not in _tasks(planarian, sandbox)


def test_a_rollback_s_safety_statepoint_is_of_a_boundary_too(planarian: Planarian, sandbox: Sandbox) -> None:
    planarian.snapshot(sandbox, name="one")
    _call_whose_runtime_is_killed(planarian, sandbox, CALL)
    restored = planarian.rollback(sandbox, "one")
    assert restored.safety_id is not None
    planarian.rollback(sandbox, restored.safety_id)
    assert not _goes_on(sandbox)
    assert sandbox.run("cat f").stdout == "begun\n"


def test_planted_files_end_nothing(planarian: Planarian, sandbox: Sandbox) -> None:
    """A sandbox may name what it likes: only its own processes can be meant, and a snapshot is taken all the same."""
    sandbox.spawn(["sleep", "1001"])
    bystander = subprocess.Popen(["sleep", "1002"], env={"PLANARIAN_CALL": "0123456789abcdef"})
    folder = "/run/planarian/listening"
    if sandbox.record.spec.backend == "directory":
        folder = str(Path(sandbox.record.spec.home, "sandboxes", sandbox.id, "run/listening"))
    try:
        planted = (
            "touch 0123456789abcdef none .. '*' 'a b' call-x; mkfifo fedcba9876543210; ln -s /etc aaaaaaaaaaaaaaaa"
        )
        assert sandbox.run(f"cd {folder} && {planted}; mkdir bbbbbbbbbbbbbbbb; seq 3000 | xargs touch").exit_code == 0
        planarian.snapshot(sandbox, name="one")
        assert bystander.poll() is None
        assert ("sleep", "1001") in _tasks(planarian, sandbox)
        assert sandbox.run(f"rm -rf {folder}").exit_code == 0
        planarian.snapshot(sandbox, name="two")
    finally:
        bystander.kill()
        bystander.wait()
