"""Groups of commands that plugins add."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import typer

from planarian_core.cli import plugin_commands
from planarian_core.cli.main import app

GROUP: Any = typer.main.get_command(app)
CHOIR = """
import typer
from planarian_core.errors import CaptureError
from planarian_core.hookspecs import CommandGroup, hookimpl

def sing(ctx: typer.Context, song: str, json: bool = False) -> None:
    '''Sing a song.'''
    ctx.meta["planarian.json"] = json
    if song == "none":
        raise CaptureError("no voice", remedy="drink")
    print("la", song)

class Plugin:
    @hookimpl
    def planarian_commands(self):
        return {"choir": CommandGroup("Many voices.", {"sing": sing})}

plugin = Plugin()
"""


def test_a_plugin_adds_a_group(process: Any, install: Any) -> None:
    install("choir", CHOIR)
    assert "choir     Many voices." in process("--help")
    assert "Sing a song." in process("choir", "--help")
    assert "Sing a song." in process("choir", "sing", "-h")
    assert process("choir", "sing", "high") == "la high"
    assert process.fails(1, "choir", "sing", "none") == "planarian: no voice\nNext: drink\n"
    failed = process.run("choir", "sing", "none", "--json")
    assert failed.returncode == 1
    assert b'"error": "capture"' in failed.stdout
    assert "No such command" in process.fails(2, "choir", "dance")
    assert process.run("choir").returncode == 2


def commands() -> dict[str, Any]:
    """The commands of all groups of the installed plugins, by full name."""
    offered = plugin_commands.load(GROUP.commands).callbacks
    groups = {name: plugin_commands.build(name, what) for name, what in offered.items()}
    return {
        f"{name} {below}": command
        for name, group in groups.items()
        for below, command in getattr(group, "commands", {}).items()
    }


def test_the_pool_is_there() -> None:
    assert {"pool create", "pool grow", "pool status", "pool destroy"} <= commands().keys()


@pytest.mark.parametrize("name", commands())
def test_a_command_of_a_group_documents_itself(name: str) -> None:
    command = commands()[name]
    summary, *rest = command.help.split("\n\n")
    assert 10 < len(summary) < 72
    assert summary.endswith(".")
    assert len(rest) >= 2, "a description and an example"
    assert any("--json" in parameter.opts for parameter in command.params)
    for parameter in command.params:
        assert getattr(parameter, "help", ""), f"{name}: {parameter.name} is not explained"
    examples = re.findall(rf"^ +planarian {name}( .*)?$", command.help, re.MULTILINE)
    assert examples
    for arguments in examples:
        command.make_context(name, shlex.split(arguments))
