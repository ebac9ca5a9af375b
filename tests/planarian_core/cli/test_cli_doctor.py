"""``doctor``, and commands and troubles of plugins."""

from __future__ import annotations

import json
from typing import Any

HEAD = "from planarian_core import hookimpl\n"


def test_doctor_lists_every_backend_with_the_reason_why_not(cli: Any) -> None:
    report = cli.json("doctor")
    rows = {(row["kind"], row["name"]): row for row in report["backends"]}
    assert {("sandbox", "namespace"), ("sandbox", "directory"), ("filesystem", "copy"), ("process", "none")} <= set(
        rows
    )
    assert [key for key, row in rows.items() if row["default"]] == [
        ("sandbox", "fake"),
        ("filesystem", "fake"),
        ("process", "fake"),
    ]
    assert all(row["available"] or row["reason"] for row in report["backends"])
    assert not rows["process", "criu"]["available"], "it can't serve the fake sandbox"
    assert (report["ok"], report["home"], report["problems"]) == (True, str(cli.home), [])
    assert report["free"] > 0
    text = cli("doctor")
    assert str(cli.home) in text
    assert "default" in text


def test_doctor_fails_when_a_kind_has_no_default(cli: Any) -> None:
    (cli.home / "planarian.toml").write_text('sandbox = "fake"\nfilesystem = "gone"\nprocess = "fake"\n')
    done = cli.run("doctor", "--json")
    assert done.returncode == 4
    assert json.loads(done.stdout)["problems"] == ["no filesystem backend works here: see the remedies above"]


def test_a_broken_plugin_is_reported_and_the_others_load(process: Any, install: Any) -> None:
    install("broken", "raise RuntimeError('out of order')\n")
    report = process.json("doctor")
    assert report["broken_plugins"] == ["broken: RuntimeError: out of order"]
    assert any(row["name"] == "fake" for row in report["backends"])
    assert "out of order" in process("doctor")
    assert "out of order" in process.run("--help").stderr.decode()
    process("new")


def test_two_backends_of_one_name_are_told_not_chosen_from(process: Any, install: Any) -> None:
    install("twin", "from planarian_core.testing.fakes import FakePlugin\nplugin = FakePlugin()\n")
    assert "two plugins offer a sandbox backend" not in process("--version")
    assert "two plugins offer" in process.fails(1, "new")
    done = process.run("doctor")
    assert done.returncode == 1
    assert b"two plugins offer" in done.stdout
    assert "  snapshot " in process("--help")


def test_doctor_tells_what_it_recovered(process: Any) -> None:
    sandbox = process("new")
    process.run("snapshot", env={"PLANARIAN_FAULT": "snapshot.files=kill"})
    recovered = process.json("doctor")["recovered"]
    assert len(recovered) == 1
    assert recovered[0].startswith(f"a snapshot of {sandbox} had been cut off: ")


def test_doctor_names_what_the_registry_does_not_know(cli: Any) -> None:
    sandbox = cli("new")
    statepoint = cli("snapshot")
    fork = cli("fork", statepoint)
    assert cli.json("doctor")["problems"] == []
    for part, name in (("sandboxes", "sb-left"), ("statepoints", "sp-left"), ("origins", "sb-left")):
        (cli.home / part / name).mkdir(parents=True)
    report = cli.json("doctor")
    assert not report["ok"]
    assert [problem.split(". ")[0] for problem in report["problems"]] == [
        f"the registry doesn't know what lies in {cli.home}/sandboxes: sb-left",
        f"the registry doesn't know what lies in {cli.home}/statepoints: sp-left",
        f"the registry doesn't know what lies in {cli.home}/origins: sb-left",
    ]
    assert all(f"rm -r {cli.home}/" in problem for problem in report["problems"])
    assert f"{cli.home}/statepoints: sp-left" in cli("doctor")
    cli("rm", fork, "--yes")
    cli("rm", sandbox, "--yes")
    for part in ("sandboxes", "statepoints", "origins"):
        assert [path.name[3:] for path in (cli.home / part).iterdir()] == ["left"]


def test_doctor_after_the_registry_was_lost(cli: Any) -> None:
    made = [cli("new") for _ in range(10)]
    for path in cli.home.glob("registry.sqlite*"):
        path.unlink()
    problems = cli.json("doctor")["problems"]
    assert ", ".join(sorted(made)[:8]) + " and 2 more" in problems[0]
    assert "pgrep" in problems[0]


# --- commands of plugins ---

GREET = (
    HEAD
    + "import os\nfrom planarian_core.errors import CaptureError\n"
    + "class Plugin:\n    @hookimpl\n    def planarian_commands(self):\n        return {'greet': greet}\n"
    + "def greet(name: str, fail: bool = False) -> None:\n    '''Greet somebody.'''\n"
    + "    if fail:\n        raise CaptureError('no', remedy='smile')\n"
    + "    print('hello', name, os.environ['PLANARIAN_HOME'])\nplugin = Plugin()\n"
)


def test_a_plugin_adds_a_command(process: Any, install: Any) -> None:
    install("greeter", GREET)
    assert "greet     Greet somebody." in process("--help")
    assert process("greet", "you") == f"hello you {process.home}"
    assert "Greet somebody." in process("greet", "--help")
    assert process.fails(1, "greet", "you", "--fail") == "planarian: no\nNext: smile\n"
    assert process.fails(2, "greet")
    assert process("--home", str(process.cwd / "x"), "greet", "you") == f"hello you {process.cwd / 'x'}"


def test_names_that_clash_are_told_and_not_offered(process: Any, install: Any) -> None:
    install("greeter", GREET)
    install("another", GREET)
    install("thief", GREET.replace("'greet'", "'log'"))
    done = process.run("--help")
    assert b"  greet " not in done.stdout
    assert b"two plugins offer a command 'greet'" in done.stderr
    assert b"a plugin offers a command 'log', which planarian has itself" in done.stderr
    assert "No such command" in process.fails(2, "greet", "you")
    assert "hello" not in process.fails(3, "log")


def test_a_plugin_that_fails_does_not_take_the_others_down(process: Any, install: Any) -> None:
    source = (
        HEAD + "class P:\n    @hookimpl\n    def planarian_commands(self):\n        raise OSError('no')\nplugin = P()\n"
    )
    install("failing", HEAD + source)
    assert "could not offer its commands: OSError: no" in process.run("--help").stderr.decode()
    process("list")
