"""Numbers of effects that may be in use, durably known before they are: for services that can say by the number alone
what became of a call (:class:`planarian_core.interfaces.KeepsEntries`).

A log entry that isn't waited for is on the disk some time later. What a power cut takes of the log until then is asked
of the service: about each reserved number that the log doesn't have. So one flush of the disk is enough for many calls.
"""

from __future__ import annotations

import sqlite3

from planarian_core.boot import boot_id
from planarian_core.database import Database

_AHEAD = 32
"""Numbers that are reserved at a time; so many questions does a power cut cost at most."""


class EffectReservations:
    """Those of one home: for each sandbox and service, up to which number, and by which boot of the host."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._own: set[tuple[str, str]] = set()
        """Sandboxes and services for which this process has reserved numbers."""

    def covers(self, connection: sqlite3.Connection, sandbox_id: str, service: str, number: int) -> bool:
        query = "SELECT 1 FROM effect_reservations WHERE sandbox_id = ? AND service = ? AND boot = ? AND through >= ?"
        return connection.execute(query, (sandbox_id, service, boot_id(), number)).fetchone() is not None

    def extend(self, connection: sqlite3.Connection, sandbox_id: str, service: str, number: int) -> None:
        """Reserve a number and some after it. The caller's transaction is a durable one."""
        connection.execute(
            "INSERT OR REPLACE INTO effect_reservations (sandbox_id, service, through, boot) VALUES (?, ?, ?, ?)",
            (sandbox_id, service, number + _AHEAD - 1, boot_id()),
        )
        self._own.add((sandbox_id, service))

    def of_former_boot(self, sandbox_id: str, service: str) -> int | None:
        """Up to which number calls may have been made before the host was started anew; None if there are none."""
        query = "SELECT through FROM effect_reservations WHERE sandbox_id = ? AND service = ? AND boot <> ?"
        found = self._database.rows(query, sandbox_id, service, boot_id())
        return int(found[0][0]) if found else None

    def settled(self, connection: sqlite3.Connection, sandbox_id: str, service: str) -> None:
        """The log has all that was made before."""
        query = "DELETE FROM effect_reservations WHERE sandbox_id = ? AND service = ? AND boot <> ?"
        connection.execute(query, (sandbox_id, service, boot_id()))

    def release(self) -> None:
        """Give back what this process reserved, when it ends: all entries are durable from now on."""
        if not self._own:
            return
        with self._database.transaction() as connection:
            query = "DELETE FROM effect_reservations WHERE sandbox_id = ? AND service = ? AND boot = ?"
            connection.executemany(query, [(*key, boot_id()) for key in self._own])
        self._own.clear()
