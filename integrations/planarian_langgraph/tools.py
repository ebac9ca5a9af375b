"""Tools for an agent: commands and files in its thread's sandbox, and the primitives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial, wraps
from typing import Any

from langchain_core.tools import BaseTool, StructuredTool, ToolException

from planarian_core import inside_files
from planarian_core.coroutines import in_thread, run_command
from planarian_core.errors import PlanarianError
from planarian_core.model import CommandResult
from planarian_langgraph.environments import Environments

_OUTPUT = 30_000


def sandbox_tools(environments: Environments, *, timeout: float = 600.0) -> list[BaseTool]:
    """``bash``, ``read_file``, ``write_file`` and ``edit_file`` in the sandbox of the thread that calls.

    Args:
        timeout: seconds that a command may take.
    """
    inside = _Inside(environments, timeout)
    return [
        _tool(inside.bash, "Run a bash command in the workspace. Background processes go on running.", inside.abash),
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

    def bash(self, command: str) -> str:
        sandbox = self._environments.sandbox()
        return self._shown(sandbox.run(command, timeout=self._timeout, output_limit=_OUTPUT))

    async def abash(self, command: str) -> str:
        """Cancelled, it ends with all that it started."""
        sandbox = self._environments.sandbox()
        return self._shown(await run_command(sandbox, command, timeout=self._timeout, output_limit=_OUTPUT))

    def _shown(self, done: CommandResult) -> str:
        output = "\n".join(part for part in (done.stdout.rstrip("\n"), done.stderr.rstrip("\n")) if part)
        if done.timed_out:
            raise ToolException(f"{output}\n(ended: it took longer than {self._timeout:g} seconds)".lstrip())
        if done.exit_code:
            raise ToolException(f"{output}\n(exit code {done.exit_code})".lstrip())
        return output or "(no output)"

    def read_file(self, path: str, first_line: int = 1, lines: int = 500) -> str:
        found = inside_files.read_lines(self._environments.sandbox(), path, first_line, lines)
        return found.numbered() or "(nothing there)"

    def write_file(self, path: str, content: str) -> str:
        inside_files.write_text(self._environments.sandbox(), path, content)
        return f"{path} written"

    def edit_file(self, path: str, old: str, new: str) -> str:
        inside_files.replace_text(self._environments.sandbox(), path, old, new)
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


def _tool(
    function: Callable[..., str], description: str, coroutine: Callable[..., Awaitable[str]] | None = None
) -> BaseTool:
    """A tool whose failures are results that the model reads. Cancelled, it is over before anything else is done."""

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> str:
        try:
            return function(*arguments, **named)
        except PlanarianError as error:
            raise ToolException(str(error)) from error

    @wraps(function)
    async def acall(*arguments: Any, **named: Any) -> str:
        try:
            if coroutine is not None:
                return await coroutine(*arguments, **named)
            return await in_thread(partial(function, *arguments, **named))
        except PlanarianError as error:
            raise ToolException(str(error)) from error

    return StructuredTool.from_function(
        call,
        acall,
        name=function.__name__,
        description=description,
        handle_tool_error=True,
        infer_schema=True,
    )
