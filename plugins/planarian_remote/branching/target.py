"""The tool ``execute_sql`` on one branch, where no server stands between."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from planarian_core.errors import RemoteError
from planarian_core.interfaces import ToolResult
from planarian_core.model import CallClass
from planarian_remote.branching.engine import Connection, EngineError, Statement, Value
from planarian_remote.branching.judgement import Judge

_MAX_TEXT = 8 * 1024 * 1024
"""Bytes of one result."""


class BranchTarget:
    """Runs one SQL statement per call, each a transaction of its own; refuses what a judge refuses."""

    def __init__(
        self, connection: Connection, tool: str, argument: str, *, timeout: float = 60.0, max_rows: int = 10_000
    ) -> None:
        self._connection = connection
        self._judge = Judge(connection)
        self._tool = tool
        self._argument = argument
        self._timeout = timeout
        self._max_rows = max_rows

    def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        sql = arguments.get(self._argument)
        if tool != self._tool or not isinstance(sql, str):
            raise RemoteError(
                f"no tool {tool} that takes {sorted(arguments)}", code="service-error", state="nothing was changed"
            )
        try:
            return self._run(sql)
        except EngineError as error:
            if error.interrupted:
                return _text(f"the statement took more than {self._timeout:g} s; nothing was changed", error=True)
            return _text(str(error), error=True)

    def _run(self, sql: str) -> ToolResult:
        statement, verdict = self._judge.prepare(sql)
        if statement is None:
            raise RemoteError(
                f"the statement was refused: {verdict.reason}", code="call-refused", state="nothing was changed"
            )
        reads = verdict.call_class is CallClass.READ_ONLY
        try:
            with self._connection.deadline(self._timeout):
                items, whole = self._shown(statement, reads)
        finally:
            statement.close()
        if not whole and reads:
            return _text(f"more than {self._max_rows} rows or {_MAX_TEXT} bytes: add LIMIT", error=True)
        if not whole:
            items.append(f"the change was made; of its result only {len(items)} rows are shown")
        elif not reads and not items:
            items.append(json.dumps({"changes": self._connection.changes}))
        return {"content": [{"type": "text", "text": item} for item in items], "isError": False}

    def _shown(self, statement: Statement, reads: bool) -> tuple[list[str], bool]:
        """The rows, and whether they are all of them. A change is run to its end, however much it returns."""
        items: list[str] = []
        size, whole = 0, True
        for row in statement.run():
            if not whole:
                continue
            shown = _shown(statement.columns, row)
            size += len(shown)
            whole = len(items) < self._max_rows and size <= _MAX_TEXT
            if whole:
                items.append(shown)
            elif reads:
                break
        return items, whole

    def tools(self) -> Sequence[Mapping[str, Any]]:
        schema = {
            "type": "object",
            "properties": {self._argument: {"type": "string", "description": "One SQL statement (SQLite's dialect)."}},
            "required": [self._argument],
        }
        return [
            {
                "name": self._tool,
                "description": "Run one SQL statement on a doltlite database (SQLite's dialect, versioned tables).",
                "inputSchema": schema,
            }
        ]

    def close(self) -> None:
        self._connection.close()


def _text(text: str, *, error: bool = False) -> ToolResult:
    return {"content": [{"type": "text", "text": text}], "isError": error}


def _shown(columns: Sequence[str], row: Sequence[Value]) -> str:
    """A row as a JSON object, its columns in order; of two with one name the later has its index added."""
    shown: dict[str, Any] = {}
    for index, (name, value) in enumerate(zip(columns, row, strict=True)):
        shown[f"{name}:{index}" if name in shown else name] = _value(value)
    return json.dumps(shown, ensure_ascii=False)


def _value(value: Value) -> Any:
    """As JSON has it; a blob as SQL writes it, infinity as a text."""
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str):
        return value.encode(errors="surrogateescape").decode(errors="replace")
    return value
