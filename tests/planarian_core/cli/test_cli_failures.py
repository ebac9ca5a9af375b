"""Bad input and bad homes: an exit code, what is true now, the next step, and never a traceback."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest

from planarian_core.model import Statepoint, Status, utc_now


def test_unknown_and_ambiguous_names(cli: Any) -> None:
    assert "Next: planarian new" in cli.fails(3, "snapshot")
    cli("new")
    assert "Next: planarian list" in cli.fails(3, "log", "-s", "nonesuch")
    assert "Next: planarian log" in cli.fails(3, "rollback", "nonesuch")
    assert "Next: planarian snapshot" in cli.fails(3, "rollback", "@head")
    cli("snapshot", "one")
    assert "1 ancestors here" not in cli.fails(3, "show", "@head~1")
    assert "can't be a name" in cli.fails(3, "snapshot", "a/b")
    assert "is taken" in cli.fails(3, "snapshot", "one")
    for sandbox in ("sb-abc111111111", "sb-abc222222222"):
        _copy_sandbox(cli, sandbox)
    assert "is ambiguous: sb-abc111111111, sb-abc222222222" in cli.fails(3, "log", "-s", "sb-abc")


def _copy_sandbox(cli: Any, sandbox_id: str) -> None:
    """A second sandbox with a known id, straight into the registry."""
    database = sqlite3.connect(cli.home / "registry.sqlite")
    with database:
        record = json.loads(database.execute("SELECT record FROM sandboxes").fetchone()[0])
        record["spec"]["id"] = sandbox_id
        row = (sandbox_id, "", json.dumps(record))
        database.execute("INSERT INTO sandboxes (id, name, record) VALUES (?, ?, ?)", row)
        branch = {"id": f"br-{sandbox_id}", "sandbox_id": sandbox_id, "head": None, "forked_from": None}
        database.execute("INSERT INTO branches VALUES (?, ?, ?)", (branch["id"], sandbox_id, json.dumps(branch)))
    database.close()


def test_a_statepoint_of_another_sandbox(cli: Any) -> None:
    first = cli("new", "--name", "one")
    point = cli("snapshot", "mine")
    cli("new", "--name", "two")
    told = cli.fails(3, "rollback", "-s", "two", point)
    assert f"belongs to sandbox {first}" in told
    assert "Now: nothing was changed" in told
    assert f"planarian fork -s {first} {point}" in told


def test_a_discarded_statepoint_can_be_seen_but_not_restored(cli: Any) -> None:
    cli("new")
    fault = {"PLANARIAN_FAULT": "snapshot.files=fail"}
    told = cli.fails(1, "snapshot", "broken", env=fault)
    assert "the sandbox goes on running" in told
    assert "Next: " in told
    assert cli.json("log")["statepoints"] == []
    discarded = cli.json("log", "--all")["statepoints"][0]
    assert discarded["status"] == "discarded"
    assert f"{discarded['id']} broken" in cli("log", "--all")
    assert "discarded: " in cli("show", discarded["id"])
    assert cli.json("show", discarded["id"])["status"] == "discarded"
    assert "not committed" in cli.fails(3, "rollback", discarded["id"])
    assert "not committed" in cli.fails(3, "fork", discarded["id"])
    assert "not committed" in cli.fails(3, "outcome", discarded["id"], "x")


def test_a_pending_statepoint(cli: Any) -> None:
    sandbox = cli("new")
    with cli.open() as planarian:
        branch = planarian.registry.branch(sandbox)
        planarian.registry.add(Statepoint("sp-abcdefabcdef", sandbox, branch.id, None, utc_now()))
    assert "is pending, not committed" in cli.fails(3, "rollback", "sp-abcdefabcdef")
    assert cli.json("log", "--all")["statepoints"][0]["status"] == Status.PENDING


@pytest.mark.parametrize("place", ["/", "~", "..", ".", "file", "missing", "home/sandboxes"])
def test_workspaces_that_are_refused(cli: Any, place: str, tmp_path: Path) -> None:
    (tmp_path / "nobody").mkdir()
    (tmp_path / "file").touch()
    cli.run("list")
    cli.cwd = tmp_path
    told = cli.fails(1, "new", place)
    assert told.startswith("planarian: ")
    assert "Next: " in told
    done = cli.run("new", place, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"] in ("workspace-refused", "workspace-missing")
    assert done.stderr == b""


def test_backends_that_are_unknown_or_not_available(process: Any, install: Any) -> None:
    assert "Next: one of: " in process.fails(1, "new", "--sandbox", "nonesuch")
    install(
        "sick",
        "from planarian_core import hookimpl\nfrom planarian_core.hookspecs import BackendFactory\n"
        "from planarian_core.testing.fakes import FakeFilesystem\nfrom planarian_core.interfaces import Availability\n"
        "class Sick(FakeFilesystem):\n    name = 'sick'\n"
        "    def probe(self):\n        return Availability(False, 'the disk is too round', 'flatten /dev/sda')\n"
        "class Plugin:\n    @hookimpl\n    def planarian_backends(self):\n"
        "        return [BackendFactory('filesystem', 'sick', Sick)]\nplugin = Plugin()\n",
    )
    told = process.fails(4, "new", "--filesystem", "sick")
    assert "the disk is too round" in told
    assert "Next: flatten /dev/sda" in told


def test_wrong_usage_is_told_as_text_and_as_json(cli: Any) -> None:
    for arguments in (
        ["rollback"],
        ["snapshot", "--nonesuch"],
        ["nonesuch"],
        ["--nonesuch"],
        ["fork", "x", "--count=0"],
    ):
        assert cli.fails(2, *arguments)
        done = cli.run(*arguments, "--json")
        assert done.returncode == 2
        assert json.loads(done.stdout)["error"] == "usage"
        assert done.stderr == b""


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["rollback", "nonesuch"], 3, "statepoint-unknown"),
        (["run", "-s", "nonesuch", "true"], 125, "sandbox-unknown"),
        (["new", "--process", "nonesuch"], 1, "backend-unknown"),
        (["run"], 125, "usage"),
    ],
)
def test_errors_as_json(cli: Any, arguments: list[str], code: int, error: str) -> None:
    cli("new")
    done = cli.run(arguments[0], "--json", *arguments[1:])
    assert done.returncode == code
    told = json.loads(done.stdout)
    assert told["error"] == error
    assert told.keys() == {"error", "message", "state", "remedy"}
    assert done.stderr == b""


def _all_refuse(cli: Any, code: str) -> None:
    for command in ("list", "new", "log", "recover"):
        done = cli.run(command, "--json")
        assert done.returncode == 1, command
        assert json.loads(done.stdout)["error"] == code
    assert "\nNext: " in cli.fails(1, "snapshot")
    assert "\nNext: " in cli.fails(125, "run", "true")
    done = cli.run("doctor", "--json")
    assert done.returncode == 1
    assert "; Next: " in json.loads(done.stdout)["problems"][0]


def test_a_registry_of_a_newer_version(cli: Any) -> None:
    cli("list")
    database = sqlite3.connect(cli.home / "registry.sqlite")
    database.execute("PRAGMA user_version=99")
    database.close()
    _all_refuse(cli, "registry-newer")


def test_a_corrupt_registry(cli: Any) -> None:
    (cli.home / "registry.sqlite").write_bytes(b"this is no database" * 1000)
    _all_refuse(cli, "registry-corrupt")
    assert (cli.home / "registry.sqlite").read_bytes() == b"this is no database" * 1000


def test_a_corrupt_record(cli: Any) -> None:
    cli("new")
    database = sqlite3.connect(cli.home / "registry.sqlite")
    with database:
        database.execute("UPDATE sandboxes SET record = '{\"spec\": 7}'")
    database.close()
    assert "can't be read" in cli.fails(1, "list")
    assert "can't be read" in cli.fails(1, "snapshot")


def test_a_home_that_is_a_file(cli: Any) -> None:
    cli.home = cli.home / "planarian.toml"
    cli.env["PLANARIAN_HOME"] = str(cli.home)
    before = cli.home.read_text()
    _all_refuse(cli, "home-unusable")
    assert cli.home.read_text() == before


@pytest.mark.needs("user")
def test_a_read_only_home(cli: Any) -> None:
    cli("list")
    for folder in (*cli.home.iterdir(), cli.home):
        folder.chmod(0o500 if folder.is_dir() else 0o400)
    try:
        assert "Next: " in cli.fails(1, "new")
    finally:
        for folder in (cli.home, *cli.home.iterdir()):
            folder.chmod(0o700)


def test_a_configuration_that_is_wrong(cli: Any) -> None:
    (cli.home / "planarian.toml").write_text("policy = 'sometimes'\n")
    assert "Next: one of: every-call" in cli.fails(1, "list")


def test_the_home_is_named_by_option_too(cli: Any, tmp_path: Path) -> None:
    sandbox = cli("new")
    other = tmp_path / "other"
    assert json.loads(cli("--home", str(other), "list", "--json")) == {"sandboxes": []}
    assert (other / "registry.sqlite").is_file()
    cli.env["PLANARIAN_HOME"] = str(other)
    assert sandbox in cli("--home", str(cli.home), "list")


def test_debug_shows_the_traceback(process: Any) -> None:
    process.env["PLANARIAN_DEBUG"] = "1"
    child = process.start("log", "-s", "nonesuch", stderr=subprocess.PIPE)
    assert b"Traceback" in child.communicate()[1]
    assert child.returncode == 3


def test_an_unforeseen_error_is_no_traceback_either(cli: Any) -> None:
    cli("new")
    (cli.home / "fake-files").write_text("in the way")
    told = cli.fails(1, "snapshot")
    assert "the snapshot failed" in told
    (cli.home / "locks").rename(cli.home / "gone")
    (cli.home / "locks").symlink_to("nowhere")
    assert "Next: " in cli.fails(1, "snapshot")


def test_a_killed_rollback_is_finished_and_told(process: Any) -> None:
    sandbox = process("new")
    process("snapshot", "one")
    assert (
        process.run("rollback", "one", env={"PLANARIAN_FAULT": "rollback.stopped=kill"}).returncode == -signal.SIGKILL
    )
    done = process.run("log")
    assert f"planarian: a rollback of {sandbox} had been cut off: " in done.stderr.decode()
    assert done.returncode == 0
    assert process.json("list")["sandboxes"][0]["state"] == "running"


def test_recover_says_what_it_did_and_what_is_left(process: Any) -> None:
    process("new")
    point = process("snapshot", "one")
    assert process.json("recover") == {"recovered": [], "under_way": []}
    process.run("rollback", "one", "--no-safety", env={"PLANARIAN_FAULT": "rollback.stopped=kill"})
    artefact = process.home / "fake-files" / point
    artefact.rename(artefact.with_name("away"))
    done = process.run("recover", "--json")
    assert done.returncode == 5
    assert json.loads(done.stdout)["recovered"][0]["error"]
    assert process.run("run", "true").returncode == 125
    assert "planarian recover" in process.fails(5, "snapshot")
    assert process.json("list")["sandboxes"][0]["state"] == "unfinished"
    artefact.with_name("away").rename(artefact)
    assert "was finished" in process("recover")
    process("run", "true")


def test_the_reader_of_the_output_goes_away(process: Any) -> None:
    process("new")
    read, write = os.pipe()
    os.close(read)
    for arguments in (["list"], ["log", "--json"], ["--help"], ["run", "--", "echo", "x"]):
        child = process.start(*arguments, stdin=subprocess.DEVNULL, stdout=write, stderr=subprocess.PIPE)
        assert child.communicate()[1].replace(b"There is no statepoint yet. Next: planarian snapshot\n", b"") == b""
        assert child.returncode in (1, 141)
    os.close(write)
