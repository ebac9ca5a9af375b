"""The kind ``branching`` with dialect ``doltlite``: an embedded database with branches (``docs/branching.md``)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from planarian_core.errors import CompensationError, RemoteError
from planarian_core.interfaces import CallOutcome, TargetServer, ToolTarget
from planarian_core.model import CallClass, Effect, EffectState, RemoteCall, Verdict
from planarian_remote.branching.by_versions import ByVersions, told
from planarian_remote.branching.engine import EngineError
from planarian_remote.branching.judgement import Judge
from planarian_remote.branching.library import find
from planarian_remote.branching.target import BranchTarget
from planarian_remote.branching.tools import Tools, read_tools
from planarian_remote.branching.versions import DoltVersions, branch_name
from planarian_remote.configuration import Table

_STATE = "SELECT dolt_hashof_catalog('WORKING') || dolt_hashof('HEAD')"
"""Equal as long as nothing on the branch was changed, not even its last commit."""
_STATEMENT_SHOWN = 200


class DoltliteKind(ByVersions):
    """One doltlite database, as one sandbox uses it; its versions are :class:`DoltVersions`."""

    def __init__(
        self,
        versions: DoltVersions,
        sandbox_id: str,
        server: TargetServer | None,
        tools: Tools,
        *,
        timeout: float = 60.0,
        max_rows: int = 10_000,
        mark: str = "",
    ) -> None:
        self.name = versions.service
        self.mark = mark
        self.endpoint = f"doltlite:{versions.database}#{branch_name(sandbox_id)}"
        self.server = server
        self.versions = versions
        self._sandbox_id = sandbox_id
        self._tools = tools
        self._timeout = timeout
        self._max_rows = max_rows

    @cached_property
    def _judge(self) -> Judge:
        """Statements are judged on a connection of our own, whoever runs them."""
        return Judge(self.versions.on_branch(self._sandbox_id))

    # --- the server ---

    def server_for_branch(self) -> TargetServer:
        """The target server, to be started now: on the sandbox's branch, which is there when this returns."""
        assert self.server is not None
        self.versions.ensure(self._sandbox_id)
        return self.server

    def connect(self) -> ToolTarget:
        if self.server is not None:
            from planarian_remote.mcp_target import open_target

            return open_target(self.server_for_branch())
        [(tool, argument)] = list(self._tools.sql.items())[:1]
        connection = self.versions.on_branch(self._sandbox_id)
        return BranchTarget(connection, tool, argument, timeout=self._timeout, max_rows=self._max_rows)

    # --- calls ---

    def describe(self, tool: str, annotations: Mapping[str, Any]) -> Verdict:
        return self._tools.describe(tool)

    def classify(self, call: RemoteCall) -> Verdict:
        argument = self._tools.sql.get(call.tool)
        if argument is None:
            return self._tools.describe(call.tool)
        sql = call.arguments.get(argument)
        if not isinstance(sql, str):
            return Verdict(CallClass.REFUSED, f"the argument {argument!r} must be one SQL statement")
        return self._judge.verdict(sql)

    def prepare(self, call: RemoteCall, target: ToolTarget) -> Mapping[str, Any]:
        """The branch's state before the call, by which it can be told later whether the call changed anything."""
        return {"before": self._state()}

    def run(self, call: RemoteCall, effect: Effect, target: ToolTarget) -> CallOutcome:
        result = target.call(call.tool, call.arguments)
        return CallOutcome(result, self._outcome(effect), _summary(call, self._tools))

    def settle(self, effect: Effect, target: ToolTarget) -> CallOutcome:
        """What the branch's state says: a call that changed nothing is void. One that somebody is still making holds
        the database's write lock, which is waited for.
        """
        try:
            own = self.versions.on_branch(self._sandbox_id)
            try:
                own.execute("BEGIN IMMEDIATE")
                own.execute("ROLLBACK")
            finally:
                own.close()
            return CallOutcome({}, self._outcome(effect), effect.summary)
        except (EngineError, RemoteError) as error:
            raise CompensationError(
                f"{self.name}: how the call {effect.number} ended can't be found out: {error}",
                code="service-busy" if isinstance(error, EngineError) and error.busy else "service-unreachable",
                remedy="end whatever else writes to the database, then try again",
            ) from error

    def _state(self) -> str:
        connection = self.versions.on_branch(self._sandbox_id)
        try:
            return str(connection.value(_STATE))
        except EngineError as error:
            raise RemoteError(f"{self.name}: {error}", code="call-refused", state="nothing was changed") from error
        finally:
            connection.close()

    def _outcome(self, effect: Effect) -> EffectState:
        """A pivot counts as made; anything else is what it did to the branch."""
        unchanged = effect.call_class is not CallClass.PIVOT and effect.details.get("before") == self._state()
        return EffectState.VOID if unchanged else EffectState.APPLIED


def make(table: Table, sandbox_id: str) -> DoltliteKind:
    """The service of one ``[services.NAME]``; connects to nothing."""
    path = Path(table.text("path")).expanduser()
    if not path.is_absolute():
        raise table.wrong("path", "an absolute path")
    library = table.text("library", "")
    versions = DoltVersions(
        table.name,
        Path(library).expanduser() if library else find(),
        path,
        table.text("base", "main"),
        table.number("busy_timeout", 5.0),
    )
    server = table.server(required=False)
    if server is not None:
        server = _on_branch(server, versions, sandbox_id)
    mark = table.identity(str(path))
    timeout = server.timeout if server else table.number("timeout", 60.0)
    tools, max_rows = read_tools(table), int(table.number("max_rows", 10_000))
    table.close()
    return DoltliteKind(versions, sandbox_id, server, tools, timeout=timeout, max_rows=max_rows, mark=mark)


def _on_branch(server: TargetServer, versions: DoltVersions, sandbox_id: str) -> TargetServer:
    """The server, told in its command and environment which branch of what it serves."""
    branch = branch_name(sandbox_id)
    words = {
        "{branch}": branch,
        "{path}": str(versions.database),
        "{database}": f"{versions.database}@{branch}",
        "{library}": str(versions.library),
    }
    return told(server, words)


def _summary(call: RemoteCall, tools: Tools) -> str:
    """A statement as it was sent, on one line; another call by its tool."""
    argument = tools.sql.get(call.tool)
    text = str(call.arguments.get(argument, "")) if argument else f"{call.tool}({dict(call.arguments)})"
    return " ".join(text.split())[:_STATEMENT_SHOWN]
