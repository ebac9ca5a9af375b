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
    schema, left = writer.schema(), list[str]()
    ours: dict[Shape, list[Change]] = {}
    for table, changed in _by_table(changes).items():
        shape = schema.shape(table)
        ours[shape] = _unchanged_by_others(writer.connection, shape, changed, left)
    if left and not skip:
        raise Conflict(left)
    for shape, changed in ours.items():
        gone = [shape.key_of(change.old) for change in changed if change.old is not None]
        writer.connection.executemany(shape.delete, gone)
    for shape, changed in ours.items():
        done = _put_in(writer.connection, shape, changed, left) if skip else changed
        if not skip:
            _put_all_in(writer.connection, shape, changed)
        _verify(writer.connection, shape, done)
    return left


def _by_table(changes: Sequence[Change]) -> dict[str, list[Change]]:
    found: dict[str, list[Change]] = {}
    for change in changes:
        found.setdefault(change.table, []).append(change)
    return found


def _key(shape: Shape, change: Change) -> Row:
    return shape.key_of(change.new if change.old is None else change.old)  # type: ignore[arg-type]  # one is there


# --- what is there now ---


def _unchanged_by_others(
    connection: apsw.Connection, shape: Shape, changes: list[Change], left: list[str]
) -> list[Change]:
    """The changes whose rows are what they must be; of the others, ``left`` grows by what they are."""
    keys = [_key(shape, change) for change in changes]
    try:
        now: list[Row | None] = shape.fetch_all(connection, keys)
    except UnicodeDecodeError:
        left.append(f"a row of {shape.name} now holds text that isn't UTF-8")
        return []
    ours = []
    for key, change, row in zip(keys, changes, now, strict=True):
        if same(row, change.old):
            ours.append(change)
        else:
            left.append(f"{shape.name} {shown_row(key)} {_difference(change, row)}")
    return ours


def _difference(change: Change, now: Row | None) -> str:
    if now is None:
        return "is gone"
    return f"is {'there again as' if change.old is None else 'now'} {shown_row(now)}"


# --- what is to be there ---


def _put_all_in(connection: apsw.Connection, shape: Shape, changes: list[Change]) -> None:
    coming = [change.new for change in changes if change.new is not None]
    try:
        connection.executemany(shape.insert, coming)
    except apsw.ConstraintError as error:
        raise Conflict([f"what {shape.name} {shown_row(_key(shape, changes[0]))} … needs is taken: {error}"]) from error


def _put_in(connection: apsw.Connection, shape: Shape, changes: list[Change], left: list[str]) -> list[Change]:
    """Row by row; where there is no room, the row stays as it was, and ``left`` says so."""
    done = []
    for change in changes:
        if change.new is not None:
            try:
                connection.execute(shape.insert, change.new)
            except apsw.ConstraintError as error:
                if change.old is not None:
                    connection.execute(shape.insert, change.old)
                left.append(f"{shape.name} {shown_row(change.new)} has no room: {error}")
                continue
        done.append(change)
    return done


def _verify(connection: apsw.Connection, shape: Shape, changes: list[Change]) -> None:
    now = shape.fetch_all(connection, [_key(shape, change) for change in changes])
    wrong = [change for change, row in zip(changes, now, strict=True) if not same(row, change.new)]
    if wrong:
        raise Trouble(f"a row of {shape.name} did not become what it was: {shown_row(_key(shape, wrong[0]))}")


# --- where AUTOINCREMENT stands ---


def apply_sequences(writer: Writer, changes: Sequence[SequenceChange]) -> None:
    """Set AUTOINCREMENT's counters from ``old`` to ``new`` where nobody moved them since."""
    if not changes or not writer.schema().has(SEQUENCES):
        return
    run = writer.connection.execute
    coming = []
    for name, old, new in changes:
        now = run("SELECT rowid, name, seq FROM main.sqlite_sequence WHERE name = ?", (name,)).fetchone()
        if (now or (None,))[-1] != (old or (None,))[-1]:
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
