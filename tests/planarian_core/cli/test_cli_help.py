"""Every command explains itself, says JSON where it prints, and starts without what it doesn't need."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

import planarian_core
from planarian_core.cli import exit_codes, plugin_commands
from planarian_core.cli.evidence import OutcomeStatus
from planarian_core.cli.main import app
from planarian_core.context import OUTCOME_STATUSES
from planarian_core.errors import BackendUnavailable, CaptureError, LineageError, RestoreError, SandboxError

GROUP: Any = typer.main.get_command(app)
INTERACTIVE = {"shell"}


@pytest.mark.parametrize("name", list(GROUP.commands))
def test_a_command_documents_itself(name: str) -> None:
    command = GROUP.commands[name]
    text = command.help
    summary, *rest = text.split("\n\n")
    assert 10 < len(summary) < 72, "one line for the list of commands"
    assert summary.endswith(".")
    assert len(rest) >= 2, "a description and an example"
    assert re.search(rf"Example:\n +.*planarian {name}\b", text)
    for parameter in command.params:
        assert getattr(parameter, "help", ""), f"{name}: {parameter.name} is not explained"


@pytest.mark.parametrize("name", [name for name in GROUP.commands if name not in INTERACTIVE])
def test_a_command_that_prints_speaks_json(name: str) -> None:
    assert any("--json" in parameter.opts for parameter in GROUP.commands[name].params)


@pytest.mark.parametrize("name", list(GROUP.commands))
def test_examples_parse(name: str) -> None:
    """The arguments of every example are ones that the command takes."""
    lines = re.findall(rf"^ +(?:printf .*\| )?planarian {name}( .*)?$", GROUP.commands[name].help, re.MULTILINE)
    assert lines
    for line in lines:
        arguments = shlex.split(line.split(" | ")[0])
        GROUP.commands[name].make_context(name, arguments)


def test_help_goes_to_stdout_and_tells_the_exit_codes(process: Any) -> None:
    text = process("--help")
    for number in ("0", "1", "2", "3", "4", "5", "130"):
        assert re.search(rf"^ +{number}  \w", text, re.MULTILINE)
    assert process() == text
    assert all(f"\n  {name} " in text for name in GROUP.commands)


def test_the_version(process: Any) -> None:
    assert process("--version") == f"planarian {planarian_core.__version__}"


def test_remedies_name_commands_that_exist() -> None:
    """An error's next step is a command of ours, with options that it has."""
    root = Path(planarian_core.__file__).parent
    named = set()
    others = (root.parent.glob(f"{folder}planarian_*/*.py") for folder in ("", "plugins/", "integrations/"))
    for source in (*root.rglob("*.py"), *itertools.chain(*others)):
        named |= set(re.findall(r"remedy=f?[\"'][^\"']*?planarian ([a-z]+)", source.read_text()))
    assert named >= {"log", "new", "recover", "rollback"}
    assert named - {*GROUP.commands, *plugin_commands.load(GROUP.commands).callbacks} == set()


def test_outcomes_have_the_words_of_the_library() -> None:
    assert tuple(OutcomeStatus) == OUTCOME_STATUSES


def test_exit_codes_of_errors() -> None:
    assert exit_codes.code_for(CaptureError("x")) == 1
    assert exit_codes.code_for(LineageError("x")) == 3
    assert exit_codes.code_for(BackendUnavailable("x")) == 4
    assert exit_codes.code_for(RestoreError("x", code="rollback-unfinished")) == 5
    assert exit_codes.code_for(SandboxError("x", code="sandbox-unfinished")) == 5


def _imported(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_core_is_light() -> None:
    loaded = _imported("import planarian_core.runtime")
    assert loaded & {"typer", "rich", "platformdirs", "planarian_core.cli"} == set()


def test_importing_the_command_line_is_light() -> None:
    loaded = _imported("import planarian_core.cli.main")
    assert {m for m in loaded if m.startswith("rich.")} == set()
    assert loaded & {"sqlite3", "platformdirs", "planarian_core.runtime", "planarian_core.plugin_manager"} == set()
