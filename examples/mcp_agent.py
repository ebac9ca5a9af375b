"""An agent of any harness by MCP, with a model that says what a script says.

``pip install 'planarian[mcp]'``, then ``python mcp_agent.py``. It starts ``planarian mcp`` as a harness does, works in
the sandbox, breaks something, looks at the ledger, goes back, and tries another way in a fork, which it promotes.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from planarian_core import Planarian

PLANARIAN = Path(sys.executable).with_name("planarian")
Result = dict[str, Any]


class Agent:
    """Calls tools as a model would ask for it, and shows what comes back."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session

    async def __call__(self, tool: str, **arguments: Any) -> Result:
        answer = await self._session.call_tool(tool, arguments)
        result: Result = answer.structured_content or {}
        shown = result.get("stdout", result.get("statepoint", result.get("result", "")))
        print(f"{tool:10} {arguments} -> {str(shown).strip()}")
        return result


async def story(agent: Agent) -> str:
    await agent("run", command="printf '1\\n2\\n' > numbers; sort -n numbers")
    await agent("snapshot", name="sorted", description="numbers has two lines, in order")
    await agent("run", command="rm numbers; ls")
    await agent("rollback", statepoint="sorted", outcome="removed numbers; nothing came of it")
    known = await agent("ledger")
    tried = [o["text"] for point in known["statepoints"] for o in point["outcomes"]]
    print(f"           (the ledger remembers: {tried})")
    fork = await agent("fork", statepoint="sorted", name="reverse")
    await agent("run", command="sort -rn -o numbers numbers", sandbox=fork["sandbox"])
    await agent("run", command="cat numbers")
    await agent("promote", fork=fork["sandbox"], force=True)
    return str((await agent("run", command="cat numbers"))["stdout"])


async def connected(home: Path, project: Path) -> str:
    environment = {"PLANARIAN_HOME": str(home), "PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    arguments = ["mcp", "--new", str(project), "--name", "work"]
    server = StdioServerParameters(command=str(PLANARIAN), args=arguments, env=environment)
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        tools = (await session.list_tools()).tools
        print(f"           (offered: {', '.join(tool.name for tool in tools)})")
        return await story(Agent(session))


def main(folder: Path) -> bool:
    home, project = folder / "home", folder / "project"
    project.mkdir()
    try:
        return anyio.run(connected, home, project) == "2\n1\n"
    finally:
        with Planarian.open(home) as planarian:
            for record in reversed(planarian.registry.sandboxes()):
                planarian.remove_sandbox(planarian.sandbox(record.id))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        sys.exit(not main(Path(place)))
