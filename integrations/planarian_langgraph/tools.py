"""Tools for an agent: commands and files in its thread's sandbox, and the primitives."""

from __future__ import annotations

from typing import Any

from langchain_core.tools import BaseTool, StructuredTool, ToolException

from planarian_core.errors import PlanarianError
from planarian_langgraph.environments import Environments

_OUTPUT = 30_000
_READ = """
import sys
path, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with open(path, encoding="utf-8", errors="replace") as file:
    for number, line in enumerate(file, 1):
        if number >= first + count:
            break
        if number >= first:
            print(f"{number}\\t{line.rstrip(chr(10))}")
"""
_WRITE = """
import os, sys
path = sys.argv[1]
os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
with open(path, "wb") as file:
    file.write(sys.stdin.buffer.read())
"""
_EDIT = """
import json, sys
path, change = sys.argv[1], json.load(sys.stdin)
with open(path, encoding="utf-8", newline="") as file:
    text = file.read()
found = text.count(change["old"])
if found != 1:
    sys.exit(f"the text to replace occurs {found} times in {path}; it must occur once")
with open(path, "w", encoding="utf-8", newline="") as file:
    file.write(text.replace(change["old"], change["new"]))
"""


def sandbox_tools(environments: Environments, *, timeout: float = 600.0) -> list[BaseTool]:
    """``bash``, ``read_file``, ``write_file`` and ``edit_file`` in the sandbox of the thread that calls.

    Args:
        timeout: seconds that a command may take.
    """
    inside = _Inside(environments, timeout)
    return [
        _tool(inside.bash, "Run a bash command in the workspace. Background processes go on running."),
        _tool(inside.read_file, "Read lines of a text file, numbered. Paths are relative to the workspace."),
        _tool(inside.write_file, "Write a file, whole. Directories are made."),
        _tool(inside.edit_file, "Replace a text that occurs exactly once in a file."),
    ]


def primitive_tools(environments: Environments) -> list[BaseTool]:
    """``snapshot``, ``rollback`` and ``ledger``, for an agent that is to decide itself."""
    inside = _Primitives(environments)
    return [
        _tool(inside.snapshot, "Keep the whole environment (files, processes, remote state) as it is now, by a name."),
        _tool(
            inside.rollback,
            "Bring the whole environment back to a statepoint of the ledger. Say first, in outcome, what was tried "
            "since and how it ended: it is shown to whoever comes back there.",
        ),
        _tool(inside.ledger, "List the statepoints to go back to, with what was tried from each and how it ended."),
    ]


class _Inside:
    def __init__(self, environments: Environments, timeout: float) -> None:
        self._environments = environments
        self._timeout = timeout

    def _run(self, command: Any, stdin: str = "") -> str:
        sandbox = self._environments.sandbox()
        done = sandbox.run(command, stdin=stdin, timeout=self._timeout, output_limit=_OUTPUT)
        output = "\n".join(part for part in (done.stdout.rstrip("\n"), done.stderr.rstrip("\n")) if part)
        if done.exit_code:
            raise ToolException(f"{output}\n(exit code {done.exit_code})".lstrip())
        return output

    def bash(self, command: str) -> str:
        return self._run(command) or "(no output)"

    def read_file(self, path: str, first_line: int = 1, lines: int = 500) -> str:
        return self._run(["python3", "-c", _READ, path, str(first_line), str(lines)]) or "(nothing there)"

    def write_file(self, path: str, content: str) -> str:
        self._run(["python3", "-c", _WRITE, path], content)
        return f"{path} written"

    def edit_file(self, path: str, old: str, new: str) -> str:
        import json

        self._run(["python3", "-c", _EDIT, path], json.dumps({"old": old, "new": new}))
        return f"{path} changed"


class _Primitives:
    def __init__(self, environments: Environments) -> None:
        self._environments = environments

    def snapshot(self, name: str, description: str = "") -> str:
        sandbox = self._environments.sandbox()
        point = sandbox.planarian.snapshot(sandbox, name=name, description=description)
        return f"kept as {point.id} ({name})"

    def rollback(self, statepoint: str, outcome: str = "", status: str = "failed") -> str:
        sandbox = self._environments.sandbox()
        if outcome:
            sandbox.planarian.append_outcome(statepoint, outcome, status=status, author="agent", of=sandbox)
        return sandbox.planarian.rollback(sandbox, statepoint).to_markdown()

    def ledger(self) -> str:
        sandbox = self._environments.sandbox()
        return sandbox.planarian.ledger(sandbox).to_markdown(sandbox.planarian.config.ledger_characters)


def _tool(function: Any, description: str) -> BaseTool:
    """A tool whose failures are results that the model reads."""

    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except PlanarianError as error:
            raise ToolException(str(error)) from error

    call.__signature__ = __import__("inspect").signature(function)  # type: ignore[attr-defined]
    call.__annotations__ = function.__annotations__
    return StructuredTool.from_function(
        call, name=function.__name__, description=description, handle_tool_error=True, infer_schema=True
    )
