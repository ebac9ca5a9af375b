"""A remote service's tools for an agent, so that a rollback brings its rows back with the files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any, Self, cast

from autogen_core import CancellationToken, Image
from autogen_core.tools import (
    ImageResultContent,
    ParametersSchema,
    TextResultContent,
    ToolResult,
    ToolSchema,
    Workbench,
)
from pydantic import BaseModel

from planarian_autogen.environment import Environment
from planarian_autogen.settings import EnvironmentSettings
from planarian_autogen.workbench import StatepointWorkbench
from planarian_core.coroutines import in_thread
from planarian_core.interfaces import ToolResult as WireResult
from planarian_core.service_tools import description_of, parameters_of


class RemoteWorkbenchConfig(BaseModel):
    """The environment, and which service."""

    environment: EnvironmentSettings
    service: str


class _Service(Workbench):
    """The tools of a service of ``planarian.toml``, as it describes them."""

    component_type = "workbench"

    def __init__(self, environment: Environment, service: str) -> None:
        self._environment = environment
        self._service = service
        self._listed: list[ToolSchema] = []

    async def list_tools(self) -> list[ToolSchema]:
        if not self._listed:  # agents ask before each call
            tools = self._environment.planarian.service_tools
            self._listed = [_schema(tool) for tool in await in_thread(partial(tools.listed, self._service))]
        return self._listed

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: CancellationToken | None = None,
        call_id: str | None = None,
    ) -> ToolResult:
        tools = self._environment.planarian.service_tools
        call = partial(tools.call, self._environment.sandbox, self._service, name, dict(arguments or {}))
        return _result(name, await in_thread(call))

    async def start(self) -> None:
        """Nothing is held: connections are the runtime's."""

    async def stop(self) -> None:
        """As above."""

    async def reset(self) -> None:
        """As above."""

    async def save_state(self) -> Mapping[str, Any]:
        return {}

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """There is none of its own."""


class RemoteWorkbench(StatepointWorkbench):
    """The tools of a remote service. Each call is made on behalf of the environment's sandbox, so that it can be undone
    with it. What is refused, fenced off in a fork, or not reached is a result with ``is_error``.

    Args:
        service: a name from ``[services.NAME]`` of the home's configuration.
    """

    component_provider_override = "planarian_autogen.RemoteWorkbench"
    component_config_schema = RemoteWorkbenchConfig  # type: ignore[assignment]  # not StaticWorkbench's

    def __init__(self, environment: Environment, service: str) -> None:
        super().__init__(_Service(environment, service), environment)
        self._config = RemoteWorkbenchConfig(environment=environment.settings, service=service)

    def _to_config(self) -> RemoteWorkbenchConfig:  # type: ignore[override]  # not StaticWorkbench's
        return self._config

    @classmethod
    def _from_config(cls, config: RemoteWorkbenchConfig) -> Self:  # type: ignore[override]  # likewise
        return cls(Environment.of(config.environment), config.service)


def _schema(tool: Mapping[str, Any]) -> ToolSchema:
    parameters = cast(ParametersSchema, parameters_of(tool))
    return ToolSchema(name=tool["name"], description=description_of(tool), parameters=parameters)


def _result(name: str, result: WireResult) -> ToolResult:
    blocks = list(result.get("content") or [])
    if not blocks and "structuredContent" in result:
        blocks = [{"type": "text", "text": json.dumps(result["structuredContent"], ensure_ascii=False)}]
    return ToolResult(name=name, result=[_content(block) for block in blocks], is_error=bool(result.get("isError")))


def _content(block: Mapping[str, Any]) -> TextResultContent | ImageResultContent:
    if block.get("type") == "text":
        return TextResultContent(content=block["text"])
    if block.get("type") == "image":
        return ImageResultContent(content=Image.from_base64(block["data"]))
    return TextResultContent(content=json.dumps(dict(block), ensure_ascii=False))
