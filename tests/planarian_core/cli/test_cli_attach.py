"""``attach`` as a user types it, on fakes and after a simulated reboot of real backends."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planarian_core.testing.workloads import ASK_COUNTER, COUNTER_SERVER

DIRECTORY = ("--sandbox", "directory", "--filesystem", "copy", "--process", "respawn")
NAMESPACE = ("--sandbox", "namespace", "--filesystem", "copy", "--process", "criu")


def _write(cli: Any, text: str) -> None:
    cli("run", "--", "sh", "-c", f"printf %s {text} >f")


def test_one_that_runs_is_left_alone(cli: Any) -> None:
    sandbox = cli("new", "--name", "api")
    done = cli.run("attach", "api")
    assert (done.returncode, done.stdout) == (0, b"")
    assert f"{sandbox} runs: nothing was to be done" in done.stderr.decode()
    assert cli.json("attach") == {"sandbox": sandbox, "ran": True, "context": None}


def test_a_stopped_one_comes_back_and_what_was_left_is_kept(cli: Any) -> None:
    sandbox = cli("new")
    _write(cli, "one")
    point = cli("snapshot", "one")
    _write(cli, "left")
    cli("stop")
    context = cli("attach")
    assert context.startswith(f"# The environment was picked up again at statepoint {point}")
    assert cli("run", "cat", "f") == "one"
    safety = cli.json("log")["statepoints"][-1]
    assert safety["id"] in context
    cli("rollback", safety["id"])
    assert cli("run", "cat", "f") == "left"
    cli("stop")
    found = cli.json("attach", sandbox[:8])
    assert (found["ran"], found["context"]["action"], found["context"]["safety_id"]) == (False, "attach", None)


def test_as_left(cli: Any) -> None:
    cli("new")
    _write(cli, "one")
    cli("snapshot", "one")
    _write(cli, "left")
    cli("stop")
    assert "they ended with the sandbox" in cli("attach", "--as-left")
    assert cli("run", "cat", "f") == "left"


def test_a_shell_goes_without_json(cli: Any) -> None:
    done = cli.run("attach", "--shell", "--json")
    assert (done.returncode, json.loads(done.stdout)["error"]) == (2, "usage")


def test_an_attachment_that_was_cut_off_is_finished(process: Any) -> None:
    process("new")
    _write(process, "one")
    process("snapshot", "one")
    _write(process, "left")
    process("stop")
    assert process.run("attach", env={"PLANARIAN_FAULT": "rollback.switched=kill"}).returncode == -signal.SIGKILL
    done = process.run("attach")
    assert "had been cut off" in done.stderr.decode()
    assert "runs: nothing was to be done" in done.stderr.decode()
    assert process("run", "cat", "f") == "one"
    process("rollback", process.json("log")["statepoints"][-1]["id"])
    assert process("run", "cat", "f") == "left"


# --- after a reboot ---


@pytest.fixture(
    params=[
        pytest.param(NAMESPACE, marks=pytest.mark.needs("root", "criu", "namespaces"), id="namespace-criu"),
        pytest.param(DIRECTORY, marks=[pytest.mark.needs("linux"), pytest.mark.thorough], id="directory-respawn"),
    ]
)
def real(request: pytest.FixtureRequest, bare: Any) -> Iterator[Any]:
    """The command on a home with one sandbox of real backends, in which a server counts."""
    bare("new", *request.param)
    server = f"python3 -c '{COUNTER_SERVER}' counter.sock"
    bare(
        "run", "-n", "--", "bash", "-c", f"({server}) >/dev/null 2>&1 & until test -S counter.sock; do sleep .02; done"
    )
    yield bare
    for row in reversed(bare.json("list")["sandboxes"]):
        bare("rm", "--yes", row["id"])


def _reboot(cli: Any) -> None:
    """Everything of the sandbox is killed at once, its control groups are gone, and another boot id is recorded."""
    with cli.open() as planarian:
        record = planarian.sandbox().record
        assert record.live is not None
        for pid in planarian.plugins.sandbox(record.spec.backend).tasks(record.spec, record.live):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for group in record.live.cgroups:
            _remove_group(Path(group))
        earlier = replace(record.live, boot_id="00000000-0000-0000-0000-000000000000")
        planarian.registry.update_sandbox(replace(record, live=earlier))


def _remove_group(group: Path) -> None:
    deadline = time.monotonic() + 30
    while group.exists():
        for inner in sorted(group.rglob("*"), reverse=True):
            if inner.is_dir():
                with suppress(OSError):
                    inner.rmdir()
        with suppress(OSError):
            group.rmdir()
        assert time.monotonic() < deadline, f"{group} can't be removed"
        time.sleep(0.01)


def _ask(cli: Any, what: str) -> int:
    script = 'for i in $(seq 200); do python3 -c "$1" counter.sock "$2" 2>/dev/null && exit; sleep .02; done; exit 1'
    return int(cli("run", "--", "bash", "-c", script, "bash", ASK_COUNTER, what))


def test_after_a_reboot_it_goes_on_from_its_newest_statepoint(real: Any) -> None:
    memory = real.json("list")["sandboxes"][0]["process"] == "criu"
    assert _ask(real, "add") == 1
    _write(real, "one")
    point = real("snapshot", "one")
    _write(real, "left")
    assert _ask(real, "add") == 2
    _reboot(real)
    assert real.json("list")["sandboxes"][0]["state"] == "dead"
    restored = real.json("attach")["context"]
    assert restored["statepoint"]["id"] == point
    assert real("run", "cat", "f") == "one"
    assert _ask(real, "add") == (2 if memory else 1)
    real("rollback", restored["safety_id"])
    assert real("run", "cat", "f") == "left"
    assert "runs: nothing" in real.run("attach").stderr.decode()


def test_after_a_reboot_as_it_was_left(real: Any) -> None:
    real("snapshot", "one")
    _write(real, "left")
    _reboot(real)
    restored = real.json("attach", "--as-left")["context"]
    assert any(gap["domain"] == "processes" for gap in restored["not_undone"])
    assert real("run", "cat", "f") == "left"
    assert real.json("snapshot", "two")["process_list"] == [], "processes start anew"


def test_after_a_reboot_without_any_statepoint(real: Any) -> None:
    _write(real, "left")
    _reboot(real)
    assert "nothing had been captured yet" in real("attach")
    assert real("run", "cat", "f") == "left"


def test_a_shell_follows(real: Any) -> None:
    real("snapshot", "one")
    _reboot(real)
    done = real.run("attach", "--shell", stdin=b"echo in the shell\nexit 3\n")
    assert done.returncode == 3
    assert done.stdout.decode().endswith("in the shell\n")
    assert json.loads(real("list", "--json"))["sandboxes"][0]["state"] == "running"
