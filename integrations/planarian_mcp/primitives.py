"""The primitives and a sandbox's commands and files as MCP tools, for any harness: ``planarian mcp``.

The harness's agent works in one sandbox, and in the forks that it makes of it; it can name no other.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Annotated, Any, Literal, get_type_hints

from anyio import to_thread
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import Field

from planarian_core import Planarian, Sandbox, __version__, inside_files
from planarian_core.context import one_line
from planarian_core.diff_text import file_line
from planarian_core.errors import LineageError, PlanarianError
from planarian_core.model import Statepoint

INSTRUCTIONS = """\
You work in a sandbox: files and running processes, and databases where a planarian proxy is configured beside this
server. A statepoint is a version of all of it that can be restored exactly; one is taken after your calls, and whenever
you ask for one. When something went wrong, don't repair it step by step: look at the ledger, note with `outcome` what
you tried and how it ended, and go back with `rollback`. To try several ways, `fork` the environment, pass the fork's id
as `sandbox`, and `promote` the one that worked.
"""
_OUTPUT = 30_000

SandboxId = Annotated[str, Field(description="A fork's id, to work in that one; empty: your own sandbox.")]
Reference = Annotated[str, Field(description="A statepoint: its id, its name, @head, or @head~2 for two before it.")]


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    exit_code: int
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool = False


@dataclass(frozen=True)
class Taken:
    """A statepoint. ``not_captured`` names what it doesn't hold."""

    statepoint: str
    name: str
    holds: list[str] = field(default_factory=list)
    not_captured: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Restored:
    """Where the environment is now, and what is to be known about it."""

    sandbox: str
    statepoint: str
    undo: str
    context: str


@dataclass(frozen=True)
class Changed:
    """What lies between two states."""

    files: list[str]
    text: str


@dataclass(frozen=True)
class PathsRestored:
    """What was brought back, and removed because it wasn't there at the statepoint."""

    restored: list[str]
    removed: list[str]
    left_out: list[str]


class SandboxTools:
    """The tools, as methods; each returns a structured result or raises a PlanarianError."""

    def __init__(self, planarian: Planarian, sandbox: Sandbox) -> None:
        self._planarian = planarian
        self._own = sandbox

    def _sandbox(self, reference: str) -> Sandbox:
        """The served sandbox, or a fork of it by an agent."""
        if not reference:
            return self._own
        found = self._planarian.sandbox(reference)
        maker = self._own.record.made_by or self._own.id
        if found.id != self._own.id and found.record.made_by != maker:
            raise LineageError(
                f"{reference} is no fork of {self._own.id}", code="sandbox-unknown", remedy="fork it first"
            )
        return found

    def _by_policy(self, sandbox: Sandbox, description: str) -> None:
        self._planarian.snapshot_by_policy(sandbox, description=one_line(description, 300))

    # --- commands and files ---

    def run(
        self,
        command: Annotated[str, Field(description="A bash command line.")],
        cwd: Annotated[str, Field(description="Directory; empty: the workspace.")] = "",
        timeout: Annotated[float, Field(description="Seconds.", gt=0, le=86400)] = 600,
        sandbox: SandboxId = "",
    ) -> Ran:
        """Run a bash command in the sandbox. Background processes that it leaves go on running."""
        chosen = self._sandbox(sandbox)
        done = chosen.run(command, cwd=cwd, timeout=timeout, output_limit=_OUTPUT)
        self._by_policy(chosen, f"after: {command}")
        return Ran(done.exit_code, done.stdout, done.stderr, round(done.duration, 3), done.timed_out)

    def read_file(
        self,
        path: str,
        first_line: Annotated[int, Field(ge=1)] = 1,
        lines: Annotated[int, Field(ge=1, le=5000)] = 500,
        sandbox: SandboxId = "",
    ) -> str:
        """Read lines of a text file, each behind its number. Paths are relative to the workspace, or absolute."""
        return inside_files.read_lines(self._sandbox(sandbox), path, first_line, lines).numbered()

    def write_file(self, path: str, content: str, sandbox: SandboxId = "") -> str:
        """Write a text file, whole. Directories that are missing are made."""
        chosen = self._sandbox(sandbox)
        inside_files.write_text(chosen, path, content)
        self._by_policy(chosen, f"wrote {path}")
        return f"{path} written"

    def edit_file(self, path: str, old: str, new: str, sandbox: SandboxId = "") -> str:
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
        return _taken(self._planarian.snapshot(self._sandbox(sandbox), name=name, description=description))

    def rollback(
        self,
        statepoint: Reference,
        outcome: Annotated[str, Field(description="What was tried since and how it ended; kept for later.")] = "",
        sandbox: SandboxId = "",
    ) -> Restored:
        """Bring the whole environment back to a statepoint. What is now is kept too: `undo` names it."""
        chosen = self._sandbox(sandbox)
        if outcome:
            self.outcome(statepoint, outcome, "failed", sandbox)
        context = self._planarian.rollback(chosen, statepoint)
        return Restored(chosen.id, context.statepoint.id, context.safety_id or "", context.to_markdown())

    def fork(
        self,
        statepoint: Reference = "@head",
        name: Annotated[str, Field(description="A short name for the fork.")] = "",
        sandbox: SandboxId = "",
    ) -> Restored:
        """Make an independent copy of the environment at a statepoint; your own stays as it is."""
        fork, context = self._planarian.fork_with_context(
            statepoint, of=self._sandbox(sandbox), name=name, by_agent=True
        )
        return Restored(fork.id, context.statepoint.id, "", context.to_markdown())

    def promote(
        self,
        fork: Annotated[str, Field(description="The fork's id.")],
        force: Annotated[bool, Field(description="Set aside what its source did since; that is kept.")] = False,
    ) -> Restored:
        """Make a fork's present state the state of the sandbox that it came from."""
        context = self._planarian.promote(self._sandbox(fork), force=force)
        return Restored(context.sandbox_id, context.statepoint.id, context.safety_id or "", context.to_markdown())

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
        status: Literal["note", "succeeded", "failed"] = "note",
        sandbox: SandboxId = "",
    ) -> str:
        """Note how what was tried from a statepoint ended. It outlives rollbacks: whoever comes back there reads it."""
        chosen = self._sandbox(sandbox)
        author = f"agent of {chosen.id}"
        self._planarian.append_outcome(statepoint, text, status=status, author=author, of=chosen)
        return "noted"

    def ledger(self, sandbox: SandboxId = "") -> str:
        """List the statepoints to go back to: what each holds, and how what was tried from it ended."""
        limit = self._planarian.config.ledger_characters
        return self._planarian.ledger(self._sandbox(sandbox)).to_markdown(limit)

    def diff(
        self,
        a: Reference = "@head",
        b: Annotated[str, Field(description="Another one; empty: the present.")] = "",
        sandbox: SandboxId = "",
    ) -> Changed:
        """What changed between two statepoints, or since one: files, processes, remote effects."""
        found = self._planarian.diff(a, b or None, of=self._sandbox(sandbox))
        return Changed([file_line(change) for change in found.files[:1000]], found.to_markdown(_OUTPUT))

    def restore_paths(self, statepoint: Reference, paths: list[str], sandbox: SandboxId = "") -> PathsRestored:
        """Bring single files or directories back from a statepoint; the rest, and what runs, isn't touched."""
        chosen = self._sandbox(sandbox)
        found = self._planarian.restore_paths(chosen, statepoint, paths)
        return PathsRestored(
            list(found.restored), list(found.removed), [f"{g.subject}: {g.reason}" for g in found.left_out]
        )


_READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_CHANGES = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
_RUNS = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=True)
_REPLACES = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)
_TOOLS = {
    "run": _RUNS,
    "read_file": _READS,
    "write_file": _REPLACES,
    "edit_file": _REPLACES,
    "snapshot": _CHANGES,
    "rollback": _REPLACES,
    "fork": _CHANGES,
    "promote": _REPLACES,
    "remove_fork": _REPLACES,
    "outcome": _CHANGES,
    "ledger": _READS,
    "diff": _READS,
    "restore_paths": _REPLACES,
}


def primitives_server(planarian: Planarian, sandbox: Sandbox) -> MCPServer[Any]:
    """An MCP server over one sandbox."""
    server: MCPServer[Any] = MCPServer("planarian", instructions=INSTRUCTIONS, version=__version__)
    tools = SandboxTools(planarian, sandbox)
    for name, hints in _TOOLS.items():
        server.add_tool(_in_a_thread(getattr(tools, name)), name=name, annotations=hints)
    return server


def _in_a_thread(method: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """A tool whose work doesn't stop the server, and whose failures are results that the agent reads."""

    @wraps(method)
    async def call(*arguments: Any, **named: Any) -> Any:
        try:
            return await to_thread.run_sync(partial(method, *arguments, **named))
        except PlanarianError as error:
            raise ToolError(str(error)) from error

    call.__signature__ = inspect.signature(method, eval_str=True)  # type: ignore[attr-defined]  # what pydantic reads
    call.__annotations__ = get_type_hints(method, include_extras=True)
    return call


def _taken(point: Statepoint) -> Taken:
    missing = [f"{gap.domain}: {gap.subject}: {gap.reason}" for gap in point.coverage.missing]
    return Taken(point.id, point.name, list(point.coverage.captured), missing)
