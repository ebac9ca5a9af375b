"""What a statement is: SQLite's own parser says so, through its authorizer and ``sqlite3_stmt_readonly``."""

from __future__ import annotations

import re
import time

import apsw

from planarian_remote.sqlite.settings import OWN_PREFIX
from planarian_remote.sqlite.trouble import Refused

_BLANK = re.compile(r"(?:[\s;]+|--[^\n]*(?:\n|$)|/\*.*?(?:\*/|$))*", re.DOTALL)
_WORD = re.compile(r"[A-Za-z]+")

READING = frozenset({"SELECT", "VALUES", "WITH", "EXPLAIN", "PRAGMA"})
"""First words of what may be a read; whether it is one, SQLite says."""

NEVER = {
    "ATTACH": "it would reach other databases",
    "DETACH": "it would change the connection",
    "VACUUM": "it rewrites the file outside any transaction",
    "BEGIN": "each statement is a transaction of its own here",
    "COMMIT": "each statement is a transaction of its own here",
    "END": "each statement is a transaction of its own here",
    "ROLLBACK": "each statement is a transaction of its own here",
    "SAVEPOINT": "each statement is a transaction of its own here",
    "RELEASE": "each statement is a transaction of its own here",
    "ANALYZE": "the statistics that it writes can't be undone exactly",
    "REINDEX": "it rewrites indexes, which can't be undone exactly",
}

_MODULES = frozenset({"fts3", "fts4", "fts5", "rtree", "rtree_i32", "geopoly"})
_FUNCTIONS = frozenset({"load_extension", "fts3_tokenizer", "edit", "readfile", "writefile", "zipfile"})
_PRAGMAS = frozenset(
    {
        "application_id", "auto_vacuum", "collation_list", "compile_options", "count_changes",
        "data_version", "database_list", "encoding", "foreign_key_check", "foreign_key_list",
        "foreign_keys", "freelist_count", "function_list", "index_info", "index_list", "index_xinfo",
        "integrity_check", "journal_mode", "module_list", "page_count", "page_size", "pragma_list",
        "quick_check", "recursive_triggers", "schema_version", "table_info", "table_list", "table_xinfo",
        "user_version",
    }
)  # fmt: skip
_WITH_ARGUMENT = frozenset(
    {
        "foreign_key_check", "foreign_key_list", "index_info", "index_list", "index_xinfo",
        "integrity_check", "quick_check", "table_info", "table_list", "table_xinfo",
    }
)  # fmt: skip
_OTHER_DATABASES = {
    apsw.SQLITE_ATTACH: "ATTACH: it would reach other databases",
    apsw.SQLITE_DETACH: "DETACH: it would change the connection",
    apsw.SQLITE_TRANSACTION: "each statement is a transaction of its own here",
    apsw.SQLITE_SAVEPOINT: "each statement is a transaction of its own here",
    apsw.SQLITE_ANALYZE: "ANALYZE: the statistics that it writes can't be undone exactly",
}
_TEMPORARY = frozenset(
    getattr(apsw, f"SQLITE_{verb}_TEMP_{kind}")
    for verb in ("CREATE", "DROP")
    for kind in ("INDEX", "TABLE", "TRIGGER", "VIEW")
)
_DEFINING = frozenset(
    getattr(apsw, f"SQLITE_{verb}")
    for verb in (
        "CREATE_INDEX", "CREATE_TABLE", "CREATE_TRIGGER", "CREATE_VIEW", "CREATE_VTABLE", "ALTER_TABLE",
        "DROP_INDEX", "DROP_TABLE", "DROP_TRIGGER", "DROP_VIEW", "DROP_VTABLE",
    )
)  # fmt: skip
_NAMES_NO_OBJECT = frozenset({apsw.SQLITE_FUNCTION, apsw.SQLITE_PRAGMA, apsw.SQLITE_SELECT, apsw.SQLITE_RECURSIVE})


class Writes(Exception):
    """A statement that was taken for a read is none; it was not run."""


def first_word(sql: str) -> str:
    """The statement's first keyword, in capitals; empty where there is no statement."""
    word = _WORD.match(sql, _end_of_blank(sql, 0))
    return word[0].upper() if word else ""


def is_blank(sql: str, start: int = 0) -> bool:
    """Whether only white space, comments and semicolons are left."""
    return _end_of_blank(sql, start) == len(sql)


def _end_of_blank(sql: str, start: int) -> int:
    found = _BLANK.match(sql, start)
    return found.end() if found else start


class Judge:
    """Watches one connection. Between :meth:`begin` and :meth:`end` statements are the agent's."""

    def __init__(self, connection: apsw.Connection, statement_timeout: float) -> None:
        self._active = False
        self._statement_timeout = statement_timeout
        self._deadline = 0.0
        self._reason = ""
        self._sql = ""
        self._seen = 0
        self.defines = False
        self.reads_schema = False
        self.timed_out = False
        connection.authorizer = self._authorize
        connection.set_progress_handler(self._progress, 10_000)

    # --- a statement ---

    def begin(self, sql: str) -> None:
        self._active, self._reason, self._sql, self._seen = True, "", sql, 0
        self.defines = self.reads_schema = self.timed_out = False
        self._deadline = time.monotonic() + self._statement_timeout

    def end(self) -> None:
        self._active = False

    def refusal(self) -> Refused | None:
        """Why the authorizer said no."""
        return Refused(self._reason) if self._reason else None

    def only_one(self, cursor: apsw.Cursor, sql: str, bindings: object) -> bool:
        """The cursor's tracer for a statement that may write: called before it runs."""
        self._seen += 1
        if self._seen > 1 or not is_blank(self._sql, len(sql)):
            raise Refused("it holds more than one statement")
        return True

    def only_reads(self, cursor: apsw.Cursor, sql: str, bindings: object) -> bool:
        """The cursor's tracer for a read."""
        self.only_one(cursor, sql, bindings)
        if not (cursor.is_readonly or cursor.is_explain):
            raise Writes
        return True

    # --- called by SQLite ---

    def _progress(self) -> bool:
        if self._active and time.monotonic() > self._deadline:
            self.timed_out = True
        return self._active and self.timed_out

    def _authorize(self, action: int, one: str | None, two: str | None, database: str | None, by: str | None) -> int:
        if not self._active:
            return apsw.SQLITE_OK
        reason = self._objection(action, one, two, by)
        if not reason:
            return apsw.SQLITE_OK
        self._reason = self._reason or reason
        return apsw.SQLITE_DENY

    def _objection(self, action: int, one: str | None, two: str | None, by: str | None) -> str:
        if action in _OTHER_DATABASES:
            return _OTHER_DATABASES[action]
        if action in _TEMPORARY:
            return "temporary objects are no part of the database"
        if action == apsw.SQLITE_PRAGMA:
            self.reads_schema = True
            allowed = one in _PRAGMAS and not is_own(two) and (two is None or one in _WITH_ARGUMENT)
            return "" if allowed else f"PRAGMA {one}{'' if two is None else f' = {two}'} is not allowed"
        if action == apsw.SQLITE_FUNCTION:
            return f"the function {two} is not allowed" if (two or "").casefold() in _FUNCTIONS else ""
        if action in (apsw.SQLITE_CREATE_VTABLE, apsw.SQLITE_DROP_VTABLE) and (two or "").casefold() not in _MODULES:
            return f"virtual tables of the module {two} keep data that can't be undone exactly"
        self.defines = self.defines or action in _DEFINING
        if action == apsw.SQLITE_READ and one in ("sqlite_master", "sqlite_schema"):
            self.reads_schema = True
        if action not in _NAMES_NO_OBJECT:
            names = (one, by) if action in (apsw.SQLITE_READ, apsw.SQLITE_UPDATE) else (one, two, by)
            if any(is_own(name) for name in names):
                return f"names that begin with {OWN_PREFIX} are Planarian's own"
        return ""


def is_own(name: str | None) -> bool:
    return name is not None and name.casefold().startswith(OWN_PREFIX)
