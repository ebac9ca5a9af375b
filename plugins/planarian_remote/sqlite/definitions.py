"""Definitions that a statement changed (CREATE, DROP, ALTER), and the way back and forth.

Two ways, and the statement itself decides which: what ALTER only wrote into the text of definitions (RENAME) is put
back in the text; everything else is taken away and made again from its own text, with the rows that it had. What comes
out is compared with what was there, object by object and row by row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import apsw

from planarian_remote.sqlite.capture import SEQUENCES, STATISTICS, rows_of
from planarian_remote.sqlite.file import Link, Writer
from planarian_remote.sqlite.judge import is_own
from planarian_remote.sqlite.schema import quoted, schema_version
from planarian_remote.sqlite.settings import OWN_PREFIX
from planarian_remote.sqlite.trouble import Conflict, Refused, Trouble
from planarian_remote.sqlite.values import Row, same

_LAST_DROPPED = ("trigger", "view", "index", "table")


@dataclass(frozen=True)
class SchemaObject:
    """A row of sqlite_schema. ``place`` is its rowid: the order in which objects are listed."""

    place: int
    type: str
    name: str
    table: str
    sql: str | None

    @property
    def text(self) -> tuple[str, str, str, str | None]:
        return self.type, self.name, self.table, self.sql

    @property
    def virtual(self) -> bool:
        return self.type == "table" and (self.sql or "").upper().startswith("CREATE VIRTUAL")


@dataclass(frozen=True)
class Side:
    """The objects concerned on one side of a change, and the rows of tables that this side alone has."""

    objects: tuple[SchemaObject, ...] = ()
    rows: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)

    @property
    def tables(self) -> frozenset[str]:
        return frozenset(o.name for o in self.objects if o.type == "table")


@dataclass(frozen=True)
class Redefinition:
    """``texts``: rows and storage are the same on both sides, and objects correspond one to one, in order."""

    before: Side
    after: Side
    texts: bool = False

    @property
    def reversed(self) -> Redefinition:
        return Redefinition(self.after, self.before, self.texts)

    @property
    def tables(self) -> frozenset[str]:
        return self.before.tables | self.after.tables


# --- what a statement changed ---


def objects_of(connection: apsw.Connection) -> dict[SchemaObject, int]:
    """The objects that are not ours, with the pages where they begin."""
    query = "SELECT rowid, type, name, tbl_name, sql, rootpage FROM main.sqlite_schema ORDER BY rowid"
    return {SchemaObject(*row[:5]): row[5] for row in connection.execute(query) if not is_own(row[3])}


def redefinition_of(writer: Writer, reader: Link, max_rows: int) -> Redefinition | None:
    """What changed between the two connections; None where no definition did.

    Raises:
        Refused: it can't be undone exactly.
    """
    before, after = objects_of(reader.connection), objects_of(writer.connection)
    texts_before, texts_after = {o.text for o in before}, {o.text for o in after}
    gone = [o for o in before if o.text not in texts_after]
    made = [o for o in after if o.text not in texts_before]
    if not gone and not made:
        return None
    if any(OWN_PREFIX in (o.sql or "").casefold() for o in made):  # it would run where nobody watches: in others' calls
        raise Refused(f"names that begin with {OWN_PREFIX} are Planarian's own")
    strangers = writer.connection.execute(
        "SELECT name FROM main.sqlite_schema WHERE tbl_name LIKE ? AND name NOT IN (?, ?)",
        (f"{OWN_PREFIX}%", f"{OWN_PREFIX}effects", f"sqlite_autoindex_{OWN_PREFIX}effects_1"),
    ).fetchall()
    if strangers:
        raise Refused(f"names that begin with {OWN_PREFIX} are Planarian's own")
    if _only_texts(writer, reader, {o: before[o] for o in gone}, {o: after[o] for o in made}):
        return Redefinition(Side(_concerned(list(before), gone)), Side(_concerned(list(after), made)), texts=True)
    if any(o.virtual for o in gone) and any(o.virtual for o in made):
        raise Refused("ALTER of a virtual table can't be undone exactly")
    return Redefinition(_side(reader, list(before), gone, max_rows), _side(writer, list(after), made, max_rows))


def _only_texts(writer: Writer, reader: Link, gone: dict[SchemaObject, int], made: dict[SchemaObject, int]) -> bool:
    if [(o.place, o.type, page) for o, page in gone.items()] != [(o.place, o.type, page) for o, page in made.items()]:
        return False
    for one, other in zip(gone, made, strict=True):
        if one.virtual:
            return False
        if one.type == "table" and _width(reader, one.name) != _width(writer, other.name):
            return False
    return True


def _width(link: Link, table: str) -> int:
    return len(link.connection.execute(f"PRAGMA main.table_xinfo({quoted(table)})").fetchall())


def _concerned(objects: list[SchemaObject], changed: list[SchemaObject]) -> tuple[SchemaObject, ...]:
    """The changed objects, and with a table or view all that hangs on it."""
    owners = {o.name for o in changed if o.type in ("table", "view")}
    return tuple(o for o in objects if o in changed or o.table in owners)


def _side(link: Link, objects: list[SchemaObject], changed: list[SchemaObject], max_rows: int) -> Side:
    concerned = _concerned(objects, changed)
    rows = {}
    for o in concerned:
        if o.type == "table" and not o.virtual and o.name != SEQUENCES:
            rows[o.name] = rows_of(link, o.name, max_rows)
    return Side(concerned, rows)


# --- the way from one side to the other ---


def redefine(writer: Writer, change: Redefinition, max_rows: int) -> None:
    """Bring the definitions from ``before`` to ``after``. Within a transaction and :meth:`Writer.plain`.

    Raises:
        Conflict: they are not ``before`` now, somebody hung something on them, or their rows are others.
        Trouble: what came out isn't ``after``. The caller rolls back.
    """
    _compare(writer, change, max_rows)
    if change.texts:
        _rewrite(writer, change)
    else:
        kept = {table: rows_of(writer, table, max_rows) for table in _tables_of_sqlite(writer)}
        _take_away(writer, change)
        _make(writer, change.after)
        for table, rows in kept.items():
            _restore(writer, table, rows)
    _place(writer, change.after)
    _verify(writer, change, max_rows)


def _compare(writer: Writer, change: Redefinition, max_rows: int) -> None:
    now = objects_of(writer.connection)
    texts, wanted = {o.text for o in now}, {o.text for o in change.before.objects}
    problems = [f"the definition of {o.type} {o.name}" for o in change.before.objects if o.text not in texts]
    owners = {o.name for o in change.before.objects if o.type in ("table", "view")}
    strange = [o for o in now if o.table in owners and o.text not in wanted]
    problems += [f"{o.type} {o.name} was made on {o.table}" for o in strange]
    before = {(o.type, o.name) for o in change.before.objects}
    coming = {o.name for o in change.after.objects if (o.type, o.name) not in before} - {SEQUENCES}
    problems += [f"{o.type} {o.name} is there already" for o in now if o.name in coming]
    if not problems:
        for table, rows in change.before.rows.items():
            if not _equal(rows_of(writer, table, max_rows), rows):
                problems.append(f"rows of the table {table}")
    if problems:
        raise Conflict(problems)


def _equal(some: tuple[Row, ...], others: tuple[Row, ...]) -> bool:
    return len(some) == len(others) and all(same(a, b) for a, b in zip(some, others, strict=True))


def _rewrite(writer: Writer, change: Redefinition) -> None:
    run = writer.connection.execute
    run("PRAGMA writable_schema = ON")
    try:
        for old, new in zip(change.before.objects, change.after.objects, strict=True):
            run(
                "UPDATE main.sqlite_schema SET name = ?, tbl_name = ?, sql = ? WHERE type = ? AND name = ?",
                (new.name, new.table, new.sql, old.type, old.name),
            )
        _announce(writer)
    finally:
        run("PRAGMA writable_schema = RESET")


def _tables_of_sqlite(writer: Writer) -> list[str]:
    """Counters and statistics: DROP TABLE drops a table's rows there. If the statement did, its row images say so."""
    return [name for name in (SEQUENCES, *STATISTICS) if writer.schema().has(name)]


def _restore(writer: Writer, table: str, rows: tuple[Row, ...]) -> None:
    if writer.schema().has(table):
        writer.connection.execute(f"DELETE FROM main.{table}")  # noqa: S608  # one of three names
        writer.connection.executemany(writer.schema().shape(table).insert, rows)


def _take_away(writer: Writer, change: Redefinition) -> None:
    run = writer.connection.execute
    objects = sorted(change.before.objects, key=lambda o: (_LAST_DROPPED.index(o.type), not o.virtual, o.place))
    for o in objects:
        if o.name == SEQUENCES:
            continue
        if o.sql is not None:  # an index that a constraint makes goes with its table
            run(f"DROP {o.type.upper()} IF EXISTS main.{quoted(o.name)}")
    if SEQUENCES in change.before.tables - change.after.tables:
        _drop_sequences(writer)


def _drop_sequences(writer: Writer) -> None:
    """SQLite never drops this table; under another name it does, and so it is as if it had never been there."""
    run = writer.connection.execute
    in_use = run("SELECT EXISTS (SELECT 1 FROM main.sqlite_sequence)").get or any(
        "AUTOINCREMENT" in (o.sql or "").upper() for o in objects_of(writer.connection) if o.type == "table"
    )
    if in_use:
        return
    name = f"{OWN_PREFIX}{SEQUENCES}"
    run("PRAGMA writable_schema = ON")
    try:
        run(
            "UPDATE main.sqlite_schema SET name = ?1, tbl_name = ?1, sql = ?2 WHERE name = ?3",
            (name, f"CREATE TABLE {name}(name,seq)", SEQUENCES),
        )
    finally:
        run("PRAGMA writable_schema = RESET")
    run(f"DROP TABLE main.{name}")


def _make(writer: Writer, side: Side) -> None:
    run = writer.connection.execute
    tables = [o for o in side.objects if o.type == "table" and o.name != SEQUENCES]
    for o in sorted(tables, key=lambda o: (not o.virtual, o.place)):
        if o.sql is not None and o.name not in writer.schema().kinds:  # a virtual table has made its own
            run(o.sql)
    for table, rows in side.rows.items():
        shape = writer.schema().shape(table)
        run(f"DELETE FROM main.{quoted(table)}")  # noqa: S608  # quoted; what a virtual table put in by itself
        writer.connection.executemany(shape.insert, rows)
    for kind in ("index", "view", "trigger"):
        for o in side.objects:
            if o.type == kind and o.sql is not None:
                run(o.sql)


def _place(writer: Writer, side: Side) -> None:
    """List the objects where they were listed, as far as nobody else's are there now."""
    run = writer.connection.execute
    places = {(o.type, o.name): o.place for o in objects_of(writer.connection)}
    moves = [o for o in side.objects if places.get((o.type, o.name), o.place) != o.place]
    if not moves:
        return
    run("PRAGMA writable_schema = ON")
    try:
        for o in moves:
            run(
                "UPDATE main.sqlite_schema SET rowid = ?1 WHERE type = ?2 AND name = ?3 "
                "AND NOT EXISTS (SELECT 1 FROM main.sqlite_schema WHERE rowid = ?1)",
                (o.place, o.type, o.name),
            )
        _announce(writer)
    finally:
        run("PRAGMA writable_schema = RESET")


def _announce(writer: Writer) -> None:
    """Make every connection read the schema again."""
    version = schema_version(writer.connection)
    writer.connection.execute(f"PRAGMA main.schema_version = {version + 1}")


def _verify(writer: Writer, change: Redefinition, max_rows: int) -> None:
    now = {o.text for o in objects_of(writer.connection)}
    missing = [o.name for o in change.after.objects if o.text not in now]
    wanted = {o.text for o in change.after.objects}
    kept = [o.name for o in change.before.objects if o.text not in wanted and o.text in now and o.name != SEQUENCES]
    if missing or kept:
        raise Trouble(f"the definition of {(missing or kept)[0]} did not become what it was")
    for table, rows in change.after.rows.items():
        if not _equal(rows_of(writer, table, max_rows), rows):
            raise Trouble(f"rows of the table {table} did not become what they were")


# --- as data ---


def encode_side(side: Side) -> dict[str, Any]:
    return {
        "objects": [[o.place, *o.text] for o in side.objects],
        "rows": list(side.rows.items()),
    }


def decode_side(data: Mapping[str, Any]) -> Side:
    return Side(
        tuple(SchemaObject(*o) for o in data["objects"]),
        {table: tuple(tuple(row) for row in rows) for table, rows in data["rows"]},
    )
