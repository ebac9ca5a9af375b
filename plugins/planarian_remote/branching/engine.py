"""Connections to doltlite databases: what ``sqlite3`` has for SQLite, as far as it is needed here."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from planarian_remote.branching.library import AUTHORIZER, PROGRESS, TRANSIENT, load

Value = None | int | float | str | bytes

Authorizer = Callable[[int, str, str, str], bool]
"""Says of an action of a statement (SQLite's action code, two arguments, a schema) whether it may be."""

_ROW, _DONE, _OK = 100, 101, 0
_BUSY, _INTERRUPT = 5, 9
_READ_WRITE, _FULL_MUTEX, _CREATE = 0x2, 0x10000, 0x4
_STEPS = 10_000
"""Virtual-machine steps between two looks at the clock."""


class EngineError(Exception):
    """What the engine says went wrong. ``code`` is SQLite's extended result code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code

    @property
    def busy(self) -> bool:
        """Another connection holds the database's write lock."""
        return self.code & 0xFF == _BUSY

    @property
    def interrupted(self) -> bool:
        return self.code & 0xFF == _INTERRUPT


@dataclass(frozen=True)
class Rows:
    """What a statement gave: names of columns, rows, and how many rows it changed."""

    columns: tuple[str, ...]
    rows: list[tuple[Value, ...]]
    changes: int = 0


class Statement:
    """A prepared statement; close it. ``tail`` is what followed it in the text."""

    def __init__(self, connection: Connection, handle: ctypes.c_void_p, tail: str) -> None:
        self._connection = connection
        self._library = connection.library
        self._handle = handle
        self.tail = tail

    @property
    def empty(self) -> bool:
        """There was nothing but space and comments."""
        return not self._handle

    @property
    def reads(self) -> bool:
        """The engine sees nothing in it that writes; functions apart."""
        return bool(self._library.sqlite3_stmt_readonly(self._handle))

    @property
    def explains(self) -> bool:
        """It is an EXPLAIN: nothing of it is run."""
        return bool(self._library.sqlite3_stmt_isexplain(self._handle))

    @property
    def parameters(self) -> int:
        return int(self._library.sqlite3_bind_parameter_count(self._handle))

    def run(self, values: Sequence[Value] = ()) -> Iterator[tuple[Value, ...]]:
        """Run it, row by row."""
        for index, value in enumerate(values, 1):
            self._connection.check(self._bind(index, value))
        width = self._library.sqlite3_column_count(self._handle)
        while (code := self._library.sqlite3_step(self._handle)) == _ROW:
            yield tuple(self._value(column) for column in range(width))
        if code != _DONE:
            raise self._connection.error(code)

    @property
    def columns(self) -> tuple[str, ...]:
        count = self._library.sqlite3_column_count(self._handle)
        names = (self._library.sqlite3_column_name(self._handle, index) for index in range(count))
        return tuple((name or b"").decode(errors="replace") for name in names)

    def close(self) -> None:
        handle, self._handle = self._handle, ctypes.c_void_p()
        self._library.sqlite3_finalize(handle)

    def _bind(self, index: int, value: Value) -> int:
        library, handle = self._library, self._handle
        if value is None:
            return int(library.sqlite3_bind_null(handle, index))
        if isinstance(value, int):
            return int(library.sqlite3_bind_int64(handle, index, value))
        if isinstance(value, float):
            return int(library.sqlite3_bind_double(handle, index, value))
        data = value.encode() if isinstance(value, str) else value
        bind = library.sqlite3_bind_text if isinstance(value, str) else library.sqlite3_bind_blob
        return int(bind(handle, index, data, len(data), TRANSIENT))

    def _value(self, column: int) -> Value:
        library, handle = self._library, self._handle
        kind = library.sqlite3_column_type(handle, column)
        if kind == 1:
            return int(library.sqlite3_column_int64(handle, column))
        if kind == 2:
            return float(library.sqlite3_column_double(handle, column))
        if kind == 5:
            return None
        at = library.sqlite3_column_blob(handle, column)
        size = library.sqlite3_column_bytes(handle, column)
        data = ctypes.string_at(at, size) if at else b""
        return data.decode(errors="surrogateescape") if kind == 3 else data


class Connection:
    """A connection to one database file. Usable from one thread at a time.

    Raises:
        EngineError: it can't be opened; it is never made.
    """

    def __init__(self, library: Path, database: Path, *, busy_timeout: float = 5.0, create: bool = False) -> None:
        self._handle = ctypes.c_void_p()
        self._callbacks: list[object] = []
        self.library = load(library)
        flags = _READ_WRITE | _FULL_MUTEX | (_CREATE if create else 0)
        code = self.library.sqlite3_open_v2(str(database).encode(), ctypes.byref(self._handle), flags, None)
        if code != _OK:
            error = self.error(code)
            self.close()
            raise error
        self.library.sqlite3_busy_timeout(self._handle, int(busy_timeout * 1000))

    def execute(self, sql: str, *values: Value) -> Rows:
        """Run one statement and take all that it gives."""
        statement = self.prepare(sql)
        try:
            rows = list(statement.run(values))
            return Rows(statement.columns, rows, self.changes)
        finally:
            statement.close()

    def value(self, sql: str, *values: Value) -> Value:
        """The first value of the first row; None without one."""
        rows = self.execute(sql, *values).rows
        return rows[0][0] if rows else None

    def prepare(self, sql: str) -> Statement:
        data = sql.encode()
        buffer = ctypes.create_string_buffer(data)
        start = ctypes.addressof(buffer)
        handle, tail = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(
            self.library.sqlite3_prepare_v2(
                self._handle, start, len(data) + 1, ctypes.byref(handle), ctypes.byref(tail)
            )
        )
        rest = data[tail.value - start :] if tail.value else b""
        return Statement(self, handle, rest.decode())

    @property
    def changes(self) -> int:
        """Rows that the last INSERT, UPDATE or DELETE changed by itself."""
        return int(self.library.sqlite3_changes64(self._handle))

    @property
    def in_transaction(self) -> bool:
        return not self.library.sqlite3_get_autocommit(self._handle)

    def authorize(self, authorizer: Authorizer) -> None:
        """Ask ``authorizer`` about all that later statements do, when they are prepared."""

        def callback(_: object, action: int, *arguments: bytes | None) -> int:
            try:
                first, second, schema = ((argument or b"").decode(errors="replace") for argument in arguments[:3])
                return 0 if authorizer(action, first, second, schema) else 1
            except Exception:  # an exception can't pass through the engine; what can't be judged may not be
                return 1

        kept = AUTHORIZER(callback)
        self._callbacks.append(kept)
        self.library.sqlite3_set_authorizer(self._handle, kept, None)

    @contextmanager
    def deadline(self, seconds: float) -> Iterator[None]:
        """Interrupt what still runs after so many seconds (:attr:`EngineError.interrupted`)."""
        end = time.monotonic() + seconds
        handler = PROGRESS(lambda _: int(time.monotonic() > end))
        self.library.sqlite3_progress_handler(self._handle, _STEPS, handler, None)
        try:
            yield
        finally:
            self.library.sqlite3_progress_handler(self._handle, 0, PROGRESS(0), None)

    def check(self, code: int) -> None:
        if code != _OK:
            raise self.error(code)

    def error(self, code: int) -> EngineError:
        if not self._handle:
            return EngineError("out of memory", code)
        message = (self.library.sqlite3_errmsg(self._handle) or b"").decode(errors="replace")
        return EngineError(message, int(self.library.sqlite3_extended_errcode(self._handle)) or code)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle:
            self.library.sqlite3_close_v2(handle)
        self._callbacks.clear()
