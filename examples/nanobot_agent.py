"""nanobot's agent loop in a sandbox, with a model that says what a script says.

``pip install 'planarian[nanobot]'``, then ``python nanobot_agent.py``. The agent writes a page and serves it, keeps
that, breaks it, and goes back: page and server are as they were.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

from loguru import logger
from nanobot.agent.loop import AgentLoop
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.bus.queue import MessageBus
from nanobot.config.schema import ToolsConfig
from nanobot.providers.base import LLMProvider, LLMResponse, ToolCallRequest

from planarian_core import Planarian
from planarian_nanobot import Environments, StatepointHook, sandbox_tools

SERVE = "echo hello > page; python3 -m http.server --bind 127.0.0.1 $PORT > server.log 2>&1 & echo $! > server.pid"
ASK = """until python3 -c "
from urllib.request import urlopen
print(urlopen('http://127.0.0.1:$PORT/page').read().decode())" 2>/dev/null; do sleep 0.1; done"""


class Scripted(LLMProvider):
    """A model that makes one call after the other, and then repeats the last result."""

    def __init__(self, *calls: tuple[str, dict[str, Any]]) -> None:
        super().__init__(provider_name="scripted")
        self._calls = list(calls)

    async def chat(self, messages: list[dict[str, Any]], *args: Any, **kwargs: Any) -> LLMResponse:
        if messages[-1]["role"] == "tool":
            print(f"       -> {messages[-1]['content'].strip().splitlines()[0]}")
        if not self._calls:
            return LLMResponse(content=messages[-1]["content"])
        tool, arguments = self._calls.pop(0)
        print(f"agent: {tool} {arguments}")
        call = ToolCallRequest(id=f"call-{len(self._calls)}", name=tool, arguments=arguments)
        return LLMResponse(content=None, tool_calls=[call], finish_reason="tool_calls")

    def get_default_model(self) -> str:
        return "scripted"


async def story(planarian: Planarian, project: Path) -> bool:
    environments = Environments(planarian, project)
    registry = ToolRegistry()
    for tool in sandbox_tools(environments):
        registry.register(tool)
    port = str(free_port())
    model = Scripted(
        ("exec", {"command": SERVE.replace("$PORT", port)}),
        ("exec", {"command": ASK.replace("$PORT", port)}),
        ("snapshot", {"name": "served", "description": "the page is there and served"}),
        ("exec", {"command": "kill $(cat server.pid); rm page; ls"}),
        ("rollback", {"statepoint": "served", "outcome": "stopped the server by mistake"}),
        ("exec", {"command": ASK.replace("$PORT", port)}),
    )
    host_tools = ToolsConfig.model_validate({"exec": {"enable": False}, "file": {"enable": False}})
    loop = AgentLoop(
        MessageBus(), model, project.parent / "nanobot", tools_config=host_tools, tool_registry=registry,
        hooks=[StatepointHook(environments)],
    )  # fmt: skip
    try:
        answer = await loop.process_direct("Write a page and serve it.")
    finally:
        await loop.aclose()
    return answer is not None and answer.content.startswith("hello")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def main(folder: Path) -> bool:
    (folder / "project").mkdir()
    with Planarian.open(folder / "home") as planarian:
        try:
            return asyncio.run(story(planarian, folder / "project"))
        finally:
            for record in planarian.registry.sandboxes():
                planarian.remove_sandbox(planarian.sandbox(record.id))


if __name__ == "__main__":
    logger.disable("nanobot")  # it tells every step
    with tempfile.TemporaryDirectory() as place:
        sys.exit(not main(Path(place)))
