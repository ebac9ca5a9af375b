"""Shapes of MCP messages in both eras: greetings, results, and what the proxy adds to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp_types import SERVER_INFO_META_KEY
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS

from planarian_core import __version__
from planarian_core.errors import PlanarianError
from planarian_core.model import Verdict
from planarian_mcp.target_connection import TargetConnection
from planarian_mcp.wire import Raw

CLASS_META, REASON_META = "planarian/class", "planarian/reason"
"""In the ``_meta`` of a listed tool: what calls of it are, and why."""
ERROR_META = "planarian/error"
"""In the ``_meta`` of a tool error of ours: the error as data (code, message, state, remedy)."""

OUR_HELLO: Mapping[str, Any] = {
    "protocolVersion": LATEST_HANDSHAKE_VERSION,
    "capabilities": {},
    "clientInfo": {"name": "planarian", "version": __version__},
}
_CACHED = (
    "server/discover",
    "tools/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "prompts/list",
)
_OF_2026 = ("resultType", "ttlMs", "cacheScope")
_ENVELOPE = "io.modelcontextprotocol/"


def hello(params: Mapping[str, Any]) -> Raw:
    """A harness's ``initialize`` as the target gets it: the harness's own, without tasks, which would run on their own
    after the call that the undo log knows.
    """
    return {**OUR_HELLO, **params, "capabilities": _without_tasks(params.get("capabilities") or {})}


def handshake_greeting(target: TargetConnection, params: Mapping[str, Any], name: str) -> Raw:
    """The result of ``initialize``: the target's own."""
    greeting = target.greeting
    capabilities = _without_tasks(greeting.get("capabilities") or {})
    if not target.modern:
        return {**greeting, "capabilities": capabilities}
    info = (greeting.get("_meta") or {}).get(SERVER_INFO_META_KEY) or {"name": name, "version": ""}
    shown = {"protocolVersion": _negotiated(params), "capabilities": capabilities, "serverInfo": info}
    return shown | {key: greeting[key] for key in ("instructions",) if key in greeting}


def own_greeting(name: str, params: Mapping[str, Any]) -> Raw:
    """The result of ``initialize`` where no target server is behind the tools."""
    info = {"name": name, "version": __version__}
    return {"protocolVersion": _negotiated(params), "capabilities": {"tools": {}}, "serverInfo": info}


def discovery(target: TargetConnection) -> Raw:
    """The result of ``server/discover``."""
    greeting = target.greeting
    info = greeting.get("serverInfo") or (greeting.get("_meta") or {}).get(SERVER_INFO_META_KEY)
    found = _discovered(_without_tasks(greeting.get("capabilities") or {}), info)
    return found | {key: greeting[key] for key in ("instructions",) if key in greeting}


def own_discovery(name: str) -> Raw:
    return _discovered({"tools": {}}, {"name": name, "version": __version__})


def _discovered(capabilities: Mapping[str, Any], info: Any) -> Raw:
    meta = {"_meta": {SERVER_INFO_META_KEY: info}} if info else {}
    versions = list(MODERN_PROTOCOL_VERSIONS)
    return for_era(
        "server/discover", {"supportedVersions": versions, "capabilities": capabilities, **meta}, modern=True
    )


def _negotiated(params: Mapping[str, Any]) -> str:
    asked = params.get("protocolVersion")
    return asked if asked in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION


def _without_tasks(capabilities: Mapping[str, Any]) -> Raw:
    return {key: value for key, value in capabilities.items() if key != "tasks"}


def for_era(method: str, result: Mapping[str, Any], *, modern: bool) -> Raw:
    """A result as the harness's era has it, whichever the target's is."""
    if not modern:
        return {key: value for key, value in result.items() if key not in _OF_2026}
    hints: Raw = {"ttlMs": 0, "cacheScope": "private"} if method in _CACHED else {}
    return {"resultType": "complete", **hints, **result}


def without_envelope(params: Mapping[str, Any]) -> Raw:
    """Params without what a harness of 2026 says about itself with every request."""
    meta = {key: value for key, value in (params.get("_meta") or {}).items() if not key.startswith(_ENVELOPE)}
    rest = {key: value for key, value in params.items() if key != "_meta"}
    return {**rest, "_meta": meta} if meta else rest


def described(tool: Mapping[str, Any], verdict: Verdict) -> Raw:
    """A tool with its class in its ``_meta``; nothing else of it is changed."""
    meta = {**(tool.get("_meta") or {}), CLASS_META: verdict.call_class.value, REASON_META: verdict.reason}
    return {**tool, "_meta": meta}


def tool_error(error: PlanarianError) -> Raw:
    """An error of ours as the result of a tool, which an agent can read."""
    text = {"type": "text", "text": str(error)}
    return {"content": [text], "isError": True, "_meta": {ERROR_META: error.to_dict()}}
