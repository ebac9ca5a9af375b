"""The registry's tables, one step per version of the format: a home of any earlier version is brought up to date."""

from __future__ import annotations

import sqlite3

_STEPS = (
    """
CREATE TABLE sandboxes (seq INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, name TEXT NOT NULL, record TEXT NOT NULL);
CREATE TABLE branches (id TEXT PRIMARY KEY, sandbox_id TEXT NOT NULL, record TEXT NOT NULL);
CREATE TABLE statepoints (seq INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, sandbox_id TEXT NOT NULL,
    status TEXT NOT NULL, record TEXT NOT NULL);
CREATE INDEX statepoints_sandbox ON statepoints (sandbox_id);
CREATE TABLE outcomes (seq INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, statepoint_id TEXT NOT NULL,
    record TEXT NOT NULL);
CREATE INDEX outcomes_statepoint ON outcomes (statepoint_id);
CREATE TABLE operations (id TEXT PRIMARY KEY, sandbox_id TEXT NOT NULL, record TEXT NOT NULL);
CREATE TABLE fences (sandbox_id TEXT NOT NULL, record TEXT NOT NULL);
""",
    """
CREATE TABLE holds (id TEXT PRIMARY KEY, record TEXT NOT NULL);
CREATE TABLE drills (id TEXT PRIMARY KEY, record TEXT NOT NULL);
CREATE TABLE standbys (id TEXT PRIMARY KEY, record TEXT NOT NULL);
CREATE TABLE applications (id TEXT PRIMARY KEY, record TEXT NOT NULL);
CREATE INDEX branches_sandbox ON branches (sandbox_id);
CREATE INDEX statepoints_files ON statepoints (json_extract(record, '$.files.owner'));
CREATE INDEX statepoints_processes ON statepoints (json_extract(record, '$.processes.owner'));
CREATE INDEX statepoints_name ON statepoints (sandbox_id, json_extract(record, '$.name'));
ALTER TABLE statepoints ADD COLUMN stored INTEGER GENERATED ALWAYS AS (
    COALESCE(json_extract(record, '$.files.stored'), 0) + COALESCE(json_extract(record, '$.processes.stored'), 0)
) VIRTUAL;
CREATE INDEX statepoints_stored ON statepoints (status, stored);
""",
    """
CREATE TABLE effects (sandbox_id TEXT NOT NULL, service TEXT NOT NULL, number INTEGER NOT NULL, parent INTEGER NOT NULL,
    state TEXT NOT NULL, digest TEXT NOT NULL, record TEXT NOT NULL, PRIMARY KEY (sandbox_id, service, number))
    WITHOUT ROWID;
CREATE INDEX effects_state ON effects (sandbox_id, service, state, number);
CREATE TABLE approvals (id TEXT PRIMARY KEY, record TEXT NOT NULL);
""",
    """
CREATE TABLE effect_reservations (sandbox_id TEXT NOT NULL, service TEXT NOT NULL, through INTEGER NOT NULL,
    boot TEXT NOT NULL, PRIMARY KEY (sandbox_id, service)) WITHOUT ROWID;
""",
)
SCHEMA_VERSION = len(_STEPS)


def migrate(connection: sqlite3.Connection) -> None:
    """Make the tables, or bring them up to date, in one transaction."""
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("BEGIN IMMEDIATE")
    version = connection.execute("PRAGMA user_version").fetchone()[0]  # another process may have been faster
    for step in _STEPS[version:]:
        for statement in step.split(";"):
            if statement.strip():
                connection.execute(statement)
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    connection.execute("COMMIT")
