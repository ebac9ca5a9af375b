"""What a power cut leaves of a home's undo log: nothing that wasn't durable, and another boot of the host."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path


def lose_entries(registry: Path, sandbox_id: str, service: str, after: int) -> None:
    """Take the log's entries after a number away, as if they hadn't reached the disk, and the host had gone down."""
    with closing(sqlite3.connect(registry)) as connection, connection:
        key = (sandbox_id, service)
        connection.execute("DELETE FROM effects WHERE sandbox_id = ? AND service = ? AND number > ?", (*key, after))
        connection.execute(
            "UPDATE effect_reservations SET boot = 'the one before' WHERE sandbox_id = ? AND service = ?", key
        )
