"""A home with a remote service ``notes`` (a table ``notes(id, text)``, empty) of each kind of database that needs no
network, for stories that adapters' tests tell with each.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from planarian_core.sandbox import Sandbox
from planarian_core.testing.branched_notes import Notes, Outside

KINDS = [
    pytest.param("sqlite"),
    pytest.param("postgresql", marks=pytest.mark.needs("postgresql")),
    pytest.param("doltlite", marks=pytest.mark.needs("doltlite")),
]
TOOL = "execute_sql"
_TABLE = "CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT)"
_ALL = "SELECT text FROM notes ORDER BY id"


@dataclass(frozen=True)
class ServedNotes:
    """``rows`` reads a sandbox's rows past Planarian; ``branches``: forks have rows of their own, else they are fenced
    off.
    """

    home: Path
    rows: Callable[[Sandbox], list[str]]
    branches: bool = False


@contextmanager
def serve(kind: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[ServedNotes]:
    """``kind``: one of :data:`KINDS`. The home is ``folder/home``."""
    with _SERVED[kind](folder, request) as notes:
        yield notes


@contextmanager
def _sqlite(folder: Path, _: pytest.FixtureRequest) -> Iterator[ServedNotes]:
    file = folder / "notes.db"
    home = _home(folder, 'kind = "sql"\ndialect = "sqlite"', "path", str(file))
    with closing(sqlite3.connect(file)) as owner, owner:
        owner.execute(_TABLE)

    def rows(_: Sandbox) -> list[str]:
        with closing(sqlite3.connect(file)) as reader:
            return [text for (text,) in reader.execute(_ALL)]

    yield ServedNotes(home, rows)


@contextmanager
def _postgresql(folder: Path, request: pytest.FixtureRequest) -> Iterator[ServedNotes]:
    cluster = request.getfixturevalue("postgresql")
    name = cluster.create_database(owner="agent")
    home = _home(folder, 'kind = "sql"\ndialect = "postgresql"', "dsn", cluster.dsn(name, "agent"))
    with cluster.connect(name, "agent") as owner:
        owner.execute(_TABLE)

    def rows(_: Sandbox) -> list[str]:
        with cluster.connect(name, "agent") as reader:
            return [text for (text,) in reader.execute(_ALL)]

    try:
        yield ServedNotes(home, rows)
    finally:
        cluster.drop_database(name)


@contextmanager
def _doltlite(folder: Path, _: pytest.FixtureRequest) -> Iterator[ServedNotes]:
    outside = Outside()
    try:
        notes = Notes(folder, outside)
        for statement in ("DELETE FROM notes", "SELECT dolt_commit('-A', '-m', 'empty')"):
            outside.ask(notes.database, "", statement)
        yield ServedNotes(notes.home, lambda sandbox: notes.texts(sandbox.id), branches=True)
    finally:
        outside.close()


_SERVED = {"sqlite": _sqlite, "postgresql": _postgresql, "doltlite": _doltlite}


def _home(folder: Path, kind: str, key: str, where: str) -> Path:
    home = folder / "home"
    home.mkdir()
    (home / "planarian.toml").write_text(f"[services.notes]\n{kind}\n{key} = {json.dumps(where)}\n")
    return home
