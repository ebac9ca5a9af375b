"""A process that looks at doltlite databases from outside: the package ``doltlite`` under Python's own ``sqlite3``.

Reads JSON lines ``[path, branch]`` or ``[path, branch, statement]``; answers each with one JSON line: the statement's
rows, or the whole branch (schema, all rows as texts, user_version).
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

# isort: split
# Before sqlite3: its engine takes the place of SQLite.
import doltlite  # type: ignore[import-not-found,import-untyped,unused-ignore]  # it may be there, without types

# isort: split
import sqlite3


def look(path: str, branch: str, statement: str = "") -> Any:
    connection = sqlite3.connect(path, isolation_level=None, timeout=10)
    connection.text_factory = lambda data: data.decode(errors="surrogateescape")
    try:
        if branch:
            connection.execute("SELECT dolt_checkout(?)", (branch,))
        if statement:
            return connection.execute(statement).fetchall()
        schema = connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY type, name").fetchall()
        tables = [name for kind, name, sql in schema if kind == "table" and "VIRTUAL" not in (sql or "")]
        rows = {name: _rows(connection, name) for name in tables}
        return [schema, rows, connection.execute("PRAGMA user_version").fetchone()]
    finally:
        connection.close()


def _rows(connection: sqlite3.Connection, table: str) -> list[str]:
    quoted = table.replace('"', '""')
    return sorted(repr(row) for row in connection.execute(f'SELECT * FROM "{quoted}"'))  # noqa: S608


def main() -> None:
    assert doltlite.libdoltlite_path()
    # For what is started from here the environment is as it was.
    os.environ.pop("_DOLTLITE_BOOTSTRAPPED", None)
    for line in sys.stdin:
        try:
            answer: Any = {"answer": look(*json.loads(line))}
        except sqlite3.Error as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
