"""All that a SQLite database holds, canonically: the oracle for undo and redo. Opens the file past everything else.

Never through Python's own ``sqlite3`` in a process that uses ``apsw`` on the same file: they are two copies of SQLite,
and closing one's file drops the other's locks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

_OWN = "planarian\\_%"
_ROWID_NAMES = ("rowid", "_rowid_", "oid")

Contents = dict[str, Any]


def contents(path: str | Path) -> Contents:
    """Definitions in the order in which they are listed, and each table's rows with their rowids, types and bits.

    AssertionError where SQLite finds the file damaged, or a full text or R-Tree index out of step with its rows.
    """
    import apsw

    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.set_busy_timeout(10_000)
        connection.execute("BEGIN IMMEDIATE")
        _assert_sound(connection)
        query = (
            "SELECT rowid, type, name, tbl_name, sql FROM main.sqlite_schema WHERE tbl_name NOT LIKE ? ESCAPE '\\' "
            "ORDER BY rowid"
        )
        found: Contents = {"definitions": connection.execute(query, (_OWN,)).fetchall()}
        for _, kind, name, _, sql in found["definitions"]:
            if kind == "table" and not str(sql).upper().startswith("CREATE VIRTUAL"):
                found[f"table {name}"] = _rows(connection, str(name))
        return found
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        connection.close()


def _rows(connection: Any, table: str) -> list[Any]:
    quoted = '"' + table.replace('"', '""') + '"'
    info = connection.execute(f"PRAGMA main.table_xinfo({quoted})").fetchall()
    names = [str(column[1]) for column in info]
    listed = connection.execute("SELECT wr FROM pragma_table_list WHERE schema = 'main' AND name = ?", (table,)).get
    free = [name for name in _ROWID_NAMES if name not in {n.casefold() for n in names}]
    columns = [*(free[:1] if not listed else []), *('"' + name.replace('"', '""') + '"' for name in names)]
    # text as its bytes: what isn't UTF-8 is compared too
    parts = [f"typeof({c}), CASE typeof({c}) WHEN 'text' THEN CAST({c} AS BLOB) ELSE {c} END" for c in columns]
    query = f"SELECT {', '.join(parts)} FROM main.{quoted}"  # noqa: S608  # quoted
    return sorted(repr(row) for row in connection.execute(query))


def _assert_sound(connection: Any) -> None:
    assert connection.execute("PRAGMA main.integrity_check").fetchall() == [("ok",)]
    virtual = connection.execute("SELECT name, sql FROM main.sqlite_schema WHERE sql LIKE 'CREATE VIRTUAL%'").fetchall()
    for name, sql in virtual:
        module = str(sql).upper().split(" USING ")[1].strip().split("(")[0].strip()
        if module.startswith("FTS"):
            connection.execute(f"INSERT INTO {name}({name}) VALUES ('integrity-check')")  # noqa: S608  # a test's name
        elif module.startswith("RTREE"):
            assert connection.execute("SELECT rtreecheck(?)", (name,)).get == "ok"
