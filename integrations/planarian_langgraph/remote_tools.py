"""A remote service's tools for an agent, so that a rollback brings its rows back with the files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from langchain_core.tools import BaseTool, ToolException

from planarian_core.coroutines import in_thread
from planarian_core.errors import PlanarianError
from planarian_core.interfaces import ToolResult
from planarian_core.service_tools import description_of, parameters_of
from planarian_langgraph.environments import Environments


def remote_tools(environments: Environments, service: str) -> list[BaseTool]:
    """The tools of a service of ``planarian.toml``, as it describes them. Each call is made on behalf of the thread's
    sandbox, so that it can be undone with it.

    Raises:
        ConfigurationError: there is no such service.
        RemoteError: it can't be reached.
    """
    return [_made(environments, service, tool) for tool in environments.planarian.service_tools.listed(service)]


def _made(environments: Environments, service: str, tool: Mapping[str, Any]) -> BaseTool:
    return _RemoteTool(
        name=tool["name"],
        description=description_of(tool),
        args_schema=parameters_of(tool),
        environments=environments,
        service=service,
        handle_tool_error=True,
    )


class _RemoteTool(BaseTool):
    environments: Any
    service: str

    def _run(self, /, **arguments: Any) -> Any:
        sandbox = self.environments.sandbox()
        try:
            result = sandbox.planarian.service_tools.call(sandbox, self.service, self.name, arguments)
        except PlanarianError as error:  # refused, fenced off in this fork, not reached: for the model to read
            raise ToolException(str(error)) from error
        return _content(result)

    async def _arun(self, /, **arguments: Any) -> Any:
        return await in_thread(partial(self._run, **arguments))


def _content(result: ToolResult) -> Any:
    """What a tool message holds: text where all is text, else blocks. ToolException for an error of the tool's."""
    blocks = result.get("content") or []
    texts = [block["text"] if block.get("type") == "text" else None for block in blocks]
    if result.get("isError"):
        raise ToolException("\n".join(filter(None, texts)) or "the tool failed and said nothing")
    if not blocks and "structuredContent" in result:
        return json.dumps(result["structuredContent"], ensure_ascii=False)
    if None not in texts:
        return "\n".join(map(str, texts))
    return [_block(block) for block in blocks]


def _block(block: Mapping[str, Any]) -> dict[str, Any]:
    if block.get("type") == "text":
        return {"type": "text", "text": block["text"]}
    if block.get("type") in ("image", "audio"):
        return {"type": block["type"], "base64": block["data"], "mime_type": block["mimeType"]}
    return {"type": "text", "text": json.dumps(dict(block), ensure_ascii=False)}
