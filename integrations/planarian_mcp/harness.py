"""The way back to the harness, and what it may ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp.server.connection import allowed_log_levels
from mcp.server.context import ServerRequestContext
from mcp.server.subscriptions import PromptsListChanged, ResourcesListChanged, ResourceUpdated, ServerEvent
from mcp.shared.subscriptions import ToolsListChanged
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from planarian_mcp.wire import Raw


class HarnessChannel:
    """The channel of one request (:class:`planarian_mcp.tool_call.Harness`): over HTTP, the response to it.

    The SDK offers it typed only; what comes from the target is passed on as it is.
    """

    def __init__(self, ctx: ServerRequestContext[Any, Any]) -> None:
        capabilities = ctx.session.client_capabilities
        self.modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        self.can_elicit = capabilities is not None and capabilities.elicitation is not None
        self._levels = allowed_log_levels(ctx.protocol_version, ctx.meta)
        self._outbound = ctx.session._request_outbound

    async def ask(self, method: str, params: Mapping[str, Any] | None) -> Raw:
        return await self._outbound.send_raw_request(method, params)

    async def tell(self, method: str, params: Mapping[str, Any] | None) -> None:
        if method == "notifications/message" and (params or {}).get("level") not in self._levels:
            return
        await self._outbound.notify(method, params)


def change_event(method: str, params: Mapping[str, Any] | None) -> ServerEvent | None:
    """A notification of a change, as harnesses of 2026 subscribe to it; None for any other."""
    if method == "notifications/tools/list_changed":
        return ToolsListChanged()
    if method == "notifications/prompts/list_changed":
        return PromptsListChanged()
    if method == "notifications/resources/list_changed":
        return ResourcesListChanged()
    if method == "notifications/resources/updated":
        return ResourceUpdated(uri=str((params or {}).get("uri")))
    return None
