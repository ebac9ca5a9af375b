"""Which rows a statement changed: their keys from SQLite's pre-update hook, their images read before and after.

The hook sees every row that is written to a table, whatever did it: the statement, a cascade, a trigger, REPLACE's
silent deletes, full text and R-Tree indexes writing their own tables. What rows held is read afterwards: new images on
the connection that wrote, old ones on another that still sees the database as it was. That nets what happened to a row
more than once, and doesn't depend on what the hook can say of generated columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import apsw

from planarian_remote.sqlite.trouble import Refused
from planarian_remote.sqlite.values import Row, as_row, same

if TYPE_CHECKING:
    from planarian_remote.sqlite.file import Link, Writer

SEQUENCES = "sqlite_sequence"
STATISTICS = ("sqlite_stat1", "sqlite_stat4")


class Touched:
    """The pre-update hook: keys of touched rows by table, while it is ``active``."""

    def __init__(self, max_rows: int) -> None:
        self.active = False
        self.keys: dict[str, dict[Row, None]] = {}
        self.without_rowid: dict[str, tuple[int, ...]] = {}
        self.whole: set[str] = set()
        """Tables of which any row may have been touched."""
        self.problem = ""
        self._max_rows = max_rows
        self._count = 0

    def begin(self, without_rowid: dict[str, tuple[int, ...]]) -> None:
        self.active, self.keys, self.whole, self.problem, self._count = True, {}, set(), "", 0
        self.without_rowid = without_rowid

    def end(self) -> None:
        self.active = False

    def add_whole(self, table: str) -> None:
        """Take any row of a table for touched."""
        self.keys.setdefault(table, {})
        self.whole.add(table)

    def __call__(self, update: apsw.PreUpdate) -> None:
        if not self.active or self.problem:
            return
        table = update.table_name
        keys = self.keys.setdefault(table, {})
        if table in self.without_rowid:
            self._take_key(update, keys, self.without_rowid[table])
        else:
            keys[(update.rowid,)] = None
            keys[(update.rowid_new,)] = None
        self._count += 1
        if self._count > self._max_rows:
            self.problem = f"it changes more than {self._max_rows} rows (max_rows)"
            update.connection.interrupt()

    def _take_key(self, update: apsw.PreUpdate, keys: dict[Row, None], positions: tuple[int, ...]) -> None:
        try:
            for row in (update.old, update.new):
                if row is not None:
                    keys[tuple(row[position] for position in positions)] = None
        except apsw.RangeError:  # the hook can't give rows that have virtual columns
            self.add_whole(update.table_name)
        except UnicodeDecodeError:
            self.problem = f"the table {update.table_name} has a key that isn't UTF-8"


@dataclass(frozen=True)
class Change:
    """One row of one table: its image before and after, None where it wasn't there."""

    table: str
    old: Row | None
    new: Row | None


def rows_of(link: Link, table: str, max_rows: int) -> tuple[Row, ...]:
    """All rows of a table, in the order of their keys.

    Raises:
        Refused: they are too many.
    """
    found: list[Row] = []
    for row in link.connection.execute(link.schema().shape(table).select_all):
        found.append(row)
        if len(found) > max_rows:
            raise Refused(f"the table {table} holds more than {max_rows} rows (max_rows), too many to keep a copy of")
    return tuple(found)


def changes_of(writer: Writer, reader: Link, passed_over: frozenset[str], max_rows: int) -> list[Change]:
    """The images of touched rows that differ. Tables in ``passed_over`` are imaged otherwise, or are gone."""
    found: list[Change] = []
    schema, earlier = writer.schema(), reader.schema()
    for table, keys in writer.touched.keys.items():
        if table in passed_over or table == SEQUENCES:
            continue
        if not schema.has(table) or not earlier.has(table):
            raise Refused(f"the table {table} came and went while its rows were written")
        shape = schema.shape(table)
        if table in writer.touched.whole:
            sides = (rows_of(reader, table, max_rows), rows_of(writer, table, max_rows))
            keys = dict.fromkeys(shape.key_of(row) for rows in sides for row in rows)
        wanted = [*keys]
        before, after = shape.fetch_all(reader.connection, wanted), shape.fetch_all(writer.connection, wanted)
        differing = [Change(table, o, n) for o, n in zip(before, after, strict=True) if not same(o, n)]
        if not shape.by_rowid:  # keys that are equal by their collation name one row
            differing = [*{repr(change): change for change in differing}.values()]
        found += differing
    return found


Sequence = tuple[str, Row | None, Row | None]
"""A row (rowid, name, seq) of sqlite_sequence, before and after."""


def sequences_of(link: Link) -> dict[str, Row]:
    """Where AUTOINCREMENT stands, by table.

    Raises:
        Refused: somebody wrote into sqlite_sequence what SQLite wouldn't.
    """
    if not link.schema().has(SEQUENCES):
        return {}
    rows = link.connection.execute("SELECT rowid, name, seq FROM main.sqlite_sequence").fetchall()
    found = {row[1]: row for row in rows if isinstance(row[1], str)}
    if len(found) != len(rows):
        raise Refused("sqlite_sequence holds a table more than once")
    return found


def sequence_changes(before: dict[str, Row], after: dict[str, Row]) -> list[Sequence]:
    names = sorted({*before, *after})
    return [(n, before.get(n), after.get(n)) for n in names if not same(before.get(n), after.get(n))]


def encode_change(change: Change) -> list[Any]:
    return [change.table, change.old, change.new]


def decode_change(data: list[Any]) -> Change:
    return Change(data[0], as_row(data[1]), as_row(data[2]))
