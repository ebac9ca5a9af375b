"""Our table in the database: one row per effect, committed with it. Its state is the truth about the effect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import apsw

from planarian_core.model import Effect, EffectState
from planarian_remote.sqlite.settings import OWN_PREFIX

TABLE = f"{OWN_PREFIX}effects"

_CREATE = f"""CREATE TABLE main.{TABLE} (
    id INTEGER PRIMARY KEY, sandbox TEXT NOT NULL, service TEXT NOT NULL, number INTEGER NOT NULL,
    state TEXT NOT NULL, summary TEXT NOT NULL, images BLOB, UNIQUE (sandbox, service, number)
)"""
_ONE = "sandbox = ? AND service = ? AND number = ?"


@dataclass(frozen=True)
class Entry:
    id: int
    state: EffectState
    summary: str


def exists(connection: apsw.Connection) -> bool:
    query = "SELECT EXISTS (SELECT 1 FROM main.sqlite_schema WHERE type = 'table' AND name = ?)"
    return bool(connection.execute(query, (TABLE,)).get)


def prepare(connection: apsw.Connection) -> None:
    """Make the table, within the caller's transaction."""
    if not exists(connection):
        connection.execute(_CREATE)


def find(connection: apsw.Connection, effect: Effect) -> Entry | None:
    if not exists(connection):
        return None
    query = f"SELECT id, state, summary FROM main.{TABLE} WHERE {_ONE}"  # noqa: S608  # constants
    row = connection.execute(query, (effect.sandbox_id, effect.service, effect.number)).fetchone()
    return None if row is None else Entry(row[0], EffectState(row[1]), row[2])


def images(connection: apsw.Connection, entry: Entry) -> bytes | None:
    query = f"SELECT images FROM main.{TABLE} WHERE id = ?"  # noqa: S608  # constants
    found: bytes | None = connection.execute(query, (entry.id,)).get
    return found


def add(
    connection: apsw.Connection, effect: Effect, state: EffectState, summary: str = "", encoded: bytes | None = None
) -> None:
    """apsw.ConstraintError where the effect is there already."""
    query = f"INSERT INTO main.{TABLE} (sandbox, service, number, state, summary, images) VALUES (?, ?, ?, ?, ?, ?)"  # noqa: S608  # constants
    connection.execute(query, (effect.sandbox_id, effect.service, effect.number, state.value, summary, encoded))


def set_state(connection: apsw.Connection, entry: Entry, state: EffectState) -> None:
    connection.execute(f"UPDATE main.{TABLE} SET state = ? WHERE id = ?", (state.value, entry.id))  # noqa: S608  # constants


def forget(connection: apsw.Connection, effects: Sequence[Effect]) -> None:
    """Drop entries, and the table with the last one."""
    if not exists(connection):
        return
    for effect in effects:
        query = f"DELETE FROM main.{TABLE} WHERE {_ONE}"  # noqa: S608  # constants
        connection.execute(query, (effect.sandbox_id, effect.service, effect.number))
    if not connection.execute(f"SELECT EXISTS (SELECT 1 FROM main.{TABLE})").get:  # noqa: S608  # constants
        connection.execute(f"DROP TABLE main.{TABLE}")
