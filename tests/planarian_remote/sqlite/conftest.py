"""SQLite databases with the service kind that serves them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from planarian_core.registry import Registry
from planarian_core.testing.sqlite_service import SANDBOX, ServedDatabase
from planarian_remote.configuration import Table
from planarian_remote.sqlite.kind import make


@pytest.fixture
def make_database(tmp_path: Path) -> Iterator[Callable[..., ServedDatabase]]:
    """Databases with settings of their own."""
    made: list[ServedDatabase] = []

    def make_one(**settings: object) -> ServedDatabase:
        folder = tmp_path / f"database-{len(made)}"
        folder.mkdir()
        path = folder / "data.db"
        other = apsw.Connection(str(path))
        other.set_busy_timeout(2000)
        other.execute("PRAGMA user_version = 1")  # a file that holds nothing
        raw = {"kind": "sql", "dialect": "sqlite", "path": str(path), **settings}
        kind = make(Table("notes", raw), SANDBOX)
        made.append(ServedDatabase(path, kind, Registry(folder / "registry"), other))
        return made[-1]

    yield make_one
    for database in made:
        database.close()


@pytest.fixture
def database(make_database: Callable[..., ServedDatabase]) -> ServedDatabase:
    return make_database()
