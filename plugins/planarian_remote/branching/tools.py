"""Which tools a branching service has, and what calls of them are before anybody looks at the arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planarian_core.model import CallClass, Verdict
from planarian_remote.configuration import Table

_CLASSES = {
    "read-only": Verdict(CallClass.READ_ONLY, "declared to read only"),
    "branchable": Verdict(CallClass.BRANCHABLE, "the service's own versions undo it"),
    "pivot": Verdict(CallClass.PIVOT, "declared irreversible"),
}
_BY_STATEMENT = Verdict(CallClass.BRANCHABLE, "by statement: reads are read-only, changes are undone by versions")
UNLISTED = Verdict(CallClass.REFUSED, "no [services.…tools.…] says what it does")


@dataclass(frozen=True)
class Tools:
    """``sql``: the argument that holds the statement, by tool. ``declared``: other tools with their class."""

    sql: Mapping[str, str]
    declared: Mapping[str, Verdict]

    def describe(self, tool: str) -> Verdict:
        if tool in self.sql:
            return _BY_STATEMENT
        return self.declared.get(tool, UNLISTED)


def read_tools(table: Table) -> Tools:
    """``tool`` and ``argument`` name the tool that takes a statement; ``[services.NAME.tools.TOOL]`` has an
    ``argument`` for another such tool, or a ``class``.
    """
    sql = {table.text("tool", "execute_sql"): table.text("argument", "sql")}
    declared = {}
    for name, entry in table.tables("tools").items():
        argument = entry.text("argument", "")
        if argument:
            sql[name] = argument
        else:
            declared[name] = _CLASSES[entry.choice("class", list(_CLASSES), "read-only")]
        entry.close()
    return Tools(sql, declared)
