"""The statepoint registry: SQLite in the home (paper, section 6.2). Its commit is the last step of every operation.

Records are the model's values as JSON; columns hold only what is searched for.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from planarian_core.boot import boot_id
from planarian_core.codec import decode
from planarian_core.database import Database, RecordTable, to_json
from planarian_core.effects import EffectLog
from planarian_core.errors import LineageError
from planarian_core.model import (
    Application,
    Approval,
    Branch,
    Domain,
    Drill,
    Evidence,
    Gap,
    Hold,
    Outcome,
    SandboxRecord,
    Standby,
    Statepoint,
    Status,
    utc_now,
)


@dataclass(frozen=True)
class Operation:
    """A journal entry: an operation that was begun and has not ended. ``phase`` is the last step that was completed.

    ``kind``: ``create``, ``snapshot``, ``rollback``, ``fork``, ``remove``, ``restore``, ``apply``, ``prune`` or
    ``import``. ``statepoint_id``: what it makes, goes to. ``details`` are the kind's own, JSON-safe.
    """

    id: str
    kind: str
    sandbox_id: str
    statepoint_id: str = ""
    phase: str = "begun"
    safety_id: str | None = None
    files_only: bool = False
    pid: int = field(default_factory=os.getpid)
    started_at: str = field(default_factory=utc_now)
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Standing:
    """What decides whether a sandbox may call a remote service now. ``fence``: why it is fenced off, if it is;
    ``unsettled``: the end of an earlier call isn't known.
    """

    closed: bool
    rolling_back: bool
    fence: str | None
    unsettled: bool


_STANDING = """
SELECT (SELECT json_extract(record, '$.closed') FROM sandboxes WHERE id = ?1),
    EXISTS (SELECT 1 FROM operations WHERE sandbox_id = ?1 AND json_extract(record, '$.kind') = 'rollback'),
    (SELECT json_extract(record, '$.reason') FROM fences
     WHERE sandbox_id = ?1 AND json_extract(record, '$.subject') = ?2 LIMIT 1),
    EXISTS (SELECT 1 FROM effects WHERE sandbox_id = ?1 AND service = ?2 AND state = 'sent')
    OR EXISTS (SELECT 1 FROM effect_reservations WHERE sandbox_id = ?1 AND service = ?2 AND boot <> ?3)
"""


class Registry(Database):
    """Statepoints, branches, evidence and the operation journal of one home."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.holds = RecordTable(self, "holds", Hold)
        self.drills = RecordTable(self, "drills", Drill)
        self.standbys = RecordTable(self, "standbys", Standby)
        self.applications = RecordTable(self, "applications", Application)
        self.approvals = RecordTable(self, "approvals", Approval)
        self.effects = EffectLog(self)

    # --- sandboxes and branches ---

    def add_sandbox(
        self,
        record: SandboxRecord,
        branch: Branch,
        operation: Operation | None = None,
        taken: Standby | None = None,
    ) -> None:
        """Make a sandbox and its branch known, together with the operation that makes it and the copy it is made of.

        Raises:
            LineageError: ``sandbox-name-taken`` by an open sandbox; nothing was changed.
        """
        with self.transaction() as connection:
            if record.name:
                check_free(record.name, self.sandboxes())
            if operation is not None:
                _begin(connection, operation)
            if taken is not None:
                self.standbys.remove(taken.id, connection)
            connection.execute(
                "INSERT INTO sandboxes (id, name, record) VALUES (?, ?, ?)", (record.id, record.name, to_json(record))
            )
            connection.execute(
                "INSERT INTO branches (id, sandbox_id, record) VALUES (?, ?, ?)",
                (branch.id, record.id, to_json(branch)),
            )

    def adopt(
        self,
        record: SandboxRecord,
        branch: Branch,
        lineage: Sequence[Evidence],
        fences: Sequence[Gap],
        operation: Operation,
    ) -> None:
        """The commit point of an import: a sandbox with all its statepoints, the oldest first, and their outcomes."""
        with self.transaction() as connection:
            connection.execute(
                "INSERT INTO sandboxes (id, name, record) VALUES (?, ?, ?)", (record.id, record.name, to_json(record))
            )
            connection.execute(
                "INSERT INTO branches (id, sandbox_id, record) VALUES (?, ?, ?)",
                (branch.id, record.id, to_json(branch)),
            )
            for gap in fences:
                connection.execute("INSERT INTO fences (sandbox_id, record) VALUES (?, ?)", (record.id, to_json(gap)))
            for evidence in lineage:
                _insert_evidence(connection, evidence)
            connection.execute("DELETE FROM operations WHERE id = ?", (operation.id,))

    def known(self, ids: Mapping[str, Sequence[str]]) -> list[str]:
        """Which of these ids, by the name of their table, are there already."""
        tables = ("sandboxes", "branches", "statepoints", "outcomes")
        return [
            value
            for table in tables
            for value in ids.get(table, ())
            if self.rows(f"SELECT 1 FROM {table} WHERE id = ?", value)  # noqa: S608  # constants
        ]

    def update_sandbox(self, record: SandboxRecord) -> None:
        with self.transaction() as connection:
            _put_sandbox(connection, record)

    def sandbox(self, sandbox_id: str) -> SandboxRecord:
        """One sandbox by its exact id; LineageError if there is none."""
        found = self.records("SELECT record FROM sandboxes WHERE id = ?", sandbox_id)
        if not found:
            raise _no_sandbox(sandbox_id)
        with self._translated():
            return decode(SandboxRecord, found[0])

    def sandboxes(self) -> list[SandboxRecord]:
        """All sandboxes, oldest first, closed ones too."""
        records = self.records("SELECT record FROM sandboxes ORDER BY seq")
        with self._translated():
            return [decode(SandboxRecord, record) for record in records]

    def branch(self, sandbox_id: str) -> Branch:
        """The branch of a sandbox; LineageError if there is none."""
        found = self.records("SELECT record FROM branches WHERE sandbox_id = ?", sandbox_id)
        if not found:
            raise _no_sandbox(sandbox_id)
        with self._translated():
            return decode(Branch, found[0])

    def branches(self) -> list[Branch]:
        """The branches of all sandboxes."""
        with self._translated():
            return [decode(Branch, record) for record in self.records("SELECT record FROM branches")]

    def fence(self, sandbox_id: str, gap: Gap) -> None:
        """Bar a fork from a remote service; ``gap.subject`` is the service."""
        with self.transaction() as connection:
            connection.execute("INSERT INTO fences (sandbox_id, record) VALUES (?, ?)", (sandbox_id, to_json(gap)))

    def standing(self, sandbox_id: str, service: str) -> Standing:
        """In one question, because it is asked before each call; LineageError if there is no such sandbox."""
        closed, rolling_back, fence, unsettled = self.rows(_STANDING, sandbox_id, service, boot_id())[0]
        if closed is None:
            raise _no_sandbox(sandbox_id)
        return Standing(bool(closed), bool(rolling_back), fence, bool(unsettled))

    def fences(self, sandbox_id: str) -> list[Gap]:
        return [decode(Gap, r) for r in self.records("SELECT record FROM fences WHERE sandbox_id = ?", sandbox_id)]

    # --- statepoints ---

    def add(self, statepoint: Statepoint, operation: Operation | None = None) -> None:
        """Make a statepoint known, together with the operation that makes it. One that is committed from the start,
        since it shares all that it holds, becomes its branch's head.
        """
        with self.transaction() as connection:
            if operation:
                _begin(connection, operation)
            connection.execute(
                "INSERT INTO statepoints (id, sandbox_id, status, record) VALUES (?, ?, ?, ?)",
                (statepoint.id, statepoint.sandbox_id, statepoint.status.value, to_json(statepoint)),
            )
            if statepoint.status is Status.COMMITTED:
                _move_head(connection, statepoint.sandbox_id, statepoint.id)

    def commit(
        self, statepoint: Statepoint, operation: Operation | None = None, *, move_head: bool = True
    ) -> Statepoint:
        """The commit point of a snapshot: the statepoint becomes restorable and its branch's head, the operation ends.

        Returns the statepoint as committed.
        """
        committed = replace(statepoint, status=Status.COMMITTED)
        with self.transaction() as connection:
            _put_statepoint(connection, committed)
            if move_head:
                _move_head(connection, committed.sandbox_id, committed.id)
            if operation:
                connection.execute("DELETE FROM operations WHERE id = ?", (operation.id,))
        return committed

    def discard(self, statepoint: Statepoint, error: str, operation: Operation | None = None) -> None:
        """A snapshot that failed: kept as ``discarded``, with the reason, never restorable."""
        with self.transaction() as connection:
            _put_statepoint(connection, replace(statepoint, status=Status.DISCARDED, error=error))
            if operation:
                connection.execute("DELETE FROM operations WHERE id = ?", (operation.id,))

    def statepoint(self, statepoint_id: str) -> Statepoint:
        """One statepoint by its exact id; LineageError if there is none."""
        found = self.find(statepoint_id)
        if found is None:
            raise LineageError(f"no statepoint {statepoint_id}", code="statepoint-unknown", remedy="planarian log")
        return found

    def find(self, statepoint_id: str) -> Statepoint | None:
        """One statepoint by its exact id, if there is one."""
        found = self.records("SELECT record FROM statepoints WHERE id = ?", statepoint_id)
        with self._translated():
            return decode(Statepoint, found[0]) if found else None

    def statepoints(self, sandbox_id: str | None = None) -> list[Statepoint]:
        """Statepoints in the order in which they were begun; of one sandbox, or all."""
        query, arguments = "SELECT record FROM statepoints ORDER BY seq", ()
        if sandbox_id is not None:
            query, arguments = "SELECT record FROM statepoints WHERE sandbox_id = ? ORDER BY seq", (sandbox_id,)  # type: ignore[assignment]  # tuples of other length
        records = self.records(query, *arguments)
        with self._translated():
            return [decode(Statepoint, record) for record in records]

    def named(self, sandbox_id: str, name: str) -> Statepoint | None:
        """The committed statepoint of a sandbox that has this name."""
        query = (
            "SELECT record FROM statepoints WHERE sandbox_id = ? AND json_extract(record, '$.name') = ? "
            "AND status = 'committed'"
        )
        found = self.records(query, sandbox_id, name)
        return decode(Statepoint, found[0]) if found else None

    def sharers(self, domain: Domain, owner: str) -> set[str]:
        """The ids of the statepoints, committed or being made, whose files (or processes) are kept under ``owner``."""
        part = f"json_extract(record, '$.{domain.value}"
        live = "status IN ('pending', 'committed')"
        query = (
            f"SELECT id FROM statepoints WHERE {part}.owner') = ? AND {live} UNION "  # noqa: S608  # constants
            f"SELECT id FROM statepoints WHERE id = ? AND {live} AND {part}') IS NOT NULL "
            f"AND COALESCE({part}.owner'), '') = ''"
        )
        return {row[0] for row in self.rows(query, owner, owner)}

    # --- pruning ---

    def count(self, sandbox_id: str) -> int:
        """How many committed statepoints a sandbox has."""
        query = "SELECT COUNT(*) FROM statepoints WHERE sandbox_id = ? AND status = 'committed'"
        return int(self.rows(query, sandbox_id)[0][0])

    def prune(
        self, statepoints: Sequence[Statepoint], operation: Operation, needed: Callable[[], Collection[str]]
    ) -> Operation | None:
        """Take committed statepoints out of use for good, and begin the operation that clears up after them.

        Args:
            needed: says, within the transaction, which ones must stay.

        Returns:
            The operation, whose details name the ``statepoints``; None when all of them stay.
        """
        with self.transaction() as connection:
            spared = needed()
            current = [self.find(s.id) for s in statepoints if s.id not in spared]
            marked = [s for s in current if s is not None and s.status is Status.COMMITTED]
            if not marked:
                return None
            for statepoint in marked:
                _put_statepoint(connection, replace(statepoint, status=Status.PRUNED))
            operation = replace(operation, details={"statepoints": [s.id for s in marked]})
            _begin(connection, operation)
        return operation

    def settle(self, pruned: Sequence[Statepoint], operations: Sequence[Operation]) -> None:
        """Record what is left of pruned statepoints, and end the operations that cleared up after them."""
        with self.transaction() as connection:
            for statepoint in pruned:
                _put_statepoint(connection, statepoint)
            for operation in operations:
                connection.execute("DELETE FROM operations WHERE id = ?", (operation.id,))

    # --- evidence ---

    def add_outcome(self, outcome: Outcome) -> None:
        with self.transaction() as connection:
            connection.execute(
                "INSERT INTO outcomes (id, statepoint_id, record) VALUES (?, ?, ?)",
                (outcome.id, outcome.statepoint_id, to_json(outcome)),
            )

    def outcomes(self, statepoint_id: str) -> tuple[Outcome, ...]:
        """The outcomes appended to a statepoint, oldest first."""
        query = "SELECT record FROM outcomes WHERE statepoint_id = ? ORDER BY seq"
        return tuple(decode(Outcome, r) for r in self.records(query, statepoint_id))

    # --- journal ---

    def begin(self, operation: Operation) -> Operation:
        with self.transaction() as connection:
            _begin(connection, operation)
        return operation

    def advance(self, operation: Operation, phase: str, **changes: Any) -> Operation:
        """Record that ``phase`` is done; what follows may be repeated after a crash."""
        operation = replace(operation, phase=phase, **changes)
        with self.transaction() as connection:
            connection.execute("UPDATE operations SET record = ? WHERE id = ?", (to_json(operation), operation.id))
        return operation

    def end(
        self,
        operation: Operation,
        *,
        record: SandboxRecord | None = None,
        head: str | None = None,
        taken: Standby | None = None,
        left: Standby | None = None,
    ) -> None:
        """Take an operation out of the journal, together with the sandbox's new record and head.

        Args:
            taken: a copy that has become the sandbox's own.
            left: what it has left in exchange, to be removed.
        """
        with self.transaction() as connection:
            if taken is not None:
                self.standbys.remove(taken.id, connection)
            if left is not None:
                self.standbys.put(left.id, left, connection)
            if record is not None:
                _put_sandbox(connection, record)
            if head is not None:
                _move_head(connection, operation.sandbox_id, head)
            connection.execute("DELETE FROM operations WHERE id = ?", (operation.id,))

    def operations(self, sandbox_id: str | None = None) -> list[Operation]:
        """Operations under way, or left behind by a runtime that was killed."""
        if sandbox_id is None:
            records = self.records("SELECT record FROM operations")
        else:
            records = self.records("SELECT record FROM operations WHERE sandbox_id = ?", sandbox_id)
        return [decode(Operation, record) for record in records]

    def forget_sandbox(self, sandbox_id: str, operation: Operation | None = None) -> None:
        """Remove a sandbox that never came to be, or that was removed for good, with all that hangs on it.

        What it had added to the disk and others share is accounted for to the oldest of those from now on.
        """
        with self.transaction() as connection:
            self._bequeath(connection, sandbox_id)
            connection.execute(
                "DELETE FROM outcomes WHERE statepoint_id IN (SELECT id FROM statepoints WHERE sandbox_id = ?)",
                (sandbox_id,),
            )
            for table in ("holds", "drills"):
                query = f"DELETE FROM {table} WHERE id IN (SELECT id FROM statepoints WHERE sandbox_id = ?)"  # noqa: S608  # constants
                connection.execute(query, (sandbox_id,))
            for table, column in (("statepoints", "sandbox_id"), ("branches", "sandbox_id"), ("fences", "sandbox_id")):
                connection.execute(f"DELETE FROM {table} WHERE {column} = ?", (sandbox_id,))  # noqa: S608  # constants
            connection.execute("DELETE FROM sandboxes WHERE id = ?", (sandbox_id,))
            if operation:
                connection.execute("DELETE FROM operations WHERE id = ?", (operation.id,))

    def _bequeath(self, connection: sqlite3.Connection, sandbox_id: str) -> None:
        query = "SELECT record FROM statepoints WHERE sandbox_id = ? AND stored > 0"
        for record in self.records(query, sandbox_id):
            leaving = decode(Statepoint, record)
            for artefact in (leaving.files, leaving.processes):
                if artefact is None or not artefact.stored:
                    continue
                domain = artefact.domain.value
                heirs = self.records(
                    f"SELECT record FROM statepoints WHERE json_extract(record, '$.{domain}.owner') = ? "  # noqa: S608  # a constant
                    "AND sandbox_id != ? AND status = 'committed' ORDER BY seq LIMIT 1",
                    leaving.owner(artefact),
                    sandbox_id,
                )
                if heirs:
                    heir = decode(Statepoint, heirs[0])
                    inherited = getattr(heir, domain)
                    inherited = replace(inherited, stored=inherited.stored + artefact.stored)
                    _put_statepoint(connection, replace(heir, **{domain: inherited}))


def check_free(name: str, sandboxes: Iterable[SandboxRecord]) -> None:
    """LineageError when an open one of these sandboxes has the name."""
    if any(record.name == name for record in sandboxes if not record.closed):
        raise LineageError(f"a sandbox called {name!r} exists", code="sandbox-name-taken", remedy="choose another name")


def _no_sandbox(sandbox_id: str) -> LineageError:
    return LineageError(f"no sandbox {sandbox_id}", code="sandbox-unknown", remedy="planarian list")


def _begin(connection: sqlite3.Connection, operation: Operation) -> None:
    connection.execute(
        "INSERT INTO operations (id, sandbox_id, record) VALUES (?, ?, ?)",
        (operation.id, operation.sandbox_id, to_json(operation)),
    )


def _insert_evidence(connection: sqlite3.Connection, evidence: Evidence) -> None:
    statepoint = evidence.statepoint
    connection.execute(
        "INSERT INTO statepoints (id, sandbox_id, status, record) VALUES (?, ?, ?, ?)",
        (statepoint.id, statepoint.sandbox_id, statepoint.status.value, to_json(statepoint)),
    )
    for outcome in evidence.outcomes:
        connection.execute(
            "INSERT INTO outcomes (id, statepoint_id, record) VALUES (?, ?, ?)",
            (outcome.id, outcome.statepoint_id, to_json(outcome)),
        )


def _put_sandbox(connection: sqlite3.Connection, record: SandboxRecord) -> None:
    connection.execute("UPDATE sandboxes SET record = ? WHERE id = ?", (to_json(record), record.id))


def _put_statepoint(connection: sqlite3.Connection, statepoint: Statepoint) -> None:
    connection.execute(
        "UPDATE statepoints SET status = ?, record = ? WHERE id = ?",
        (statepoint.status.value, to_json(statepoint), statepoint.id),
    )


def _move_head(connection: sqlite3.Connection, sandbox_id: str, head: str) -> None:
    row = connection.execute("SELECT id, record FROM branches WHERE sandbox_id = ?", (sandbox_id,)).fetchone()
    branch = replace(decode(Branch, json.loads(row[1])), head=head)
    connection.execute("UPDATE branches SET record = ? WHERE id = ?", (to_json(branch), row[0]))
