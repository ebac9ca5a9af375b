"""Tables as images need them: which columns are stored, and what names a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import apsw

from planarian_remote.sqlite.trouble import Refused
from planarian_remote.sqlite.values import Row, Value

_ROWID_NAMES = ("rowid", "_rowid_", "oid")
_FEW = 16


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True)
class Shape:
    """One table. An image of a row holds ``columns``: the stored ones, and first the rowid where it isn't one of them.

    Generated columns are left out: they follow from the others. ``key`` are the positions that name the row: the rowid
    (never reused while the row is there, also where a TEXT primary key is NULL), or a WITHOUT ROWID table's key.
    """

    name: str
    columns: tuple[str, ...]
    key: tuple[int, ...]
    sql: str
    by_rowid: bool = True

    @cached_property
    def _names(self) -> str:
        return ", ".join(quoted(column) for column in self.columns)

    @cached_property
    def _where(self) -> str:
        return " AND ".join(f"{quoted(self.columns[position])} = ?" for position in self.key)

    @cached_property
    def select(self) -> str:
        return f"SELECT {self._names} FROM main.{quoted(self.name)} WHERE {self._where}"  # noqa: S608  # quoted

    @cached_property
    def select_all(self) -> str:
        order = ", ".join(quoted(self.columns[position]) for position in self.key)
        return f"SELECT {self._names} FROM main.{quoted(self.name)} ORDER BY {order}"  # noqa: S608  # quoted

    @cached_property
    def delete(self) -> str:
        return f"DELETE FROM main.{quoted(self.name)} WHERE {self._where}"  # noqa: S608  # quoted

    @cached_property
    def insert(self) -> str:
        values = ", ".join("?" * len(self.columns))
        return f"INSERT INTO main.{quoted(self.name)} ({self._names}) VALUES ({values})"  # noqa: S608  # quoted

    def key_of(self, row: Row) -> Row:
        return (row[self.key[0]],) if self.by_rowid else tuple(row[position] for position in self.key)

    def fetch(self, connection: apsw.Connection, key: Row) -> Row | None:
        """The row of a key as it is now; None where there is none."""
        found: Row | None = connection.execute(self.select, key).fetchone()
        return found

    def fetch_all(self, connection: apsw.Connection, keys: Sequence[Row]) -> list[Row | None]:
        """The rows of keys as they are now, in the order of the keys."""
        if len(keys) < _FEW or not self.by_rowid:  # else equal keys may be written differently
            return [self.fetch(connection, key) for key in keys]
        rowid = self.key[0]
        found: dict[Value, Row] = {row[rowid]: row for row in connection.executemany(self.select, keys)}
        return [found.get(key[0]) for key in keys]


class Schema:
    """What one connection sees; good until the schema's version changes."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._shapes: dict[str, Shape] = {}
        self.version = schema_version(connection)
        self.without_rowid: dict[str, tuple[int, ...]] = {}
        self.kinds: dict[str, str] = {}
        for _, name, kind, _, without_rowid, _ in connection.execute("PRAGMA main.table_list"):
            self.kinds[name] = kind
            if without_rowid:
                self.without_rowid[name] = self._primary_key(name)
        found = connection.execute("SELECT EXISTS (SELECT 1 FROM main.sqlite_schema WHERE type = 'trigger')")
        self.has_triggers = bool(found.get)

    def has(self, table: str) -> bool:
        return table in self.kinds

    def shape(self, table: str) -> Shape:
        """How rows of a table are kept.

        Raises:
            Refused: nothing names its rows.
        """
        if table not in self._shapes:
            self._shapes[table] = self._read(table)
        return self._shapes[table]

    def _columns(self, table: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(f"PRAGMA main.table_xinfo({quoted(table)})").fetchall()

    def _primary_key(self, table: str) -> tuple[int, ...]:
        """Positions among all columns, in the order of the key."""
        ranked = sorted((column[5], column[0]) for column in self._columns(table) if column[5])
        return tuple(position for _, position in ranked)

    def _read(self, table: str) -> Shape:
        all_columns = self._columns(table)
        stored = tuple(column[1] for column in all_columns if column[6] == 0)
        found = self._connection.execute(
            "SELECT sql FROM main.sqlite_schema WHERE type = 'table' AND name = ?", (table,)
        ).fetchone()
        sql = str(found[0]) if found else ""
        keys = [column for column in sorted(all_columns, key=lambda column: column[5]) if column[5]]
        if table in self.without_rowid:
            return Shape(table, stored, tuple(stored.index(column[1]) for column in keys), sql, False)
        if len(keys) == 1 and self._names_rowid(table, keys[0][2]):
            return Shape(table, stored, (stored.index(keys[0][1]),), sql)
        taken = {column[1].casefold() for column in all_columns}
        free = [name for name in _ROWID_NAMES if name not in taken]
        if not free:
            raise Refused(f"the columns of {table} hide its rowid under all its names")
        return Shape(table, (free[0], *stored), (0,), sql)

    def _names_rowid(self, table: str, declared: str) -> bool:
        """Whether a lone primary key is the rowid: it is declared INTEGER, and there is no index for it."""
        if declared.casefold() != "integer":
            return False
        indexes = self._connection.execute(f"PRAGMA main.index_list({quoted(table)})").fetchall()
        return not any(index[3] == "pk" for index in indexes)


def schema_version(connection: apsw.Connection) -> int:
    return int(connection.execute("PRAGMA main.schema_version").get)
