"""The SQLite file under the registry: connections per thread, durable transactions, small tables, a full disk.

WAL with ``synchronous=FULL``: a row that a caller has seen committed survives a power cut. Any number of processes may
open one file.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from planarian_core.codec import decode, encode
from planarian_core.errors import ConfigurationError, RegistryCorrupt
from planarian_core.registry_schema import SCHEMA_VERSION, migrate

_BUSY_SECONDS = 60
_RESERVE = 8 * 1024 * 1024
_ROOM = 1024 * 1024
_TROUBLES = (sqlite3.DatabaseError, ValueError, TypeError, KeyError)
"""What a damaged or unwritable file makes of an operation, and of a record in it."""


class Database:
    """The file, made or brought up to date when it is opened. Safe to share between threads.

    Raises:
        RegistryCorrupt: the file is no registry (``registry-corrupt``), is from a newer version (``registry-newer``),
            or can't be written (``registry-unwritable``).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._folder = str(path.parent)
        self._local = threading.local()
        self._connections: dict[sqlite3.Connection, threading.RLock] = {}
        self._guard = threading.Lock()
        self._reserve = path.with_name("reserve")
        _check_engine()
        self._prepare()
        self._keep_reserve()

    # --- a full disk ---

    def _keep_reserve(self) -> None:
        """Hold some space back, so that a sandbox that fills the disk can't keep us from taking it away again."""
        size = min(_RESERVE, self._free() // 8)
        if size > _ROOM and not self._reserve.exists():
            with suppress(OSError), open(self._reserve, "xb") as file:
                file.write(bytes(size))
                os.fsync(file.fileno())

    def _free(self) -> int:
        status = os.statvfs(self._folder)
        return status.f_bavail * status.f_frsize

    def _make_room(self) -> None:
        """Give the reserve up where the registry itself would have no room left."""
        if self._free() < _ROOM:
            self._reserve.unlink(missing_ok=True)

    def close(self) -> None:
        """Close every thread's connection, each once nobody uses it."""
        while True:
            with self._guard:
                if not self._connections:
                    return
                connection, in_use = next(iter(self._connections.items()))
            with in_use:
                connection.close()
                with self._guard:
                    self._connections.pop(connection, None)

    # --- connections ---

    @contextmanager
    def _lent(self) -> Iterator[sqlite3.Connection]:
        """This thread's connection, which :meth:`close` leaves open until it is given back; errors are translated."""
        try:
            while True:
                connection, in_use = self._own()
                with in_use:
                    if connection in self._connections:
                        yield connection
                        return
        except _TROUBLES as error:
            raise self._trouble(error) from error

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """The same errors, for records that are read after their connection was given back."""
        try:
            yield
        except _TROUBLES as error:
            raise self._trouble(error) from error

    def _trouble(self, error: Exception) -> RegistryCorrupt:
        if not isinstance(error, sqlite3.DatabaseError):
            return RegistryCorrupt(f"a record in the registry {self.path} can't be read: {error}")
        code, remedy = "registry-corrupt", "restore the file from a backup, or use another home (PLANARIAN_HOME)"
        if isinstance(error, sqlite3.OperationalError):
            code = "registry-unwritable"
            remedy = "check that the home is writable and has free space (df, ls -ld), then try again"
        return RegistryCorrupt(f"the registry {self.path}: {error}", code=code, remedy=remedy)

    def _own(self) -> tuple[sqlite3.Connection, threading.RLock]:
        own: tuple[sqlite3.Connection, threading.RLock] | None = getattr(self._local, "own", None)
        if own is None or own[0] not in self._connections:
            self._make_room()
            connection = sqlite3.connect(
                self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            connection.execute("PRAGMA synchronous=FULL")
            self._local.durable = True
            own = self._local.own = (connection, threading.RLock())
            with self._guard:
                self._connections[connection] = own[1]
        return own

    def _prepare(self) -> None:
        with self._lent() as connection:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version < SCHEMA_VERSION:
                migrate(connection)
        if version > SCHEMA_VERSION:
            raise RegistryCorrupt(
                f"the registry {self.path} was written by a newer Planarian (format {version}, this one knows "
                f"{SCHEMA_VERSION})",
                code="registry-newer",
                state="nothing was changed",
                remedy="upgrade planarian, or use another home (PLANARIAN_HOME)",
            )

    @contextmanager
    def transaction(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """One atomic, durable change. Without ``durable`` a power cut (nothing less) may take it back."""
        with self._lent() as connection:
            self._make_room()
            if durable is not getattr(self._local, "durable", True):
                connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
                self._local.durable = durable
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def records(self, query: str, *arguments: Any) -> list[Any]:
        """The first column of each row, as plain data."""
        with self._lent() as connection:
            return [json.loads(row[0]) for row in connection.execute(query, arguments)]

    def rows(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        with self._lent() as connection:
            return connection.execute(query, arguments).fetchall()


T = TypeVar("T")


class RecordTable(Generic[T]):
    """Values by key in one of the registry's small tables; each call is one durable change."""

    def __init__(self, database: Database, name: str, kind: type[T]) -> None:
        self._database = database
        self._name = name
        self._kind = kind

    def put(self, key: str, value: T, connection: sqlite3.Connection | None = None) -> None:
        """Add or replace; within the caller's transaction where ``connection`` is given."""
        statement = f"INSERT OR REPLACE INTO {self._name} (id, record) VALUES (?, ?)"  # noqa: S608  # a constant
        self._change(statement, (key, to_json(value)), connection)

    def remove(self, key: str, connection: sqlite3.Connection | None = None) -> None:
        """Idempotent."""
        self._change(f"DELETE FROM {self._name} WHERE id = ?", (key,), connection)  # noqa: S608  # a constant

    def get(self, key: str) -> T | None:
        found = self._database.records(f"SELECT record FROM {self._name} WHERE id = ?", key)  # noqa: S608  # a constant
        return decode(self._kind, found[0]) if found else None

    def all(self) -> dict[str, T]:
        """All values, in the order in which their keys were first put."""
        found = self._database.rows(f"SELECT id, record FROM {self._name} ORDER BY rowid")  # noqa: S608  # a constant
        return {key: decode(self._kind, json.loads(record)) for key, record in found}

    def _change(self, statement: str, arguments: tuple[str, ...], connection: sqlite3.Connection | None) -> None:
        if connection is not None:
            connection.execute(statement, arguments)
            return
        with self._database.transaction() as own:
            own.execute(statement, arguments)


def to_json(value: Any) -> str:
    """A model value as it is kept in a record."""
    return json.dumps(encode(value), ensure_ascii=True)


def _check_engine() -> None:
    """Asked of a database in memory: the engine would make its own kind of file by opening one."""
    with closing(sqlite3.connect(":memory:")) as connection:
        found = connection.execute("SELECT 1 FROM pragma_function_list WHERE name = 'doltlite_engine'").fetchone()
    if found:
        raise ConfigurationError(
            "Python's sqlite3 is doltlite's in this process: a registry that it makes is no SQLite file",
            code="sqlite-replaced",
            state="nothing was changed",
            remedy="don't import doltlite, nor preload its library, where Planarian runs",
        )
