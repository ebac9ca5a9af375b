"""What tools do in an environment, in plain coroutines: commands, files, and the primitives."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from planarian_autogen.environment import Environment
from planarian_core import inside_files
from planarian_core.coroutines import in_thread

_OUTPUT = 30_000

Path = Annotated[str, "Relative to the workspace, or absolute"]
Reference = Annotated[str, "A statepoint of the ledger: its id or its name"]


class CommandFailed(Exception):
    """A tool's command ended with an exit code that isn't 0. The message is what the agent reads."""


class Inside:
    """Commands and files in the sandbox.

    Args:
        timeout: seconds that a command may take.
    """

    names = ("bash", "read_file", "write_file", "edit_file")

    def __init__(self, environment: Environment, timeout: float = 600.0) -> None:
        self._environment = environment
        self._timeout = timeout

    async def bash(self, command: Annotated[str, "A bash command line or script"]) -> str:
        """Run a bash command in the workspace. Background processes go on running."""
        done = await self._environment.run(command, timeout=self._timeout, output_limit=_OUTPUT)
        output = "\n".join(part for part in (done.stdout.rstrip("\n"), done.stderr.rstrip("\n")) if part)
        if done.timed_out:
            raise CommandFailed(f"{output}\n(ended: it took longer than {self._timeout:g} seconds)".lstrip())
        if done.exit_code:
            raise CommandFailed(f"{output}\n(exit code {done.exit_code})".lstrip())
        return output or "(no output)"

    async def read_file(
        self,
        path: Path,
        first_line: Annotated[int, "The first line wanted, from 1"] = 1,
        lines: Annotated[int, "How many lines at most"] = 500,
    ) -> str:
        """Read lines of a text file, numbered."""
        async with self._environment.turn() as sandbox:
            found = await in_thread(partial(inside_files.read_lines, sandbox, path, first_line, lines))
        return found.numbered() or "(nothing there)"

    async def write_file(self, path: Path, content: Annotated[str, "The whole content"]) -> str:
        """Write a file, whole. Directories are made."""
        async with self._environment.turn() as sandbox:
            await in_thread(partial(inside_files.write_text, sandbox, path, content))
        return f"{path} written"

    async def edit_file(
        self,
        path: Path,
        old: Annotated[str, "A text that occurs exactly once in the file"],
        new: Annotated[str, "What takes its place"],
    ) -> str:
        """Replace a text that occurs exactly once in a file."""
        async with self._environment.turn() as sandbox:
            await in_thread(partial(inside_files.replace_text, sandbox, path, old, new))
        return f"{path} changed"


class Primitives:
    """The primitives, for an agent that is to decide itself."""

    names = ("snapshot", "rollback", "ledger", "outcome")

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    async def snapshot(
        self,
        name: Annotated[str, "A short name, to go back to it by"],
        description: Annotated[str, "What holds at this point"] = "",
    ) -> str:
        """Keep the whole environment (files, processes, remote state) as it is now, by a name."""
        async with self._environment.turn() as sandbox:
            take = partial(sandbox.snapshot, name=name, description=description)
            return f"kept as {(await in_thread(take)).id} ({name})"

    async def rollback(self, statepoint: Reference) -> str:
        """Bring the whole environment back to a statepoint of the ledger. Before it, say with the tool outcome what was
        tried since and how it ended: it is shown to whoever comes back there."""
        async with self._environment.turn() as sandbox:
            return (await in_thread(partial(sandbox.rollback, statepoint))).to_markdown()

    async def ledger(self) -> str:
        """List the statepoints to go back to, with what was tried from each and how it ended."""
        planarian = self._environment.planarian
        async with self._environment.turn() as sandbox:
            return (await in_thread(partial(planarian.ledger, sandbox))).to_markdown(planarian.config.ledger_characters)

    async def outcome(
        self,
        statepoint: Reference,
        text: Annotated[str, "What was tried from there, and how it ended"],
        status: Annotated[Literal["note", "succeeded", "failed"], "How it ended"] = "note",
    ) -> str:
        """Note at a statepoint how what was tried from it ended. It outlives rollbacks."""
        note = self._environment.planarian.append_outcome
        async with self._environment.turn() as sandbox:
            await in_thread(partial(note, statepoint, text, status=status, author="agent", of=sandbox))
            return "noted"
