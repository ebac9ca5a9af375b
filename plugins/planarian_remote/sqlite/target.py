"""The tools: offered here where there is no server; else its own, and it is only started where it is really asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from planarian_core.errors import RemoteError
from planarian_core.interfaces import ToolResult, ToolTarget
from planarian_remote.sqlite.settings import Settings


class OwnTools:
    """A :class:`ToolTarget` that lists ``execute_sql``. The service kind runs what it is given, with its undo data."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        raise RemoteError(
            f"{tool} is run by the service itself, with its undo data, not past it",
            code="service-error",
            state="nothing was changed",
        )

    def tools(self) -> Sequence[Mapping[str, Any]]:
        return [self._tool(name, argument) for name, argument in self._settings.tools.items() if argument]

    def _tool(self, name: str, argument: str) -> Mapping[str, Any]:
        return {
            "name": name,
            "description": "Run one SQL statement on the SQLite database "
            f"{self._settings.name!r}. It is committed at once; begin no transaction.",
            "inputSchema": {
                "type": "object",
                "properties": {argument: {"type": "string", "description": "one SQL statement"}},
                "required": [argument],
            },
            "annotations": {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": False},
        }

    def close(self) -> None:
        """Nothing is held."""


class ServersTools:
    """The server's tools, connected to at first use: settling and compensating need the file alone."""

    def __init__(self, connect: Callable[[], ToolTarget]) -> None:
        self._connect = connect
        self._target: ToolTarget | None = None

    def _connected(self) -> ToolTarget:
        if self._target is None:
            self._target = self._connect()
        return self._target

    def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        return self._connected().call(tool, arguments)

    def tools(self) -> Sequence[Mapping[str, Any]]:
        return self._connected().tools()

    def close(self) -> None:
        target, self._target = self._target, None
        if target is not None:
            target.close()
