"""Results as the server would have written them, which would have run the statement where we ran it.

A style is what one server does: which statements its tools take, how it writes rows, how it words errors. The tests
send the same statements to the real server, and compare.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from typing import Any, Protocol

from planarian_core.interfaces import ToolResult
from planarian_remote.sqlite.judge import is_blank
from planarian_remote.sqlite.statements import Answer, StatementError
from planarian_remote.sqlite.toolbox import ToolboxStyle
from planarian_remote.sqlite.trouble import Refused
from planarian_remote.sqlite.values import Value


def text_result(*texts: str, error: bool = False) -> ToolResult:
    return {"content": [{"type": "text", "text": text} for text in texts], "isError": error}


class Style(Protocol):
    """What one server does with SQL."""

    def statement(self, tool: str, argument: str) -> str | ToolResult:
        """The statement that a call means; or the answer, where the server doesn't get that far."""

    def check_write(self, argument: str) -> None:
        """Refused for a statement that writes and that the server would run in a way that isn't meant."""

    def answer(self, tool: str, answer: Answer) -> ToolResult: ...

    def failure(self, error: StatementError) -> ToolResult: ...


class JsonStyle:
    """Our own: columns and rows apart, so that columns of equal names stay apart; what JSON hasn't, as text."""

    def statement(self, tool: str, argument: str) -> str | ToolResult:
        return text_result("it holds no statement", error=True) if is_blank(argument) else argument

    def check_write(self, argument: str) -> None:
        """Whatever is run is committed."""

    def answer(self, tool: str, answer: Answer) -> ToolResult:
        data: dict[str, Any] = {}
        if answer.columns:
            data["columns"] = [name for name, _ in answer.columns]
            data["rows"] = [[_plain(value) for value in row] for row in answer.rows]
        if answer.changes >= 0 and (answer.changes or not answer.columns):
            data["changes"] = answer.changes
        return {**text_result(json.dumps(data, ensure_ascii=False)), "structuredContent": data}

    def failure(self, error: StatementError) -> ToolResult:
        return text_result(error.message, error=True)


def _plain(value: Value) -> Any:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


class ReferenceStyle:
    """``mcp-server-sqlite`` (PyPI), the reference server: Python's sqlite3, rows as the repr of dictionaries."""

    _COMMITTED = ("INSERT", "UPDATE", "DELETE", "CREATE", "DROP", "ALTER")

    def statement(self, tool: str, argument: str) -> str | ToolResult:
        first = argument.strip().upper()
        if tool == "list_tables":
            return "SELECT name FROM sqlite_master WHERE type='table'"
        if tool == "describe_table":
            return f"PRAGMA table_info({argument})"
        if tool == "read_query" and not first.startswith("SELECT"):
            return text_result("Error: Only SELECT queries are allowed for read_query")
        if tool == "write_query" and first.startswith("SELECT"):
            return text_result("Error: SELECT queries are not allowed for write_query")
        if tool == "create_table" and not first.startswith("CREATE TABLE"):
            return text_result("Error: Only CREATE TABLE statements are allowed")
        return text_result("[]") if is_blank(argument) else argument

    def check_write(self, argument: str) -> None:
        """That server runs everything, and commits some."""
        if not argument.strip().upper().startswith(self._COMMITTED):
            raise Refused(f"mcp-server-sqlite commits only what begins with {', '.join(self._COMMITTED)}")

    def answer(self, tool: str, answer: Answer) -> ToolResult:
        if tool == "create_table":
            return text_result("Table created successfully")
        if answer.columns:
            names = [name for name, _ in answer.columns]
            return text_result(str([self._as_dictionary(names, row) for row in answer.rows]))
        return text_result(str([{"affected_rows": answer.changes}]))

    def _as_dictionary(self, names: list[str], row: tuple[Value, ...]) -> dict[str, Value]:
        """As sqlite3.Row gives it: of columns with one name, the first."""
        return {name: row[names.index(name)] for name in names}

    def failure(self, error: StatementError) -> ToolResult:
        return text_result(f"Database error: {error.message}")


def style_of(name: str) -> Style:
    styles: Mapping[str, Style] = {
        "json": JsonStyle(),
        "toolbox": ToolboxStyle(),
        "mcp-server-sqlite": ReferenceStyle(),
    }
    return styles[name]
