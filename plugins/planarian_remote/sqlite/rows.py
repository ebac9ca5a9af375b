"""Rows put back, or forth: compared with what must be there, replaced, compared with what must be there then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

import apsw

from planarian_remote.sqlite.capture import SEQUENCES, Change
from planarian_remote.sqlite.capture import Sequence as SequenceChange
from planarian_remote.sqlite.file import Writer
from planarian_remote.sqlite.schema import Schema, Shape, quoted
from planarian_remote.sqlite.trouble import Conflict, Trouble
from planarian_remote.sqlite.values import Row, same, shown_row


def apply_rows(writer: Writer, changes: Sequence[Change], *, skip: bool) -> list[str]:
    """Bring rows from ``old`` to ``new``: all are taken out before any is put in, so that rows may trade their keys.

    Called within a transaction and :meth:`Writer.plain`. ``skip`` leaves rows alone that somebody else changed, and
    returns them; else they are a conflict.

    Raises:
        Conflict: a row isn't ``old`` now, or another one has taken what it needs (a UNIQUE value).
        Trouble: what came out isn't ``new``. The caller rolls back.
    """
    schema, left, ours = writer.schema(), [], []
    for change in changes:
        problem = _difference(writer.connection, schema.shape(change.table), change)
        if problem:
            left.append(problem)
        else:
            ours.append(change)
    if left and not skip:
        raise Conflict(left)
    for change in ours:
        if change.old is not None:
            shape = schema.shape(change.table)
            writer.connection.execute(shape.delete, shape.key_of(change.old))
    done = []
    for change in ours:
        problem = _put_in(writer.connection, schema.shape(change.table), change)
        if problem and not skip:
            raise Conflict([problem])
        if problem:
            left.append(problem)
        else:
            done.append(change)
    for change in done:
        _verify(writer.connection, schema.shape(change.table), change)
    return left


def _key(shape: Shape, change: Change) -> Row:
    return shape.key_of(change.new if change.old is None else change.old)  # type: ignore[arg-type]  # one is there


def _difference(connection: apsw.Connection, shape: Shape, change: Change) -> str:
    """How the row differs from the one that must be there; empty where it doesn't."""
    key = _key(shape, change)
    try:
        now = shape.fetch(connection, key)
    except UnicodeDecodeError:
        return f"{shape.name} {shown_row(key)} now holds text that isn't UTF-8"
    if same(now, change.old):
        return ""
    if now is None:
        return f"{shape.name} {shown_row(key)} is gone"
    if change.old is None:
        return f"{shape.name} {shown_row(key)} is there again as {shown_row(now)}"
    return f"{shape.name} {shown_row(key)} is now {shown_row(now)}"


def _put_in(connection: apsw.Connection, shape: Shape, change: Change) -> str:
    if change.new is None:
        return ""
    try:
        connection.execute(shape.insert, change.new)
    except apsw.ConstraintError as error:
        if change.old is not None:  # a row that is left alone stays as it was
            connection.execute(shape.insert, change.old)
        return f"{shape.name} {shown_row(change.new)} has no room: {error}"
    return ""


def _verify(connection: apsw.Connection, shape: Shape, change: Change) -> None:
    for row, wanted in ((change.old, None), (change.new, change.new)):
        if row is None or (wanted is None and change.new is not None):
            continue
        if not same(shape.fetch(connection, shape.key_of(row)), wanted):
            raise Trouble(f"a row of {shape.name} did not become what it was: {shown_row(row)}")


# --- where AUTOINCREMENT stands ---


def apply_sequences(writer: Writer, changes: Sequence[SequenceChange], made_anew: frozenset[str]) -> None:
    """Set AUTOINCREMENT's counters from ``old`` to ``new`` where nobody moved them since, or their table is new."""
    if not changes or not writer.schema().has(SEQUENCES):
        return
    run = writer.connection.execute
    coming = []
    for name, old, new in changes:
        now = run("SELECT rowid, name, seq FROM main.sqlite_sequence WHERE name = ?", (name,)).fetchone()
        if name not in made_anew and (now or (None,))[-1] != (old or (None,))[-1]:
            continue
        if now is not None:
            run("DELETE FROM main.sqlite_sequence WHERE rowid = ?", (now[0],))
        if new is not None:
            coming.append(new)
    for row in coming:
        _set_sequence(writer.connection, row)


def _set_sequence(connection: apsw.Connection, row: Row) -> None:
    """At its old place where that is free."""
    with suppress(apsw.ConstraintError):
        connection.execute("INSERT INTO main.sqlite_sequence (rowid, name, seq) VALUES (?, ?, ?)", row)
        return
    connection.execute("INSERT INTO main.sqlite_sequence (name, seq) VALUES (?, ?)", row[1:])


# --- foreign keys ---


def broken_keys(writer: Writer, tables: frozenset[str]) -> Counter[tuple[object, ...]]:
    """Rows whose foreign keys lead nowhere, of tables and of those that refer to them."""
    schema, found = writer.schema(), Counter[tuple[object, ...]]()
    for table in sorted(schema.kinds):
        if schema.kinds[table] == "table" and (table in tables or tables & _referred(writer.connection, schema, table)):
            with suppress(apsw.SQLError):  # a key that refers to no unique columns is none: SQLite can't hold it either
                found.update(writer.connection.execute(f"PRAGMA main.foreign_key_check({quoted(table)})"))
    return found


def _referred(connection: apsw.Connection, schema: Schema, table: str) -> frozenset[str]:
    names = {str(row[2]).casefold() for row in connection.execute(f"PRAGMA main.foreign_key_list({quoted(table)})")}
    return frozenset(other for other in schema.kinds if other.casefold() in names)
