"""One statement of the agent's: read where nothing can be written, or run together with its undo data.

Why we run it ourselves, on the same file, instead of through the server: a server takes one statement a call, and in
SQLite there is no statement that could do the effect and keep its undo data (no function that runs SQL, no CTE that
writes). Triggers miss what REPLACE deletes, the truncating DELETE and definitions, and stay behind for other writers.
The pre-update hook, the authorizer and a transaction around it all need a connection of one's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import apsw

from planarian_core import units
from planarian_core.faults import reach
from planarian_core.model import Effect, EffectState
from planarian_remote.sqlite import log
from planarian_remote.sqlite.file import DatabaseFile, Link, Writer
from planarian_remote.sqlite.images import Images, apply_images, encode_images, images_of
from planarian_remote.sqlite.judge import Writes
from planarian_remote.sqlite.settings import Settings
from planarian_remote.sqlite.trouble import Conflict, Refused, Trouble, translated, trouble_of
from planarian_remote.sqlite.values import Value

_NUMBER = 8
"""Bytes that a number is counted as."""
_OWN_NAMES = frozenset({log.TABLE, f"sqlite_autoindex_{log.TABLE}_1"})


@dataclass(frozen=True)
class Answer:
    """What a statement returned: columns as (name, declared type), rows, how many rows it changed (-1: definitions).

    ``summary`` says what became different; empty where nothing did.
    """

    columns: tuple[tuple[str, str | None], ...] = ()
    rows: tuple[tuple[Value, ...], ...] = ()
    changes: int = -1
    summary: str = ""


class StatementError(Exception):
    """The statement's own error, as SQLite words it; it had no effect. ``code`` is SQLite's extended result code."""

    def __init__(self, error: apsw.Error) -> None:
        super().__init__(str(error))
        self.message = str(error)
        self.code: int = getattr(error, "extendedresult", 0) or getattr(error, "result", 1)


def read(file: DatabaseFile, sql: str) -> Answer:
    """Run a read on a connection that can't write.

    Raises:
        Writes: the statement isn't one.
        StatementError, Trouble
    """
    with translated(file.path):
        link = file.readable()
        with _no_longer_values(link, file.settings.max_result):
            answer = _execute(file, link, sql, link.judge.only_reads)
        if link.judge.reads_schema:
            rows = tuple(row for row in answer.rows if not _OWN_NAMES.intersection(map(str, row)))
            return Answer(answer.columns, rows)
        return answer


def run(file: DatabaseFile, sql: str, effect: Effect) -> Answer:
    """Run a statement and commit it with its undo data; where nothing became different, neither.

    Raises:
        StatementError, Trouble: nothing was changed, unless the trouble is ``uncertain``.
    """
    settings = file.settings
    with file.writing() as (writer, reader):
        log.prepare(writer.connection)
        try:
            answer, images = _captured(file, writer, reader, sql)
        except StatementError:
            _refuse_half(writer, reader, settings)
            raise
        if images.empty:
            return answer  # nothing to commit
        encoded, summary = _proven(writer, images, settings), images.summary()
        try:
            log.add(writer.connection, effect, EffectState.APPLIED, summary, encoded)
        except apsw.ConstraintError as error:
            raise Refused("the effect was given up meanwhile") from error
        reach("sqlite.written")
        try:
            file.commit(writer, reader)
        except apsw.ConstraintError as error:  # a deferred foreign key
            raise StatementError(error) from error
        reach("sqlite.committed")
        return Answer(answer.columns, answer.rows, answer.changes, summary)


def _captured(file: DatabaseFile, writer: Writer, reader: Link, sql: str) -> tuple[Answer, Images]:
    writer.touched.begin(writer.schema().without_rowid)
    try:
        answer = _execute(file, writer, sql, writer.judge.only_one)
        # Full text indexes keep what they have to write in memory, and write it when a savepoint begins.
        writer.connection.execute("SAVEPOINT planarian_captured")
        writer.connection.execute("RELEASE planarian_captured")
    finally:
        writer.touched.end()
    if writer.touched.problem:
        raise Refused(writer.touched.problem)
    return answer, images_of(writer, reader, file.settings, defines=writer.judge.defines)


def _execute(file: DatabaseFile, link: Link, sql: str, tracer: apsw.ExecTracer) -> Answer:
    if "\0" in sql:
        raise Refused("it holds a NUL character, behind which SQLite reads nothing")
    cursor = link.connection.cursor()
    columns: list[tuple[str, str | None]] = []

    def begin(cursor: apsw.Cursor, statement: str, bindings: apsw.Bindings | None) -> bool:
        columns.extend((column[0], column[1]) for column in cursor.get_description())  # while there is one
        return tracer(cursor, statement, bindings)

    cursor.exec_trace = begin
    link.judge.begin(sql)
    try:
        before = link.connection.total_changes()
        cursor.execute(sql, can_cache=False)
        rows = tuple(_bounded(cursor, columns, file.settings.max_result))
        changed = link.connection.changes() if link.connection.total_changes() != before else 0
        return Answer(tuple(columns), rows, -1 if link.judge.defines else changed)
    except apsw.Error as error:
        raise _cause(file, link, error) from error
    finally:
        link.judge.end()
        cursor.close(True)


def _bounded(
    rows: Iterable[tuple[Value, ...]], columns: Sequence[tuple[str, str | None]], limit: int
) -> Iterator[tuple[Value, ...]]:
    """The rows, one by one; Refused when they come to more text than a result may have. Names count with every row,
    as most servers write them.
    """
    size, names = 0, sum(len(name) for name, _ in columns)
    for row in rows:
        size += names + sum(len(value) if isinstance(value, str | bytes) else _NUMBER for value in row)
        if size > limit:
            raise _too_large(limit)
        yield row


@contextmanager
def _no_longer_values(link: Link, limit: int) -> Iterator[None]:
    """Within, SQLite makes no value longer than a result may be: a row is held as a whole before it can be counted."""
    before = link.connection.limit(apsw.SQLITE_LIMIT_LENGTH, limit)
    try:
        yield
    except StatementError as error:
        if isinstance(error.__cause__, apsw.TooBigError):
            raise _too_large(limit, "it works on a value of") from error
        raise
    finally:
        link.connection.limit(apsw.SQLITE_LIMIT_LENGTH, before)


def _too_large(limit: int, what: str = "it gives") -> Refused:
    return Refused(
        f"{what} more than {units.size(limit)}",
        "use LIMIT, fewer columns or substr(); a user can raise max_result in planarian.toml",
    )


def _cause(file: DatabaseFile, link: Link, error: apsw.Error) -> Exception:
    if isinstance(error, apsw.InterruptError) and link.judge.timed_out:
        return Trouble(f"it ran for more than {file.settings.statement_timeout:g} s", "raise statement_timeout")
    if isinstance(link, Writer) and link.touched.problem:
        return Refused(link.touched.problem)
    if refusal := link.judge.refusal():
        return refusal
    return trouble_of(error, file.path) or StatementError(error)


def _refuse_half(writer: Writer, reader: Link, settings: Settings) -> None:
    """A statement that fails and keeps a part (OR FAIL, RAISE(FAIL)) is refused: here it would keep none."""
    if writer.connection.in_transaction and not images_of(writer, reader, settings, defines=False).empty:
        raise Refused("it failed half-way and would have kept a part of its work (FAIL)")


def _proven(writer: Writer, images: Images, settings: Settings) -> bytes:
    """The undo data, after it has undone the statement and done it again in a part of the transaction that is dropped.

    Raises:
        Refused: it can't be undone exactly.
    """
    encoded = encode_images(images, settings.max_bytes)
    run_sql = writer.connection.execute
    run_sql("SAVEPOINT planarian_trial")
    try:
        apply_images(writer, images.reversed, settings)
        if images.redefinition is not None:
            apply_images(writer, images, settings)
    except (Conflict, Trouble, apsw.Error) as error:
        raise Refused(f"it can't be undone exactly: {error}") from error
    finally:
        if writer.connection.in_transaction:
            run_sql("ROLLBACK TO planarian_trial")
            run_sql("RELEASE planarian_trial")
        if images.redefinition is not None:
            writer.forget_schema()
    return encoded


__all__ = ["Answer", "StatementError", "Writes", "read", "run"]
