"""The demo's agent: a script where others have a model. Its tools are real: MCP to ``planarian proxy``, and a shell."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planarian_core import Sandbox
from planarian_core.errors import PlanarianError
from planarian_core.testing.demonstration import Demonstration

if TYPE_CHECKING:
    from mcp import ClientSession

Row = dict[str, Any]
CallTool = Callable[[str, dict[str, Any]], Any]
"""An MCP client's ``call_tool``, synchronous."""

_PLANARIAN = "from planarian_core.cli.main import main; main()"


class Agent:
    """What it does is shown as it does it."""

    def __init__(self, demonstration: Demonstration, sandbox: Sandbox, call_tool: CallTool, tools: Sequence[str]):
        self.tools = tools
        self._demonstration = demonstration
        self._sandbox = sandbox
        self._call_tool = call_tool

    def sql(self, statement: str) -> list[Row]:
        """Run one statement through the proxy; the rows that came back."""
        self._demonstration.say(f"sql> {statement}", "bold")
        result = self._call_tool("execute_sql", {"sql": statement})
        texts = [content.text for content in result.content]
        if getattr(result, "is_error", False) or getattr(result, "isError", False):
            raise PlanarianError(f"the tool failed: {' '.join(texts)}", code="demo")
        for text in texts:
            self._demonstration.say(text, "dim")
        return [json.loads(text) for text in texts]

    def shell(self, command: str, stdin: str = "") -> str:
        """Run a command in the sandbox; what it printed."""
        self._demonstration.say(f"$ {command}", "bold")
        result = self._sandbox.run(command, stdin=stdin, timeout=60)
        if result.exit_code:
            raise PlanarianError(f"{command} failed: {result.stdout}{result.stderr}", code="demo")
        if result.stdout:
            self._demonstration.say(result.stdout.rstrip(), "dim")
        return result.stdout


@contextmanager
def agent(demonstration: Demonstration, sandbox: Sandbox, home: Path, service: str) -> Iterator[Agent]:
    """An agent at work in a sandbox, connected to a service through ``planarian proxy`` as any harness connects it."""
    from anyio.from_thread import start_blocking_portal

    arguments = ["-c", _PLANARIAN, "--home", str(home), "proxy", service, "--sandbox", sandbox.id]
    with start_blocking_portal("asyncio") as portal:
        connection = portal.wrap_async_context_manager(_session(arguments))
        session = connection.__enter__()
        try:
            names = [tool.name for tool in portal.call(session.list_tools).tools]
            yield Agent(demonstration, sandbox, lambda name, given: portal.call(session.call_tool, name, given), names)
        finally:
            connection.__exit__(None, None, None)  # not the story's error, which anyio would wrap


@asynccontextmanager
async def _session(arguments: list[str]) -> AsyncIterator[ClientSession]:
    from mcp import ClientSession
    from mcp.client.stdio import StdioServerParameters, stdio_client

    parameters = StdioServerParameters(command=sys.executable, args=arguments)
    async with stdio_client(parameters) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        yield session
