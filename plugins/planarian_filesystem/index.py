"""What a layer looked like when it was last read: per directory, by inode, so that what did not change costs a stat.

A row says: the directory with this inode held these names with these identities, and was written as this tree. It is
only believed name by name, where inode, size, mtime and ctime are those of now. The index lies in the store, never in
the layer, and is a cache: lost, torn or of another epoch it is begun anew, and the next capture reads everything.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planarian_filesystem.store import Store

_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS directories (
    inode INTEGER PRIMARY KEY, names BLOB NOT NULL, stamps BLOB NOT NULL, below BLOB NOT NULL,
    tree TEXT NOT NULL, gaps TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS grants (inode INTEGER PRIMARY KEY, mode INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS links (inode TEXT PRIMARY KEY, label TEXT NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Row:
    """``names`` NUL-separated and sorted, ``stamps`` four numbers for each (inode, size, mtime, ctime; a ctime of 0
    matches nothing: not provably clean), ``below`` the digests of the subdirectories, ``gaps`` a JSON list or empty.
    """

    names: bytes
    stamps: bytes
    below: bytes
    tree: str
    gaps: str = ""


class Index:
    """The index of one layer; a context. Changes stay in memory until :meth:`commit`."""

    def __init__(self, store: Store, layer: Path) -> None:
        self._store = store
        self._path = index_path(store, layer)
        self._layer = str(layer)
        self.changed: dict[int, Row] = {}
        self.labels: dict[str, str] = {}
        self._database: sqlite3.Connection | None = None

    def __enter__(self) -> Index:
        try:
            self._database = self._open()
        except sqlite3.OperationalError:
            pass  # read-only or busy: go without, which costs time only
        except sqlite3.DatabaseError:
            with contextlib.suppress(sqlite3.DatabaseError, OSError):
                remove_index(self._path)
                self._database = self._open()
        return self

    def __exit__(self, *_: object) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _open(self) -> sqlite3.Connection | None:
        if not self._path.parent.is_dir():
            return None
        database = sqlite3.connect(self._path, timeout=30, isolation_level=None, check_same_thread=False)
        try:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=NORMAL")
            database.executescript(_SCHEMA)
            facts = dict(database.execute("SELECT name, value FROM facts"))
            wanted = {"version": str(_VERSION), "layer": self._layer, "epoch": self._store.epoch()}
            if any(facts.get(name) != value for name, value in wanted.items()):
                _begin_anew(database, wanted)
            self.labels = dict(database.execute("SELECT inode, label FROM links"))
        except sqlite3.Error:
            database.close()
            raise
        return database

    def fact(self, name: str) -> str:
        found = self._ask("SELECT value FROM facts WHERE name = ?", name)
        return str(found[0][0]) if found else ""

    def get(self, inode: int) -> Row | None:
        row = self.changed.get(inode)
        if row is None:
            found = self._ask("SELECT names, stamps, below, tree, gaps FROM directories WHERE inode = ?", _key(inode))
            row = Row(*found[0]) if found else None
        return row

    def granted(self, inode: int, mode: int) -> None:
        """Remember a mode that is about to be widened (:class:`planarian_filesystem.descent.Grants`)."""
        self._ask("INSERT OR REPLACE INTO grants VALUES (?, ?)", _key(inode), mode)

    def released(self, inode: int) -> None:
        self._ask("DELETE FROM grants WHERE inode = ?", _key(inode))

    def grants(self) -> dict[int, int]:
        """Inodes whose mode a process that died had widened, with the mode that they should have."""
        return dict(self._ask("SELECT inode, mode FROM grants"))

    def _ask(self, statement: str, *values: object) -> list[Any]:
        """Run a statement; nothing where there is no index or it can't answer."""
        if self._database is None:
            return []
        try:
            return self._database.execute(statement, values).fetchall()
        except sqlite3.DatabaseError:
            return []

    def label(self, inode: int, ctime_ns: int) -> str:
        """The link group of an inode: the one that a restore gave it, or one that no other inode ever had."""
        own = f"{inode}-{ctime_ns}"
        return self.labels.get(own, own)

    def commit(
        self,
        facts: dict[str, str],
        seen: Collection[int] | None = None,
        labels: dict[str, str] | None = None,
        without: Collection[str] = (),
    ) -> None:
        """Write what changed in one transaction; call it only when what the rows refer to is durable.

        ``seen``: the inodes of all directories there are; rows of others go. ``labels`` replaces those known.
        ``without``: trees that the store doesn't have; rows with them are left out.
        """
        if self._database is None:
            return
        rows = (
            (_key(inode), row.names, row.stamps, row.below, row.tree, row.gaps)
            for inode, row in self.changed.items()
            if row.tree not in without
        )
        try:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany("INSERT OR REPLACE INTO directories VALUES (?, ?, ?, ?, ?, ?)", rows)
            self._prune(seen)
            if labels is not None:
                self._database.execute("DELETE FROM links")
                self._database.executemany("INSERT OR REPLACE INTO links VALUES (?, ?)", labels.items())
            self._database.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", facts.items())
            self._database.execute("COMMIT")
            self.changed.clear()
        except sqlite3.OperationalError:
            with contextlib.suppress(sqlite3.DatabaseError):
                self._database.execute("ROLLBACK")  # what it said before is still true
        except sqlite3.DatabaseError:
            self._database.close()
            self._database = None
            remove_index(self._path)

    def _prune(self, seen: Collection[int] | None) -> None:
        if seen is None or self._database is None:
            return
        known = self._database.execute("SELECT count(*) FROM directories").fetchone()[0]
        if known > len(seen):
            keep = {_key(inode) for inode in seen}
            gone = [found for found in self._database.execute("SELECT inode FROM directories") if found[0] not in keep]
            self._database.executemany("DELETE FROM directories WHERE inode = ?", gone)


def _key(inode: int) -> int:
    """Inodes have 64 bits, SQLite's integers 63; two that clash cost a second look, since rows are checked."""
    return inode & 0x7FFF_FFFF_FFFF_FFFF


def _begin_anew(database: sqlite3.Connection, facts: dict[str, str]) -> None:
    database.execute("BEGIN IMMEDIATE")
    for table in ("facts", "directories", "links"):
        database.execute(f"DELETE FROM {table}")  # noqa: S608 - constants
    database.executemany("INSERT INTO facts VALUES (?, ?)", facts.items())
    database.execute("COMMIT")


def index_path(store: Store, layer: Path) -> Path:
    return store.indexes / f"{hashlib.sha256(os.fsencode(layer)).hexdigest()[:32]}.sqlite"


def remove_index(path: Path) -> None:
    """Forget an index. Idempotent."""
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def root_of_index(path: Path) -> str:
    """The root object that an index builds on, for the collector; sqlite3.DatabaseError when it can't be read."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as database:
        found = database.execute("SELECT value FROM facts WHERE name = 'root'").fetchone()
        return str(found[0]) if found else ""
