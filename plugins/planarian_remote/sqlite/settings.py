"""What ``[services.NAME]`` says about a SQLite service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from planarian_core.model import CallClass, Verdict
from planarian_remote.configuration import MAX_RESULT, Table

OWN_PREFIX = "planarian_"
"""Tables of ours in the database; nobody else may use the prefix there."""

READ_TOOLS = frozenset({"read_query", "list_tables", "describe_table"})
"""Tools of mcp-server-sqlite that only read."""

_STYLES = ("json", "toolbox", "mcp-server-sqlite")


@dataclass(frozen=True)
class Settings:
    """``tools`` are those whose argument is SQL, by name; ``others`` are the server's own, passed on or not."""

    name: str
    path: str
    """Absolute."""
    style: str
    tools: Mapping[str, str]
    others: Mapping[str, Verdict]
    foreign_keys: bool = False
    recursive_triggers: bool = False
    skip_conflicts: bool = False
    max_rows: int = 200_000
    max_bytes: int = 256 * 1024 * 1024
    max_result: int = MAX_RESULT
    busy_timeout: float = 5.0
    statement_timeout: float = 60.0


def read_settings(table: Table, *, direct: bool) -> Settings:
    """The settings of one service; ConfigurationError for what can't be meant."""
    style = table.choice("results", _STYLES, "json") if direct else table.choice("results", _STYLES, _STYLES[1])
    argument = table.text("argument", "sql")
    tools = dict.fromkeys(_tool_names(table, style), argument)
    if style == "mcp-server-sqlite":
        tools |= {"read_query": "query", "write_query": "query", "create_table": "query"}
        tools |= {"list_tables": "", "describe_table": "table_name"}
    others: dict[str, Verdict] = {}
    for name, tool in table.tables("tools").items():
        chosen = tool.choice("class", ("sql", "read-only", "pivot", "refused"), "refused")
        if chosen == "sql":
            tools[name] = tool.text("argument", argument)
        else:
            reason = tool.text("reason", "declared so in the configuration")
            others[name] = Verdict(CallClass(chosen), reason, approved=tool.flag("approved"))
        tool.close()
    path = Path(table.text("path")).expanduser()
    if not path.is_absolute():
        raise table.wrong("path", "an absolute path")
    return Settings(
        name=table.name,
        path=str(path),
        style=style,
        tools=tools,
        others=others,
        foreign_keys=table.flag("foreign_keys"),
        recursive_triggers=table.flag("recursive_triggers"),
        skip_conflicts=table.choice("on_conflict", ("stop", "skip"), "stop") == "skip",
        max_rows=int(table.number("max_rows", Settings.max_rows)),
        max_bytes=int(table.number("max_bytes", Settings.max_bytes)),
        max_result=table.max_result(),
        busy_timeout=table.number("busy_timeout", Settings.busy_timeout),
        statement_timeout=table.number("statement_timeout", Settings.statement_timeout),
    )


def _tool_names(table: Table, style: str) -> tuple[str, ...]:
    if style == "mcp-server-sqlite":
        return ()
    return (table.text("tool", "execute_sql"),)
