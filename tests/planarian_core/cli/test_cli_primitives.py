"""``snapshot``, ``rollback``, ``fork``, ``outcome``, ``ledger`` through the real process."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def _write(cli: Any, sandbox: str, text: str) -> None:
    cli("run", "-s", sandbox, "--", "sh", "-c", f"printf %s {text} >state")


def _read(cli: Any, sandbox: str) -> str:
    return str(cli("run", "-s", sandbox, "cat", "state"))


def test_a_day_of_work(process: Any) -> None:
    sandbox = process("new", "--name", "api")
    _write(process, sandbox, "first")
    first = process("snapshot", "first", "-d", "the first state")
    _write(process, sandbox, "second")
    context = process("rollback", "first")
    assert first in context
    assert "the first state" in context
    assert context.startswith("# The environment was rolled back")
    assert _read(process, sandbox) == "first"
    safety = process.json("log")["statepoints"][-1]
    assert safety["id"] in context
    process("rollback", safety["id"])
    assert _read(process, sandbox) == "second"


def test_snapshot_as_json_holds_the_statepoint(cli: Any) -> None:
    sandbox = cli("new")
    taken = cli.json("snapshot", "deps", "-d", "installed", "--files-only")
    assert taken["id"].startswith("sp-")
    assert (taken["name"], taken["description"], taken["status"]) == ("deps", "installed", "committed")
    assert taken["sandbox_id"] == sandbox


def test_rollback_as_json_and_without_safety(cli: Any) -> None:
    sandbox = cli("new")
    point = cli("snapshot")
    context = cli.json("rollback", "@head", "--no-safety")
    assert (context["sandbox_id"], context["statepoint"]["id"], context["safety_id"]) == (sandbox, point, None)
    assert len(cli.json("log")["statepoints"]) == 1


def test_a_dry_run_changes_nothing(cli: Any) -> None:
    sandbox = cli("new")
    point = cli("snapshot", "empty")
    _write(cli, sandbox, "kept")
    assert f"A rollback to {point} empty would" in cli("rollback", "empty", "--dry-run")
    preview = cli.json("rollback", "empty", "--dry-run")
    assert preview["dry_run"] is True
    assert preview["statepoint"]["id"] == point
    assert _read(cli, sandbox) == "kept"
    assert len(cli.json("log")["statepoints"]) == 1


def test_fork_prints_an_id_a_line_and_forks_are_independent(cli: Any) -> None:
    source = cli("new")
    _write(cli, source, "base")
    cli("snapshot", "base")
    forks = cli("fork", "base", "--name", "try", "--count", "3").split()
    assert len(set(forks)) == 3
    _write(cli, "try-2", "changed")
    assert [_read(cli, fork) for fork in (source, *forks)] == ["base", "base", "changed", "base"]
    assert cli.json("fork", "-s", source, "base", "--name", "more")["forks"][0]["name"] == "more"


def test_a_fork_by_full_id_needs_no_sandbox(cli: Any) -> None:
    cli("new", "--name", "one")
    point = cli("snapshot")
    cli("new", "--name", "two")
    made = cli.json("fork", point)["forks"][0]
    assert made["context"]["statepoint"]["id"] == point


def test_a_fork_that_fails_says_which_ones_are_there(process: Any, install: Any) -> None:
    """After the first fork the statepoint's files vanish."""
    source = (
        "import shutil\nfrom pathlib import Path\nfrom planarian_core import hookimpl\n"
        "class Vandal:\n    @hookimpl\n    def planarian_forked(self, source):\n"
        "        shutil.rmtree(Path(source.spec.home) / 'fake-files')\nplugin = Vandal()\n"
    )
    install("vandal", source)
    process("new")
    process("snapshot", "base")
    done = process.run("fork", "base", "--count", "3")
    made = done.stdout.decode().split()
    assert done.returncode == 1
    assert len(made) == 1
    assert f"made before, and there to use: {made[0]}" in done.stderr.decode()


def test_outcomes_are_appended_and_read_in_the_ledger(cli: Any) -> None:
    cli("new")
    point = cli("snapshot", "deps")
    added = cli.json("outcome", "deps", "the build broke", "--status", "failed")
    assert (added["statepoint_id"], added["status"]) == (point, "failed")
    assert cli("outcome", point, "and again").startswith("oc-")
    ledger = cli("ledger")
    assert "outcome, failed: the build broke" in ledger
    assert "outcome, note: and again" in ledger
    entries = cli.json("ledger")["entries"]
    assert [o["text"] for o in entries[0]["outcomes"]] == ["the build broke", "and again"]
    assert "'best'" in cli.fails(2, "outcome", "deps", "x", "--status", "best")


def test_the_ledger_keeps_its_limit(cli: Any) -> None:
    cli("new")
    for number in range(8):
        cli("snapshot", f"point-{number}", "-d", "x" * 200)
    text = cli("ledger", "--limit", "900")
    assert len(text) <= 900
    assert "point-7" in text
    assert "point-0" not in text
    assert cli.json("ledger", "--limit", "900")["omitted"] > 0


def test_foreign_text_can_not_drive_the_terminal(cli: Any, workspace: Path) -> None:
    """Descriptions and outcomes come from agents: neither escape sequences nor rich's markup have an effect."""
    cli("new", "--name", "[red]x")
    cli("snapshot", "[bold]deps", "-d", "evil\x1b[2Jtext [link=http://x]y[/link]\n[/nonsense]")
    cli("outcome", "@head", "\x1b]0;title\x07 [blink]")
    for command in (["log"], ["show", "@head"], ["ledger"], ["list"]):
        text = cli(*command)
        assert "\x1b" not in text
        assert "\x07" not in text
    assert "[red]x" in cli("list")
    assert "[bold]deps" in cli("log")
    assert "[/nonsense]" in cli("show", "@head")
