"""A remote service's tools for nanobot's agents, so that a rollback brings its rows back with the files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from nanobot.agent.tools.base import Tool, ToolResult

from planarian_core import Sandbox
from planarian_core.context import clip
from planarian_core.errors import RemoteError
from planarian_core.service_tools import description_of, parameters_of, text_of
from planarian_nanobot.environments import Environments
from planarian_nanobot.tool import SANDBOX, SandboxTool


def remote_tools(environments: Environments, service: str) -> list[Tool]:
    """The tools of a service of ``planarian.toml``, as it describes them, for a ``ToolRegistry``. Each call is made on
    behalf of the session's sandbox, or of a fork of it, so that it can be undone with it.

    Raises:
        ConfigurationError: there is no such service.
        RemoteError: it can't be reached.
    """
    described = environments.planarian.service_tools.listed(service)
    return [RemoteTool(environments, service, tool) for tool in described]


class RemoteTool(SandboxTool):
    """One tool of a remote service. nanobot doesn't make it by itself: which ones there are only the service knows."""

    _plugin_discoverable = False

    def __init__(self, environments: Environments, service: str, described: Mapping[str, Any]) -> None:
        super().__init__(environments)
        self._service = service
        self._described = described
        self._schema = parameters_of(described)
        self._has_sandbox = "sandbox" in self._schema["properties"]

    @property
    def name(self) -> str:
        return str(self._described["name"])

    @property
    def description(self) -> str:
        return description_of(self._described)

    @property
    def parameters(self) -> dict[str, Any]:
        """The service's own, and ours for forks where it has none of that name."""
        return {**self._schema, "properties": {"sandbox": SANDBOX, **self._schema["properties"]}}

    async def execute(self, **arguments: Any) -> ToolResult:
        fork = "" if self._has_sandbox else arguments.pop("sandbox", "")
        return await super().execute(sandbox=fork, arguments=arguments)

    async def work(self, sandbox: str, **given: Any) -> str:
        arguments = given["arguments"]

        def call(chosen: Sandbox) -> str:
            result = chosen.planarian.service_tools.call(chosen, self._service, self.name, arguments)
            if result.get("isError"):
                raise RemoteError(text_of(result) or "the tool failed and said nothing", code="tool-failed")
            return text_of(result)

        return await self._in(sandbox, call, f"after: {self.name} {clip(json.dumps(arguments, default=str), 200)}")
