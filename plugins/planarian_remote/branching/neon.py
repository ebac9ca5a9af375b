"""The kind ``branching`` with dialect ``neon``: PostgreSQL with branches, by Neon's HTTP API (``docs/branching.md``).

Tried against a small fake of that API only, never against Neon itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planarian_core.interfaces import CallOutcome, TargetServer, ToolTarget
from planarian_core.model import CallClass, Effect, EffectState, RemoteCall, Verdict
from planarian_remote.branching.by_versions import ByVersions, told
from planarian_remote.branching.neon_api import NeonApi, address_of
from planarian_remote.branching.neon_versions import NeonVersions
from planarian_remote.branching.tools import Tools, read_tools
from planarian_remote.branching.versions import branch_name
from planarian_remote.configuration import Table

_API = "https://console.neon.tech/api/v2"
_CHANGES = Verdict(CallClass.BRANCHABLE, "statements aren't told apart: the branch's versions undo all of them")
_SHOWN = 200


class NeonKind(ByVersions):
    """One Neon project, as one sandbox uses it through an MCP server; its versions are :class:`NeonVersions`."""

    def __init__(self, versions: NeonVersions, sandbox_id: str, server: TargetServer, tools: Tools) -> None:
        self.name = versions.service
        self.endpoint = f"neon:{versions.api.project}/{branch_name(sandbox_id)}"
        self.server: TargetServer | None = server
        self.versions = versions
        self._sandbox_id = sandbox_id
        self._tools = tools
        self.mark = f"neon:{versions.api.project}"

    def server_for_branch(self) -> TargetServer:
        """The target server, told where the sandbox's branch is; the branch is there when this returns."""
        assert self.server is not None
        words = {"{database_url}": self.versions.uri(self._sandbox_id), "{branch}": branch_name(self._sandbox_id)}
        return told(self.server, words)

    def connect(self) -> ToolTarget:
        from planarian_remote.mcp_target import open_target

        return open_target(self.server_for_branch())

    def describe(self, tool: str, annotations: Mapping[str, Any]) -> Verdict:
        return _CHANGES if tool in self._tools.sql else self._tools.describe(tool)

    def classify(self, call: RemoteCall) -> Verdict:
        return self.describe(call.tool, {})

    def run(self, call: RemoteCall, effect: Effect, target: ToolTarget) -> CallOutcome:
        result = target.call(call.tool, call.arguments)
        text = str(call.arguments.get(self._tools.sql.get(call.tool, ""), dict(call.arguments)))
        return CallOutcome(result, EffectState.APPLIED, " ".join(text.split())[:_SHOWN])

    def settle(self, effect: Effect, target: ToolTarget) -> CallOutcome:
        """Whether it happened can't be told apart from what the branch holds, and need not be: versions hold it."""
        return CallOutcome({}, EffectState.APPLIED, f"{effect.summary} (may not have happened)")


def make(table: Table, sandbox_id: str) -> NeonKind:
    """The service of one ``[services.NAME]``; connects to nothing."""
    try:
        address = address_of(table.text("api", _API))
    except ValueError as error:
        raise table.wrong("api", "an https address") from error
    api = NeonApi(address, table.text("api_key"), table.text("project"), table.number("patience", 60.0))
    database, role, base = table.text("database", "neondb"), table.text("role", "neondb_owner"), table.text("base", "")
    server = table.server()
    assert server is not None
    tools = read_tools(table)
    table.close()
    return NeonKind(NeonVersions(table.name, api, database, role, base), sandbox_id, server, tools)
