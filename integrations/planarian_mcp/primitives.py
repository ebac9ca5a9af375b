"""The primitives and a sandbox's commands and files as MCP tools, for any harness: ``planarian mcp``.

The harness's agent works in one sandbox, and in the forks that it makes of it; it can name no other.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from typing import Any, get_type_hints

from anyio import to_thread
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

from planarian_core import Planarian, Sandbox, __version__
from planarian_core.errors import PlanarianError
from planarian_core.model import Network
from planarian_mcp.primitives_tools import SandboxTools

INSTRUCTIONS = """\
You work in a sandbox: files and running processes, and databases where a planarian proxy is configured beside this
server. A statepoint is a version of all of it that can be restored exactly; one is taken after your calls, and whenever
you ask for one. When something went wrong, don't repair it step by step: look at the ledger, note with `outcome` what
you tried and how it ended, and go back with `rollback`. To try several ways, `fork` the environment, pass the fork's id
as `sandbox`, and `promote` the one that worked.
"""

_READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_ADDS = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False)
_MOVES = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
"""Statepoints are moved between: what is left is kept, and called twice it comes to the same."""
_WRITES = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)
_DESTROYS = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=False)
_RUNS_OUTSIDE = _DESTROYS.model_copy(update={"open_world_hint": True})
_TOOLS = {
    "run": _DESTROYS,
    "read_file": _READS,
    "write_file": _WRITES,
    "edit_file": _DESTROYS,
    "snapshot": _ADDS,
    "rollback": _MOVES,
    "fork": _ADDS,
    "promote": _MOVES,
    "remove_fork": _DESTROYS,
    "outcome": _ADDS,
    "ledger": _READS,
    "diff": _READS,
    "restore_paths": _MOVES,
}
_ALWAYS = frozenset({"run", "read_file", "write_file", "edit_file", "snapshot", "rollback", "outcome", "ledger"})
"""Claude Code leaves the tools of MCP servers out until its model looks for them, but not those that are marked."""


def primitives_server(planarian: Planarian, sandbox: Sandbox) -> MCPServer[Any]:
    """An MCP server over one sandbox."""
    server: MCPServer[Any] = MCPServer("planarian", instructions=INSTRUCTIONS, version=__version__)
    tools = SandboxTools(planarian, sandbox)
    for name, hints in _TOOLS.items():
        if name == "run" and _reaches_outside(planarian, sandbox):
            hints = _RUNS_OUTSIDE
        meta = {"anthropic/alwaysLoad": True} if name in _ALWAYS else None
        server.add_tool(_as_tool(getattr(tools, name)), name=name, annotations=hints, meta=meta)
    return server


def _reaches_outside(planarian: Planarian, sandbox: Sandbox) -> bool:
    """Whether commands may change what is outside: the host, or what its network leads to."""
    spec = sandbox.record.spec
    return spec.network is Network.HOST or not planarian.plugins.sandbox(spec.backend).capabilities.isolated


def _as_tool(method: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """A tool whose work doesn't stop the server, and whose failures are results that the agent reads."""

    @wraps(method)
    async def call(*arguments: Any, **named: Any) -> Any:
        try:
            if inspect.iscoroutinefunction(method):
                return await method(*arguments, **named)
            return await to_thread.run_sync(partial(method, *arguments, **named))
        except PlanarianError as error:
            raise ToolError(str(error)) from error

    call.__signature__ = inspect.signature(method, eval_str=True)  # type: ignore[attr-defined]  # what pydantic reads
    call.__annotations__ = get_type_hints(method, include_extras=True)
    return call
