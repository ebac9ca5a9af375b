"""``kind = "sql"``, ``dialect = "postgresql"``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planarian_core.errors import CompensationConflict, CompensationError, RemoteError
from planarian_core.interfaces import CallOutcome, Moved, TargetServer, ToolResult, ToolTarget
from planarian_core.model import CallClass, Effect, EffectState, RemoteCall, Verdict
from planarian_remote.configuration import Table
from planarian_remote.postgresql import database as db
from planarian_remote.postgresql import direct, results
from planarian_remote.postgresql.database import Database, DatabaseError
from planarian_remote.postgresql.endpoint import shown_dsn, shown_server
from planarian_remote.postgresql.plain import Plain, plain_change
from planarian_remote.postgresql.schema_change import NotUndoable, schema_change
from planarian_remote.postgresql.statements import WRITABLE, Statement, What, judge

_UNDONE = Verdict(CallClass.COMPENSABLE, "rows that it changes are kept, and brought back by a rollback")
_SCHEMA = Verdict(CallClass.COMPENSABLE, "its inverse is tried in the same transaction, and kept for a rollback")
_ANALYZES = Verdict(CallClass.REFUSED, "EXPLAIN ANALYZE runs what it explains, and that writes: use EXPLAIN")
_READ = Verdict(CallClass.READ_ONLY, "it only reads")
_WRITES, _LOCKED, _CANCELLED, _SYNTAX = "25006", "55P03", "57014", "42601"
_SHOWN = 160


@dataclass(frozen=True)
class Settings:
    """What ``[services.NAME]`` says; ``max_rows``: how many rows one statement may change."""

    tool: str
    argument: str
    read_tool: str
    dsn: str
    setup_dsn: str
    skip_conflicts: bool
    max_rows: int
    lock_timeout: float
    timeout: float
    max_result: int


class PostgresKind:
    """A database whose rows are changed through one tool that takes one SQL statement.

    See :class:`planarian_core.interfaces.ServiceKind`; how it works is in ``docs/sql.md``.
    """

    keeps_entries = True

    def __init__(
        self, name: str, sandbox_id: str, settings: Settings, server: TargetServer | None, tools: Mapping[str, Verdict]
    ) -> None:
        self.name = name
        self.server = server
        self.endpoint = self.mark = shown_server(server) if server else shown_dsn(settings.dsn)
        self._settings = settings
        self._tools = tools
        self._owner = f"{sandbox_id}/{name}"
        self._lock_timeout = f"{int(settings.lock_timeout * 1000)}ms"
        self._database = Database(settings.tool, settings.argument, self._lock_timeout, settings.setup_dsn)

    def connect(self) -> ToolTarget:
        if self.server is None:
            return direct.DirectTarget(
                self._settings.dsn, timeout=self._settings.timeout, max_result=self._settings.max_result
            )
        from planarian_remote.mcp_target import open_target

        return open_target(self.server)

    # --- what a call is ---

    def describe(self, tool: str, annotations: Mapping[str, Any]) -> Verdict:
        if tool == self._settings.tool:
            return Verdict(CallClass.COMPENSABLE, "statements that read run as they are; rows that others change are "
                           "kept and brought back by a rollback; what can't be undone exactly is refused")  # fmt: skip
        if tool == self._settings.read_tool:
            return Verdict(CallClass.REFUSED, f"{self.name} uses it for what only reads; call {self._settings.tool}")
        return self._tools.get(tool, Verdict(CallClass.REFUSED, f"the configuration of {self.name} doesn't list it"))

    def classify(self, call: RemoteCall) -> Verdict:
        if call.tool != self._settings.tool:
            return self.describe(call.tool, {})
        statement = judge(call.arguments.get(self._settings.argument))
        if statement.what is What.REFUSED:
            return Verdict(CallClass.REFUSED, statement.reason)
        if statement.what is What.READ:
            return _READ
        if statement.what is What.ROWS:
            return _UNDONE
        if self._settings.setup_dsn:
            return Verdict(
                CallClass.REFUSED, "the schema belongs to another role (setup_dsn): only rows can be changed"
            )
        if statement.what is What.TRUNCATE:
            return _UNDONE
        try:
            schema_change(statement)
        except NotUndoable as error:
            return Verdict(CallClass.REFUSED, str(error))
        return _SCHEMA

    # --- calls ---

    def read(self, call: RemoteCall, target: ToolTarget) -> ToolResult | Verdict:
        if call.tool != self._settings.tool:
            return target.call(call.tool, call.arguments)
        judged = judge(call.arguments.get(self._settings.argument))
        otherwise = _ANALYZES if judged.words[0].text == "explain" else _UNDONE
        if self._settings.read_tool and judged.only_computes and judged.read_only:
            asked = {**call.arguments, self._settings.argument: judged.read_only}
            result = target.call(self._settings.read_tool, asked)
            state = db.sqlstate(result)
            writable = bool(state) and WRITABLE in db.text_of(result)
            if not writable and state != _SYNTAX:  # that one is worded for the statement as it is put
                return otherwise if state == _WRITES else result
        statement = judged.text
        try:
            answer, result = self._database.read(target, statement, self._settings.max_result, call.arguments)
        except DatabaseError as error:
            if error.state == db.REFUSED:
                return Verdict(CallClass.REFUSED, error.message)
            return otherwise if error.state == _WRITES else error.result
        if "too_large" in answer:
            raise results.too_large(self._settings.max_result)
        return self._shown(answer, result, target, f"planarian.read_again({db.written(statement)})", call)

    def run(self, call: RemoteCall, effect: Effect, target: ToolTarget) -> CallOutcome:
        if call.tool != self._settings.tool:
            return CallOutcome(target.call(call.tool, call.arguments), EffectState.APPLIED, effect.summary)
        statement = str(call.arguments[self._settings.argument])
        try:
            answer, result = self._apply(statement, effect, call, target)
        except DatabaseError as error:
            if error.state == db.REFUSED:
                raise RemoteError(
                    f"{self.name} refused it: {error.message}", code="call-refused", state="nothing was changed"
                ) from error
            return CallOutcome(error.result, EffectState.VOID, _line(statement))
        if answer["state"] == EffectState.VOID:
            raise RemoteError(
                f"{self.name}: the call was given up before it was made",
                code="call-refused",
                state="nothing was changed",
            )
        rows = f"planarian.result({db.written(self._owner)}, {effect.number})"
        return CallOutcome(
            self._shown(answer, result, target, rows, call), EffectState(answer["state"]), _line(statement)
        )

    def _apply(
        self, statement: str, effect: Effect, call: RemoteCall, target: ToolTarget
    ) -> tuple[dict[str, Any], ToolResult]:
        """Make the call; again where tables need their trigger first, or where it must be looked at more closely."""
        judged = judge(statement)
        plain = plain_change(judged)
        for _ in range(4):
            function, *arguments = self._function(judged, plain)
            try:
                answer, result = self._database.ask(
                    target, function, self._owner, effect.number, statement, *arguments, self._lock_timeout,
                    more=call.arguments,
                )  # fmt: skip
            except DatabaseError as error:
                if error.state == db.CLOSER and plain.target is not None:
                    plain = replace(plain, target=None)
                    continue
                if error.state == db.AGAIN:
                    return self._database.ask(target, "settle", self._owner, effect.number, self._lock_timeout)
                if error.state != db.WATCH:
                    raise
                answer = {"watch": json.loads(error.message)}
            if "watch" not in answer:
                return answer, result
            self._database.watch(target, answer["watch"])
        raise RemoteError(
            "the tables that it writes to change from call to call, and can't be watched", code="call-refused"
        )

    def _function(self, statement: Statement, plain: Plain) -> tuple[str, *tuple[object, ...]]:
        """The function that makes a call, and what it takes besides the call."""
        if statement.what is What.TRUNCATE:
            return "apply_truncate", self._settings.max_rows
        if statement.what is What.SCHEMA:
            change = schema_change(statement)
            return "apply_schema", change.form, change.kind, change.name, change.column, change.undo
        known = (plain.target, plain.returns, plain.kind, list(plain.functions), plain.columns)
        return "apply", *known, self._settings.max_rows

    def _shown(
        self, answer: Mapping[str, Any], result: ToolResult, target: ToolTarget, rows: str, call: RemoteCall
    ) -> ToolResult:
        """The result as the tool gives it for the bare statement. Where only the server itself knows how values look,
        it is asked for the rows once more; ``rows`` is their SQL, as JSON.
        """
        if not answer.get("rows"):
            return {**result, "content": []}
        found = results.rows_of(answer["rows"])
        types = [int(type_) for type_ in (answer.get("row_type") or "").split(",") if type_]
        try:
            return {**result, "content": results.content(results.item(row, types) for row in found)}
        except (results.NotSimple, ValueError):
            pass
        names = [name for name, _ in found[0]]
        try:
            columns, result = self._database.ask(target, "columns", [*types], more=call.arguments)
            if len(columns["types"] or ()) == len(names):
                return self._database.run(target, results.rows_again(rows, names, columns["types"]), call.arguments)
        except DatabaseError:
            pass  # types without a name or without a way back: records of no declared type
        unknown = [0] * len(names)
        return {**result, "content": results.content(results.item(row, unknown, results.as_json) for row in found)}

    # --- settling, undoing, doing again ---

    def recognizes(self, effect: Effect, target: ToolTarget | None) -> bool:
        """By the entry that was committed with the effect: the database is asked for a way that there isn't, from the
        state that the effect has to the same, which only fails where it knows no such effect.
        """
        if effect.state is EffectState.SENT or target is None:
            return effect.server in ("", self.mark)
        undo, redo = ([], [effect.number]) if effect.state is EffectState.APPLIED else ([effect.number], [])
        try:
            return self._database.knows(target, self._owner, undo, redo)
        except DatabaseError as error:
            raise self._failed("whether it is the database of the effects can't be found out", error) from error

    def settle(self, effect: Effect, target: ToolTarget) -> CallOutcome:
        try:
            answer, result = self._database.ask(target, "settle", self._owner, effect.number, self._lock_timeout)
        except DatabaseError as error:
            raise self._failed(f"what became of effect {effect.number} can't be found out", error) from error
        return CallOutcome(result, EffectState(answer["state"]), effect.summary)

    def rehearse(self, undo: Sequence[Effect], redo: Sequence[Effect], target: ToolTarget) -> None:
        self._move(undo, redo, target, rehearse=True)

    def move(self, undo: Sequence[Effect], redo: Sequence[Effect], target: ToolTarget, moved: Moved) -> None:
        skipped = self._move(undo, redo, target, rehearse=False)
        for effect in undo:
            if skipped and effect is undo[0]:
                effect = replace(effect, details={**effect.details, "left to another writer": skipped})
            moved(effect, EffectState.UNDONE)
        for effect in redo:
            moved(effect, EffectState.APPLIED)

    def _move(self, undo: Sequence[Effect], redo: Sequence[Effect], target: ToolTarget, *, rehearse: bool) -> Any:
        """Go there, or only try; returns the rows that were left to another writer."""
        try:
            answer, _ = self._database.ask(
                target, "move", self._owner, [e.number for e in undo], [e.number for e in redo],
                self._settings.skip_conflicts, rehearse, self._lock_timeout,
            )  # fmt: skip
        except DatabaseError as error:
            if error.state == db.CONFLICT:
                raise _conflict(self.name, error.message) from error
            raise self._failed("rows can't be brought back", error) from error
        return answer["skipped"]

    def forget(self, effects: Sequence[Effect], target: ToolTarget) -> None:
        try:
            numbers = [e.number for e in effects]
            self._database.ask(target, "forget", self._owner, numbers, self._lock_timeout)
        except DatabaseError as error:
            raise self._failed("undo data can't be dropped", error) from error

    def _failed(self, what: str, error: DatabaseError) -> CompensationError:
        remedy = "see the database's own log"
        if error.state == _LOCKED:
            remedy = "another session holds a lock: see pg_stat_activity, let it end, then try again"
        if error.state == _CANCELLED:
            remedy = (
                "it takes longer than statement_timeout allows, or waits for a lock (see pg_stat_activity): raise it"
            )
        return CompensationError(
            f"{self.name}: {what}: {error.message}", state="nothing was changed there", remedy=remedy
        )


def _conflict(service: str, message: str) -> CompensationConflict:
    rows = json.loads(message)
    listed = "; ".join(
        f"{row['table']}: {row['left']} was left, "
        + ("there is no such row now" if row["found"] is None else f"now there is {row['found']}")
        for row in rows
    )
    return CompensationConflict(
        f"{service}: another writer changed rows since: {listed}",
        state="nothing was changed there",
        remedy='bring the rows back to what was left, or set on_conflict = "skip" to leave them to the other writer',
    )


def _line(statement: str) -> str:
    """A statement on one line, for people."""
    return " ".join(statement[: 4 * _SHOWN].split())[:_SHOWN]


def make(table: Table, sandbox_id: str) -> PostgresKind:
    """From ``[services.NAME]``."""
    server = table.server(required=False)
    dsn = table.text("dsn", "")
    if (server is None) == (not dsn):
        raise table.wrong("dsn", "given, unless command or url names a server (and then not)")
    own = server is None
    settings = Settings(
        tool=direct.TOOL if own else table.text("tool"),
        argument=direct.ARGUMENT if own else table.text("argument", "sql"),
        read_tool=direct.READ_TOOL if own else table.text("read_tool", ""),
        dsn=dsn,
        setup_dsn=table.text("setup_dsn", ""),
        skip_conflicts=table.choice("on_conflict", ("stop", "skip"), "stop") == "skip",
        max_rows=int(table.number("max_rows", 200_000)),
        lock_timeout=table.number("lock_timeout", 10.0),
        timeout=table.number("timeout", 60.0),
        max_result=table.max_result(),
    )
    tools = {}
    for name, entry in table.tables("tools").items():
        class_ = entry.choice("class", ("read-only", "refused"), "read-only")
        tools[name] = Verdict(CallClass(class_), entry.text("reason", f"declared {class_}"))
        entry.close()
    table.close()
    return PostgresKind(table.name, sandbox_id, settings, server, tools)
