"""The database's file: our two connections to it, and the transaction that holds effect and undo data together."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import apsw

from planarian_remote.sqlite.capture import Touched
from planarian_remote.sqlite.judge import Judge
from planarian_remote.sqlite.schema import Schema, schema_version
from planarian_remote.sqlite.settings import Settings
from planarian_remote.sqlite.trouble import Refused, Trouble, translated

_Identity = tuple[int, int]


class Link:
    """One connection with what watches it."""

    def __init__(self, path: str, settings: Settings, *, writes: bool) -> None:
        flags = apsw.SQLITE_OPEN_READWRITE if writes else apsw.SQLITE_OPEN_READONLY
        self.connection = apsw.Connection(path, flags=flags)
        self.connection.set_busy_timeout(int(settings.busy_timeout * 1000))
        self.connection.execute(f"PRAGMA foreign_keys = {int(settings.foreign_keys)}")
        self.connection.execute(f"PRAGMA recursive_triggers = {int(settings.recursive_triggers)}")
        if writes:
            self.connection.execute("PRAGMA synchronous = FULL")
        else:
            self.connection.execute("PRAGMA query_only = 1")
        self.judge = Judge(self.connection, settings.statement_timeout)
        self._schema: Schema | None = None

    def schema(self) -> Schema:
        """The schema as this connection sees it now."""
        if self._schema is None or self._schema.version != schema_version(self.connection):
            self._schema = Schema(self.connection)
        return self._schema

    def forget_schema(self) -> None:
        """After a rollback of definitions, whose versions will be used again."""
        self._schema = None


class Writer(Link):
    """The connection that writes. While ``foreign_keys`` and triggers are off, rows are only what we write."""

    def __init__(self, path: str, settings: Settings) -> None:
        super().__init__(path, settings, writes=True)
        self.touched = Touched(settings.max_rows)
        self._foreign_keys = settings.foreign_keys
        if self.connection.execute("PRAGMA journal_mode").get != "wal":
            # Writing to the file early needs all readers gone, ours too: SQLite would wait for them at every page.
            self.connection.execute("PRAGMA cache_spill = OFF")
        self.connection.preupdate_hook(self.touched)

    @contextmanager
    def plain(self) -> Iterator[None]:
        """Writes within have no consequences: no triggers, no foreign key's actions."""
        config = self.connection.config
        triggers = self.schema().has_triggers
        if triggers:
            config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        if self._foreign_keys:
            config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, 0)
        try:
            yield
        finally:
            if triggers:
                config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 1)
            if self._foreign_keys:
                config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, 1)


class DatabaseFile:
    """A database by its path. Connections are opened when they are needed, anew where the path names another file."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.path = settings.path
        self._identity: _Identity | None = None
        self._writer: Writer | None = None
        self._reader: Link | None = None

    def close(self) -> None:
        """Close both connections. Idempotent."""
        links, self._writer, self._reader, self._identity = (self._writer, self._reader), None, None, None
        for link in links:
            if link is not None:
                with suppress(apsw.Error):
                    link.connection.close(True)

    def reader(self) -> Link:
        self._follow()
        if self._reader is None:
            self._reader = Link(self.path, self.settings, writes=False)
        return self._reader

    def readable(self) -> Link:
        """The reader, after what a killed writer left half done was taken back: that needs a connection that writes."""
        link, probe = self.reader(), "SELECT 1 FROM main.sqlite_schema LIMIT 1"
        try:
            link.connection.execute(probe).fetchall()
        except (apsw.ReadOnlyError, apsw.CantOpenError):
            self.writer().connection.execute(probe).fetchall()
        return link

    def writer(self) -> Writer:
        self._follow()
        if self._writer is None:
            self._writer = Writer(self.path, self.settings)
            encoding = self._writer.connection.execute("PRAGMA encoding").get
            if encoding != "UTF-8":
                self.close()
                raise Refused(f"text in the database {self.path} is kept in {encoding}: only UTF-8 is undone exactly")
        return self._writer

    @contextmanager
    def writing(self) -> Iterator[tuple[Writer, Link]]:
        """A transaction: the connection that writes, and one that goes on seeing what was there before.

        It is committed by :meth:`commit`, and rolled back at the end where it wasn't.
        """
        with translated(self.path):
            writer, reader = self.writer(), self.reader()
            try:
                writer.connection.execute("BEGIN IMMEDIATE")
                reader.connection.execute("BEGIN")
                reader.connection.execute("SELECT 1 FROM main.sqlite_schema LIMIT 1").fetchall()
                if self._now() != self._identity:
                    raise Trouble(f"the database {self.path} was replaced this moment", "try again")
                yield writer, reader
            finally:
                self._end(writer, reader)

    def commit(self, writer: Writer, reader: Link) -> None:
        """Make the transaction durable.

        Raises:
            apsw.ConstraintError: a deferred foreign key isn't kept.
            Trouble: nothing was changed; or nobody knows (``uncertain``).
        """
        if self._now() != self._identity:
            raise Trouble(f"the database {self.path} was replaced this moment", "try again")
        reader.connection.execute("COMMIT")
        try:
            writer.connection.execute("COMMIT")
        except (apsw.BusyError, apsw.FullError, apsw.ConstraintError):
            raise
        except apsw.Error as error:
            raise Trouble(f"the database {self.path}: {error}", "check the disk", uncertain=True) from error

    def _end(self, writer: Writer, reader: Link) -> None:
        for link in (reader, writer):
            if link.connection.in_transaction:
                with suppress(apsw.Error):
                    link.connection.execute("ROLLBACK")
                link.forget_schema()

    # --- the path ---

    def _now(self) -> _Identity:
        try:
            status = os.stat(self.path)
        except OSError as error:
            raise Trouble(
                f"the database {self.path}: {error.strerror}", "put the file back, or name the right one in path"
            ) from error
        return status.st_dev, status.st_ino

    def _follow(self) -> None:
        """Let go of a file that the path no longer names."""
        identity = self._now()
        if identity != self._identity:
            self.close()
            self._identity = identity
