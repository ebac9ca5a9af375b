"""What a statement is, by the engine's own judgement: it is prepared, never run, under an authorizer.

The authorizer hears of every function, table, pragma and transaction that a statement touches, through triggers and
views too. What it can't hear of (VACUUM) shows as a statement that writes without saying what, and is refused.
"""

from __future__ import annotations

import re

from planarian_core.model import CallClass, Verdict
from planarian_remote.branching.engine import Connection, EngineError, Statement

# SQLite's action codes (https://sqlite.org/c3ref/c_alter_table.html)
_DELETE, _INSERT, _UPDATE, _PRAGMA, _READ, _SELECT = 9, 18, 23, 19, 20, 21
_TRANSACTION, _ATTACH, _DETACH, _CREATE_VTABLE, _FUNCTION, _SAVEPOINT, _RECURSIVE = 22, 24, 25, 29, 31, 32, 33
_TEMPORARY = {3, 4, 5, 6, 12, 13, 14, 15}
_HARMLESS = {_READ, _SELECT, _RECURSIVE}

_READING_FUNCTIONS = {
    "dolt_hashof", "dolt_hashof_catalog", "dolt_hashof_db", "dolt_hashof_index", "dolt_hashof_table",
    "dolt_merge_base", "dolt_version", "doltlite_engine",
}  # fmt: skip
_REFUSED_FUNCTIONS = {"load_extension", "fts3_tokenizer", "edit", "readfile", "writefile"}
_MODULES = {"fts3", "fts4", "fts5", "rtree", "rtree_i32"}
"""Virtual tables whose content lies in tables of the same database, and so in its versions."""

_READING_PRAGMAS = {
    "collation_list", "compile_options", "data_version", "database_list", "foreign_key_check", "foreign_key_list",
    "function_list", "index_info", "index_list", "index_xinfo", "integrity_check", "module_list", "pragma_list",
    "quick_check", "table_info", "table_list", "table_xinfo",
}  # fmt: skip
_STATED_PRAGMAS = {
    "application_id", "encoding", "foreign_keys", "journal_mode", "page_count", "page_size", "schema_version",
    "user_version",
}  # fmt: skip
"""These tell a value, or take one."""
_KEPT_PRAGMAS = {"application_id", "user_version"}
"""Values that are part of a version."""

_LITERAL = r"'(?:[^']|'')*'"
_COMMAND = re.compile(
    rf"\s*SELECT\s+(dolt_add|dolt_commit)\s*\(\s*({_LITERAL}(?:\s*,\s*{_LITERAL})*)\s*\)\s*;?\s*", re.IGNORECASE
)


class Judge:
    """Judges the statements of one connection, and is its authorizer from now on: what is refused can't run there."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._refusal = ""
        self._heard = False
        self._writes = False
        self._commands: set[str] = set()
        connection.authorize(self._hear)

    def verdict(self, sql: str) -> Verdict:
        """The class of a statement; ``READ_ONLY`` with the engine's error as reason where it isn't valid at all."""
        try:
            statement, verdict = self.prepare(sql)
        except EngineError as error:
            return Verdict(CallClass.READ_ONLY, f"not valid: {error}")
        if statement is not None:
            statement.close()
        return verdict

    def prepare(self, sql: str) -> tuple[Statement | None, Verdict]:
        """The statement ready to run, and its class; None where it is refused.

        Raises:
            EngineError: it isn't valid.
        """
        if "\0" in sql:
            return None, _refused("it contains a NUL")
        self._refusal, self._heard, self._writes = "", False, False
        self._commands = _own_command(sql)
        try:
            statement = self._connection.prepare(sql)
        except EngineError as error:
            if not self._refusal:
                raise error
            return None, _refused(self._refusal)
        refusal = self._objection(statement)
        if refusal:
            statement.close()
            return None, _refused(refusal)
        if self._writes:
            return statement, Verdict(CallClass.BRANCHABLE, "the service's own versions undo it")
        return statement, Verdict(CallClass.READ_ONLY, "the engine sees nothing in it that writes")

    def _objection(self, statement: Statement) -> str:
        """Why a statement that the authorizer let pass may not run after all."""
        if statement.empty:
            return "there is no statement in it"
        if statement.parameters:
            return "it has parameters, for which a call has no values"
        if statement.explains:
            self._writes = False
        elif not self._heard or (not statement.reads and not self._writes):
            return "what it does can't be seen (VACUUM, REINDEX)"
        heard = self._writes
        try:
            rest = self._connection.prepare(statement.tail) if statement.tail.strip() else None
        except EngineError:
            return "there is more than one statement in it"
        self._writes = heard
        if rest is not None:
            more = not rest.empty
            rest.close()
            if more:
                return "there is more than one statement in it"
        return ""

    def _hear(self, action: int, first: str, second: str, schema: str) -> bool:
        self._heard = True
        self._refusal = self._refusal or self._objection_to(action, first.lower(), second.lower(), schema)
        return not self._refusal

    def _objection_to(self, action: int, first: str, second: str, schema: str) -> str:
        """Why an action may not be; notes whether it writes."""
        if action in _HARMLESS:
            return ""
        if action == _FUNCTION:
            return self._function(second)
        if action == _PRAGMA:
            return self._pragma(first, second)
        if action in (_TRANSACTION, _SAVEPOINT):
            return "a transaction can't span calls"
        if action in (_ATTACH, _DETACH):
            return "other databases are not part of the versions"
        if first == "sqlite_temp_master" and action not in _TEMPORARY:
            return ""  # renaming a table looks into it too
        if action in _TEMPORARY or schema == "temp":
            return "temporary tables are not part of the versions"
        if action == _CREATE_VTABLE and second not in _MODULES:
            return f"virtual tables of the module {second} are not part of the versions"
        if action in (_INSERT, _UPDATE, _DELETE) and first.startswith(("dolt_", "sqlite_dbpage")):
            return f"{first} belongs to the versions themselves"
        self._writes = True
        return ""

    def _function(self, name: str) -> str:
        if name in self._commands:
            self._writes = True
            return ""
        if name in _REFUSED_FUNCTIONS:
            return f"{name}() reaches outside the database"
        if name.startswith("dolt") and name not in _READING_FUNCTIONS:
            return f"{name}() changes branches or versions, which belong to Planarian here"
        return ""

    def _pragma(self, name: str, value: str) -> str:
        if name in _READING_PRAGMAS or (name in _STATED_PRAGMAS and not value):
            return ""
        if name in _KEPT_PRAGMAS:
            self._writes = True
            return ""
        return f"PRAGMA {name} changes settings, which are not part of the versions"


def _refused(reason: str) -> Verdict:
    return Verdict(CallClass.REFUSED, reason)


def _own_command(sql: str) -> set[str]:
    """``dolt_add`` or ``dolt_commit`` where the whole statement is a call of it with plain texts: they only make
    versions on the sandbox's own branch. An amended commit would put another in the place of a statepoint's.
    """
    found = _COMMAND.fullmatch(sql)
    if found is None or re.search(r"'--am", found[2], re.IGNORECASE):
        return set()
    return {found[1].lower()}
