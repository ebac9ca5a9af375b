"""A sandbox's commands and files, and the primitives, as methods with the signatures of tools."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any, Literal

import anyio
from anyio import to_thread
from mcp.server.mcpserver import Context
from pydantic import Field

from planarian_core import Planarian, Sandbox, inside_files
from planarian_core.context import clip, one_line
from planarian_core.coroutines import run_command
from planarian_core.diff_text import file_line
from planarian_core.errors import LineageError
from planarian_core.model import CommandResult
from planarian_mcp.primitives_results import Changed, Entry, Known, PathsRestored, Ran, Restored, Taken

_SHOWN, _SHOWN_OF_ERRORS = 10_000, 4_000
"""Characters of one result: harnesses cut what is longer (nanobot at 16,000, Codex at about 40,000) with no regard for
what it is.
"""
_BETWEEN_PROGRESS = 5.0

SandboxId = Annotated[str, Field(description="A fork's id, to work in that one; empty: your own sandbox.")]
Reference = Annotated[str, Field(description="A statepoint: its id, its name, @head, or @head~2 for two before it.")]
Path = Annotated[str, Field(description="Relative to the workspace, or absolute as the sandbox sees it.")]


class SandboxTools:
    """The tools; each returns a structured result or raises a PlanarianError."""

    def __init__(self, planarian: Planarian, sandbox: Sandbox) -> None:
        self._planarian = planarian
        self._own = sandbox

    def _sandbox(self, reference: str) -> Sandbox:
        """The served sandbox, or a fork of it by an agent."""
        if not reference:
            return self._own
        found = self._planarian.sandbox(reference)
        if found.id != self._own.id and found.record.made_by != self._own.record.family:
            raise LineageError(
                f"{reference} is no fork of {self._own.id}", code="sandbox-unknown", remedy="fork it first"
            )
        return found

    def _by_policy(self, sandbox: Sandbox, description: str) -> None:
        self._planarian.snapshot_by_policy(sandbox, description=one_line(description, 300))

    # --- commands and files ---

    async def run(
        self,
        ctx: Context[Any, Any],
        command: Annotated[str, Field(description="A bash command line.")],
        cwd: Annotated[str, Field(description="Directory; empty: the workspace.")] = "",
        timeout: Annotated[float, Field(description="Seconds.", gt=0, le=86400)] = 600,
        sandbox: SandboxId = "",
    ) -> Ran:
        """Run a bash command in the sandbox. Background processes that it leaves go on running. Of long output the
        middle is cut out: write it to a file to see all of it.
        """
        chosen = await to_thread.run_sync(self._sandbox, sandbox)
        done = await _followed(
            ctx, partial(run_command, chosen, command, cwd=cwd, timeout=timeout, output_limit=_SHOWN)
        )
        await to_thread.run_sync(self._by_policy, chosen, f"after: {command}")
        return Ran.of(done, clip(done.stderr, _SHOWN_OF_ERRORS))

    def read_file(
        self,
        path: Path,
        first_line: Annotated[int, Field(ge=1)] = 1,
        lines: Annotated[int, Field(ge=1, le=5000)] = 500,
        sandbox: SandboxId = "",
    ) -> str:
        """Read lines of a text file, each behind its number."""
        found = inside_files.read_lines(self._sandbox(sandbox), path, first_line, lines)
        return found.page(_SHOWN, "first_line")

    def write_file(self, path: Path, content: str, sandbox: SandboxId = "") -> str:
        """Write a text file, whole. Directories that are missing are made."""
        chosen = self._sandbox(sandbox)
        inside_files.write_text(chosen, path, content)
        self._by_policy(chosen, f"wrote {path}")
        return f"{path} written"

    def edit_file(
        self,
        path: Path,
        old: Annotated[str, Field(description="Occurs exactly once.")],
        new: Annotated[str, Field(description="Takes its place.")],
        sandbox: SandboxId = "",
    ) -> str:
        """Replace a text that occurs exactly once in a file."""
        chosen = self._sandbox(sandbox)
        inside_files.replace_text(chosen, path, old, new)
        self._by_policy(chosen, f"changed {path}")
        return f"{path} changed"

    # --- the primitives ---

    def snapshot(
        self,
        name: Annotated[str, Field(description="A short name to find it by.")] = "",
        description: Annotated[str, Field(description="What is done and works, for whoever comes back here.")] = "",
        sandbox: SandboxId = "",
    ) -> Taken:
        """Take a statepoint: files, running processes with their memory, and the position of remote services."""
        return Taken.of(self._planarian.snapshot(self._sandbox(sandbox), name=name, description=description))

    def rollback(
        self,
        statepoint: Reference,
        outcome: Annotated[str, Field(description="What was tried since and how it ended; kept for later.")] = "",
        sandbox: SandboxId = "",
    ) -> Restored:
        """Bring the whole environment back to a statepoint: files, processes, remote effects. What is now is kept too:
        `undo` names it. `context` says what of earlier messages no longer holds.
        """
        chosen = self._sandbox(sandbox)
        if outcome:
            self.outcome(statepoint, outcome, "failed", sandbox)
        return Restored.of(self._planarian.rollback(chosen, statepoint))

    def fork(
        self,
        statepoint: Reference = "@head",
        name: Annotated[str, Field(description="A short name for the fork.")] = "",
        sandbox: SandboxId = "",
    ) -> Restored:
        """Make an independent copy of the environment at a statepoint; your own stays as it is. Give the copy's id (in
        the result: `sandbox`) to the other tools to work in it.
        """
        source = self._sandbox(sandbox)
        _, context = self._planarian.fork_with_context(statepoint, of=source, name=name, by_agent=True)
        return Restored.of(context)

    def promote(
        self,
        fork: Annotated[str, Field(description="The fork's id.")],
        force: Annotated[bool, Field(description="Set aside what its source did since; that is kept.")] = False,
    ) -> Restored:
        """Make a fork's present state the state of the sandbox that it came from. What that one was is kept: `undo`."""
        return Restored.of(self._planarian.promote(self._sandbox(fork), force=force))

    def remove_fork(self, fork: Annotated[str, Field(description="The fork's id.")]) -> str:
        """End a fork and remove it with its statepoints."""
        chosen = self._sandbox(fork)
        if chosen.id == self._own.id:
            raise LineageError(f"{fork} is your own sandbox, no fork", code="not-a-fork", state="nothing was removed")
        self._planarian.remove_sandbox(chosen)
        return f"{chosen.id} removed"

    def outcome(
        self,
        statepoint: Reference,
        text: Annotated[str, Field(description="What was tried from there and how it ended.")],
        status: Annotated[Literal["note", "succeeded", "failed"], Field(description="How it ended.")] = "note",
        sandbox: SandboxId = "",
    ) -> str:
        """Note how what was tried from a statepoint ended. It outlives rollbacks: whoever comes back there reads it."""
        chosen = self._sandbox(sandbox)
        author = f"agent of {chosen.id}"
        self._planarian.append_outcome(statepoint, text, status=status, author=author, of=chosen)
        return "noted"

    def ledger(self, sandbox: SandboxId = "") -> Known:
        """List the statepoints to go back to, newest first: what each holds, and how what was tried from it ended."""
        found = self._planarian.ledger(self._sandbox(sandbox))
        return Known(found.head or "", [Entry.of(evidence) for evidence in found.entries], found.omitted)

    def diff(
        self,
        a: Reference = "@head",
        b: Annotated[str, Field(description="Another one; empty: the present.")] = "",
        sandbox: SandboxId = "",
    ) -> Changed:
        """What changed between two statepoints, or since one: files, processes, remote effects."""
        found = self._planarian.diff(a, b or None, of=self._sandbox(sandbox))
        return Changed([file_line(change) for change in found.files[:100]], found.to_markdown(_SHOWN))

    def restore_paths(
        self,
        statepoint: Reference,
        paths: Annotated[list[str], Field(description="Files or directories, as in read_file.", min_length=1)],
        sandbox: SandboxId = "",
    ) -> PathsRestored:
        """Bring single files or directories back from a statepoint; the rest, and what runs, isn't touched. A
        statepoint of what is now is taken first: `undo`.
        """
        chosen = self._sandbox(sandbox)
        return PathsRestored.of(self._planarian.restore_paths(chosen, statepoint, paths))


async def _followed(ctx: Context[Any, Any], begin: partial[Any]) -> CommandResult:
    """A command's result; meanwhile the harness is told from time to time that it goes on. When the harness gives the
    call up, the command ends with all that it started.
    """
    running: asyncio.Task[CommandResult] = asyncio.create_task(begin())
    try:
        for passed in range(1, 1_000_000):
            await asyncio.wait([running], timeout=_BETWEEN_PROGRESS)
            if running.done():
                break
            await ctx.report_progress(passed * _BETWEEN_PROGRESS, message="the command goes on")
        return running.result()
    except asyncio.CancelledError:
        running.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([running])
        raise
