"""nanobot's tools: commands and files in the session's sandbox, by the names of nanobot's own, and the primitives."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from nanobot.agent.tools.base import Tool
from nanobot.agent.tools.context import RequestContext
from nanobot.runtime_context import RuntimeContextBlock, wrap_runtime_context_lines

from planarian_core import inside_files
from planarian_core.context import clip
from planarian_core.coroutines import in_thread, run_command
from planarian_core.errors import PlanarianError
from planarian_nanobot import primitives
from planarian_nanobot.environments import Environments
from planarian_nanobot.inside import chosen_sandbox, command_text
from planarian_nanobot.tool import PATH, SANDBOX, SandboxTool, string

_PAGE = 12_000
_OUTPUT = 6_000
"""Characters of each of a command's streams; nanobot cuts results at 16,000."""


class Exec(SandboxTool):
    title = "exec"
    teaching = (
        "Run a bash command in the sandbox. Background processes that it leaves go on running. Of long output the "
        "middle is cut out: write it to a file to see all of it."
    )
    properties: ClassVar[dict[str, Any]] = {
        "command": string("A bash command line."),
        "working_dir": string("Directory; empty: the workspace."),
        "timeout": {"type": "number", "description": "Seconds.", "minimum": 0.1, "maximum": 86400},
        "sandbox": SANDBOX,
    }
    required = ("command",)

    async def work(self, sandbox: str, **arguments: Any) -> str:
        command = arguments["command"]
        timeout = arguments.get("timeout") or self._environments.settings.timeout
        async with self.environment.call(f"after: {command}") as own:
            chosen = await in_thread(partial(chosen_sandbox, own, sandbox))
            cwd = arguments.get("working_dir") or ""
            done = await run_command(chosen, command, cwd=cwd, timeout=timeout, output_limit=_OUTPUT)
            if chosen.id != own.id:
                take = partial(own.planarian.snapshot_by_policy, chosen, description=clip(f"after: {command}", 300))
                await in_thread(take)
            return command_text(done, timeout)

    def runtime_context_provider(self) -> Callable[[RequestContext], Any]:
        """At the beginning of a turn nanobot asks what its agent must know: what somebody else did meanwhile."""
        return self._tell

    async def _tell(self, request: RequestContext) -> RuntimeContextBlock | None:
        environment = self._environments.of_session(request.session_key)
        try:
            if not await in_thread(environment.known):
                return None
            async with environment.turn():
                notes = environment.take_notes()
        except PlanarianError as error:
            notes = f"The environment can't be entered: {error}"
        return RuntimeContextBlock("planarian", wrap_runtime_context_lines([notes])) if notes else None


class ReadFile(SandboxTool):
    title = "read_file"
    teaching = "Read lines of a text file in the sandbox, each behind its number."
    properties: ClassVar[dict[str, Any]] = {
        "path": PATH,
        "offset": {"type": "integer", "description": "The first line, from 1.", "minimum": 1},
        "limit": {"type": "integer", "description": "How many lines at most.", "minimum": 1, "maximum": 5000},
        "sandbox": SANDBOX,
    }
    required = ("path",)
    reads = True

    async def work(self, sandbox: str, **arguments: Any) -> str:
        first, count = arguments.get("offset") or 1, arguments.get("limit") or 500
        found = await self._in(sandbox, lambda s: inside_files.read_lines(s, arguments["path"], first, count))
        return found.page(_PAGE, "offset") or "(no such lines)"


class WriteFile(SandboxTool):
    title = "write_file"
    teaching = "Write a text file in the sandbox, whole. Directories that are missing are made."
    properties: ClassVar[dict[str, Any]] = {
        "path": PATH,
        "content": string("The whole content."),
        "sandbox": SANDBOX,
    }
    required = ("path", "content")

    async def work(self, sandbox: str, **arguments: Any) -> str:
        path, content = arguments["path"], arguments["content"]
        await self._in(sandbox, lambda s: inside_files.write_text(s, path, content), f"wrote {path}")
        return f"{path} written"


class EditFile(SandboxTool):
    title = "edit_file"
    teaching = "Replace a text that occurs exactly once in a file in the sandbox."
    properties: ClassVar[dict[str, Any]] = {
        "path": PATH,
        "old_text": string("Occurs exactly once."),
        "new_text": string("Takes its place."),
        "sandbox": SANDBOX,
    }
    required = ("path", "old_text", "new_text")

    async def work(self, sandbox: str, **arguments: Any) -> str:
        path, old, new = arguments["path"], arguments["old_text"], arguments["new_text"]
        await self._in(sandbox, lambda s: inside_files.replace_text(s, path, old, new), f"changed {path}")
        return f"{path} changed"


def sandbox_tools(environments: Environments) -> list[Tool]:
    """All tools, for a ``ToolRegistry`` of one's own."""
    work: tuple[type[SandboxTool], ...] = (Exec, ReadFile, WriteFile, EditFile)
    return [made(environments) for made in (*work, *primitives.ALL)]
