"""The tools of a home's remote services, for adapters that offer them to a framework's agents: listed, and called on
behalf of a sandbox. Connections stay open between calls.

A harness that speaks MCP uses ``planarian proxy`` instead.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from planarian_core.errors import ConfigurationError, RemoteError
from planarian_core.interfaces import ToolResult, ToolTarget
from planarian_core.logged_service import LoggedService
from planarian_core.model import CallClass, SandboxRecord, SandboxSpec, new_id, utc_now

if TYPE_CHECKING:
    from planarian_core.remote_session import RemoteSession
    from planarian_core.runtime import Planarian
    from planarian_core.sandbox import Sandbox

_KEPT_OPEN = 32


class _Connection:
    """One sandbox's connection to one service, made when it is first used; for one thread at a time."""

    def __init__(self, planarian: Planarian, sandbox: Sandbox, service: str) -> None:
        self._planarian, self._sandbox, self._service = planarian, sandbox, service
        self._lock = threading.Lock()
        self._session: RemoteSession | None = None
        self._target: ToolTarget | None = None
        self.users = 0
        """Who has it just now; counted by whoever keeps connections."""

    def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        with self._lock:
            if self._session is None:
                self._session = self._planarian.remote_session(self._sandbox, self._service)
            if self._target is None:
                self._target = self._session.kind.connect()
            try:
                return self._session.call(tool, arguments, self._target)
            except RemoteError as error:
                if error.code == "service-unreachable":
                    self._close()
                raise

    def close(self) -> None:
        with self._lock:  # whoever calls through it gets its result first
            self._close()

    def _close(self) -> None:
        target, self._target = self._target, None
        if target is not None:
            target.close()


class ServiceTools:
    """``planarian.service_tools``. Usable from any thread."""

    def __init__(self, planarian: Planarian) -> None:
        self._planarian = planarian
        self._guard = threading.Lock()
        self._connections: dict[tuple[str, str], _Connection] = {}

    def listed(self, service: str) -> list[Mapping[str, Any]]:
        """A service's tools as MCP has them on the wire, without those of which no call could succeed. No sandbox need
        be there yet.

        Raises:
            ConfigurationError: there is no such service.
            RemoteError: ``service-unreachable``.
        """
        record = _nobody(str(self._planarian.home))
        for found in self._planarian.statepoints.remote.offered(record):
            if found.name == service and isinstance(found, LoggedService):
                try:
                    with closing(found.kind.connect()) as target:
                        tools = list(target.tools())
                finally:
                    found.forget(record.id)  # one that branches made a branch
                describe = found.kind.describe
                return [
                    tool
                    for tool in tools
                    if describe(tool["name"], tool.get("annotations") or {}).call_class is not CallClass.REFUSED
                ]
        raise ConfigurationError(
            f"no remote service {service!r} is configured",
            code="service-unknown",
            remedy=f"add [services.{service}] to {self._planarian.home / 'planarian.toml'}",
        )

    def call(self, sandbox: Sandbox, service: str, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        """One call, as :meth:`planarian_core.remote_session.RemoteSession.call` makes it, with the same errors."""
        with self._used(sandbox, service) as connection:
            return connection.call(tool, arguments)

    def let_go(self, sandbox: Sandbox) -> None:
        """Close a sandbox's connections, those in use when they are free: it is about to be removed. Idempotent."""
        with self._guard:
            over = [self._connections.pop(key) for key in list(self._connections) if key[0] == sandbox.id]
        for connection in over:
            connection.close()

    def close(self) -> None:
        """Close all connections. Idempotent."""
        with self._guard:
            over, self._connections = list(self._connections.values()), {}
        for connection in over:
            connection.close()

    @contextmanager
    def _used(self, sandbox: Sandbox, service: str) -> Iterator[_Connection]:
        key = (sandbox.id, service)
        with self._guard:
            connection = self._connections.pop(key, None) or _Connection(self._planarian, sandbox, service)
            connection.users += 1
            self._connections[key] = connection  # the one used last comes last
            idle = [key for key, other in self._connections.items() if not other.users]
            over = [self._connections.pop(old) for old in idle[: max(0, len(self._connections) - _KEPT_OPEN)]]
        for other in over:
            other.close()
        try:
            yield connection
        finally:
            with self._guard:
                connection.users -= 1


def description_of(tool: Mapping[str, Any]) -> str:
    """What a listed tool is said to do, for a model."""
    return str(tool.get("description") or tool.get("title") or tool["name"])


def parameters_of(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON schema of a listed tool's arguments: an object's, also where the service gives none."""
    return {"type": "object", "properties": {}, **(tool.get("inputSchema") or {})}


def text_of(result: ToolResult) -> str:
    """What a call's result says, for agents that read text alone: other content is described, as JSON without data."""
    blocks = result.get("content") or []
    if not blocks and "structuredContent" in result:
        return json.dumps(result["structuredContent"], ensure_ascii=False)
    return "\n".join(map(_text_of, blocks))


def _text_of(block: Mapping[str, Any]) -> str:
    if block.get("type") == "text":
        return str(block["text"])
    return json.dumps({key: value for key, value in block.items() if key != "data"}, ensure_ascii=False)


def _nobody(home: str) -> SandboxRecord:
    """What stands for a sandbox where only the tools are asked for."""
    spec = SandboxSpec(new_id("sb"), home, home, home, "directory")
    return SandboxRecord(spec, new_id("br"), "none", "none", utc_now())
