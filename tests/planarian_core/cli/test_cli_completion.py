"""Completion of names, as the shells ask for it."""

from __future__ import annotations

from typing import Any

import pytest


def _complete(cli: Any, line: str, word: int) -> list[str]:
    env = {"_PLANARIAN_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(word)}
    done = cli.run(env=env)
    assert done.stderr == b""
    return [suggestion.split("\t")[0] for suggestion in done.stdout.decode().split("\n") if suggestion]


def test_commands_and_options_complete(cli: Any) -> None:
    assert _complete(cli, "planarian sna", 1) == ["snapshot"]
    assert "--dry-run" in _complete(cli, "planarian rollback --d", 2)


def test_statepoints_and_sandboxes_complete_from_the_registry(cli: Any) -> None:
    first, second = cli("new", "--name", "first"), cli("new", "--name", "second")
    point, other = cli("snapshot", "-s", "first", "deps"), cli("snapshot", "-s", "second", "data")
    cli.run("snapshot", "-s", "first", "dead", env={"PLANARIAN_FAULT": "snapshot.files=fail"})
    assert set(_complete(cli, "planarian log -s ", 3)) == {"first", "second", first, second}
    assert _complete(cli, "planarian log -s fi", 3) == ["first"]
    assert set(_complete(cli, "planarian rollback d", 2)) == {"deps", "data"}
    assert _complete(cli, "planarian rollback -s first d", 4) == ["deps"]
    assert _complete(cli, f"planarian show {point[:8]}", 2) == [point]
    assert set(_complete(cli, "planarian fork sp-", 2)) == {point, other}
    assert _complete(cli, "planarian outcome @", 2) == ["@head"]
    assert set(_complete(cli, "planarian rm s", 2)) == {"second", first, second}


def test_the_home_on_the_line_is_the_one_that_is_asked(cli: Any) -> None:
    cli("new", "--name", "first")
    line = f"planarian --home {cli.home} log -s fi"
    cli.env["PLANARIAN_HOME"] = str(cli.home / "elsewhere")
    assert _complete(cli, line, 5) == ["first"]
    assert _complete(cli, "planarian log -s ", 3) == []
    assert not (cli.home / "elsewhere").exists(), "looking for names made a home"


@pytest.mark.parametrize("damage", [b"no database", b""])
def test_whatever_is_wrong_there_is_silence(cli: Any, damage: bytes) -> None:
    (cli.home / "registry.sqlite").write_bytes(damage)
    assert _complete(cli, "planarian log -s ", 3) == []
    assert (cli.home / "registry.sqlite").read_bytes() == damage


def test_completion_can_be_shown_for_every_shell(process: Any) -> None:
    process.env["_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"] = "1"
    for shell in ("bash", "zsh", "fish"):
        assert "_PLANARIAN_COMPLETE" in process("--show-completion", shell)
