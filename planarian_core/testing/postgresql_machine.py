"""A state machine over ``sql`` on PostgreSQL: random statements through the undo log, statepoints, rollbacks to any of
them, and another writer in between. Every position is held against a canonical dump.

What the other writer does isn't undone: a rollback leads to the dump of the statepoint with the other's rows changed as
it changed them, or it is refused with a conflict, and then nothing was changed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from planarian_core import Planarian
from planarian_core.errors import CompensationError, RemoteError
from planarian_core.testing.fakes import FakePlugin
from planarian_core.testing.postgresql import PrivateCluster, server_version
from planarian_core.testing.postgresql_contents import DatabaseContents, Dump, differences
from planarian_core.testing.postgresql_service import HIDDEN, ROLE
from planarian_core.testing.postgresql_statements import RandomSchema

SERVICE = "db"
_SEED, _AT = st.integers(0, 2**32), st.integers(0, 99)

RowCounts = dict[str, Counter[str]]
"""How often each row, as text, is in each table."""


@dataclass(frozen=True)
class Kept:
    """A statepoint: the dump at it, and what the other writer had done until then."""

    statepoint: str
    dump: Dump
    foreign: RowCounts


@dataclass
class Totals:
    """Of a whole run, printed by the test."""

    examples: int = 0
    applied: int = 0
    failed: int = 0
    refused: int = 0
    rollbacks: int = 0
    foreign: int = 0
    conflicts: int = 0


class SqlMachine(RuleBasedStateMachine):
    """One database with a random schema. The class attributes are set by the test that runs it."""

    cluster: ClassVar[PrivateCluster]
    totals: ClassVar[Totals]

    def service(self) -> str:
        """The service's table in ``planarian.toml``, without its heading: a direct connection."""
        dsn = self.cluster.dsn(self.database, ROLE, socket=True)
        return f'kind = "sql"\ndialect = "postgresql"\ndsn = "{dsn}"\n'

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="planarian-"))
        self.log: list[str] = []
        self.kept: list[Kept] = []
        self.foreign: RowCounts = {}
        self.shapes: dict[str, set[str]] = {}
        self._open: list[Callable[[], None]] = []
        self.totals.examples += 1

    @initialize(seed=_SEED)
    def begin(self, seed: int) -> None:
        import psycopg

        self.schema = RandomSchema(Random(seed), server_version())  # noqa: S311  # no secret
        self.database = self.cluster.create_database(owner=ROLE)
        self._open.append(lambda: self.cluster.drop_database(self.database))
        self.other = self._connect(ROLE)
        for statement in self.schema.ddl:
            self.log.append(f"{statement};")
            with suppress(psycopg.Error) if statement.startswith("INSERT") else nullcontext():
                self.other.execute(statement.encode())
        self.contents = DatabaseContents(self._connect("postgres"), HIDDEN)
        home, workspace = self.folder / "home", self.folder / "workspace"
        for folder in (home, workspace):
            folder.mkdir(mode=0o700)
        (home / "planarian.toml").write_text(f"[services.{SERVICE}]\n{self.service()}")
        self.planarian = Planarian.open(home, plugins=[FakePlugin([])])
        self._open.append(self.planarian.close)
        self.sandbox = self.planarian.create_sandbox(workspace, sandbox="fake", filesystem="fake", process="fake")
        self.session = self.planarian.remote_session(self.sandbox, SERVICE)
        self.target = self.session.kind.connect()
        self._open.append(self.target.close)
        self.now = self.contents.dump()
        self._keep(self.now)

    def _connect(self, role: str) -> Any:
        connection = self.cluster.connect(self.database, role)
        self._open.append(connection.close)
        return connection

    def teardown(self) -> None:
        while self._open:
            self._open.pop()()
        shutil.rmtree(self.folder)

    # --- the agent ---

    @rule(seed=_SEED)
    def call(self, seed: int) -> None:
        self._call(self.schema.chosen(Random(seed)).statement())  # noqa: S311  # no secret

    @rule(seed=_SEED)
    def call_thrice(self, seed: int) -> None:
        chance = Random(seed)  # noqa: S311  # no secret
        for _ in range(3):
            self._call(self.schema.chosen(chance).statement())

    def _call(self, statement: str) -> None:
        self.log.append(f"{statement};")
        try:
            result = self.session.call("execute_sql", {"sql": statement}, self.target)
        except RemoteError as error:
            self.check(error.code == "call-refused", f"an error: {error!r}")
            self.log.append(f"-- refused: {error.message}")
            self.totals.refused += 1
            self.is_now(self.now, "a refused statement changed something")
            return
        if result.get("isError"):
            self.log.append(f"-- failed: {result['content'][:1]}")
            self.totals.failed += 1
            self.is_now(self.now, "a failed statement changed something")
            return
        self.totals.applied += 1
        self.now = self.contents.dump()

    @rule()
    def snapshot(self) -> None:
        self.log.append(f"-- statepoint {len(self.kept)}")
        self._keep(self.now)

    def _keep(self, dump: Dump) -> None:
        made = self.planarian.snapshot(self.sandbox)
        self.kept.append(Kept(made.id, dump, _copied(self.foreign)))

    # --- back and forth ---

    @rule(at=_AT)
    def rollback(self, at: int) -> None:
        number = at % len(self.kept)
        kept = self.kept[number]
        self.log.append(f"-- to statepoint {number}")
        self.totals.rollbacks += 1
        wanted, unknown = self._with_foreign(kept)
        try:
            self.planarian.rollback(self.sandbox, kept.statepoint)
        except CompensationError as error:
            self.log.append(f"-- {error!r}")
            self.check(_differ(self.foreign, kept.foreign), f"can't go back, and nobody else was there: {error!r}")
            self.totals.conflicts += 1
            self.is_now(self.now, "a rollback that was refused changed something")
            return
        self.check(wanted is not None, "the rollback passed over rows that another writer had changed")
        found = self.contents.dump()
        if wanted is not None:
            rows = {table: counts for table, counts in _counts(found).items() if table not in unknown}
            self.check(rows == wanted, "not the rows of the statepoint")
        if not _differ(self.foreign, kept.foreign):
            self.check(found == kept.dump, "\n".join(differences(kept.dump, found)))
        self.check(found.schema == kept.dump.schema, "\n".join(differences(kept.dump, found)))
        self.now = found

    @rule(at=_AT, then=_AT)
    def rollback_twice(self, at: int, then: int) -> None:
        """The second is a rollback of a rollback, more often than not."""
        self.rollback(at)
        self.rollback(then)

    def _with_foreign(self, kept: Kept) -> tuple[RowCounts | None, set[str]]:
        """The rows of a statepoint with what the other writer has changed since; None where that isn't possible. And
        the tables of which it can't be said, as they had other columns when it wrote: a row's text was another.
        """
        unknown = {table for table, shapes in self.shapes.items() if shapes != {_shape(kept.dump, table)}}
        rows = {table: counts for table, counts in _counts(kept.dump).items() if table not in unknown}
        for table in (self.foreign.keys() | kept.foreign.keys()) - unknown:
            since = Counter(self.foreign.get(table, Counter()))
            since.subtract(kept.foreign.get(table, Counter()))
            counts = rows.setdefault(table, Counter())
            counts.update(since)
            if min(counts.values(), default=0) < 0:
                return None, unknown
            rows[table] = +counts
        return {table: counts for table, counts in rows.items() if counts}, unknown

    # --- the other writer ---

    @rule(seed=_SEED)
    def both_write(self, seed: int) -> None:
        """The other one writes to what the agent has just written to, and the agent goes back."""
        self.snapshot()
        number = len(self.kept) - 1
        schema = self.schema.chosen(Random(seed))  # noqa: S311  # no secret
        for _ in range(2):
            self._call(schema.row_change())
        self._another_writes(schema.row_change())
        self.rollback(number)

    @rule(seed=_SEED)
    def another_writes(self, seed: int) -> None:
        schema = self.schema.chosen(Random(seed))  # noqa: S311  # no secret
        for _ in range(3):
            self._another_writes(schema.row_change())

    def _another_writes(self, statement: str) -> None:
        import psycopg

        self.log.append(f"{statement}; -- by another writer")
        try:
            self.other.execute(statement.encode())
        except psycopg.Error as error:
            self.log.append(f"-- failed: {error}")
            return
        before, self.now = _counts(self.now), self.contents.dump()
        after = _counts(self.now)
        for table in before.keys() | after.keys():
            if after.get(table) != before.get(table):
                self.shapes.setdefault(table, set()).add(_shape(self.now, table))
            counts = self.foreign.setdefault(table, Counter())
            counts.update(after.get(table, Counter()))
            counts.subtract(before.get(table, Counter()))
        self.totals.foreign += 1

    # --- judging ---

    def is_now(self, wanted: Dump, otherwise: str) -> None:
        found = self.contents.dump()
        self.check(found == wanted, "\n".join([otherwise, *differences(wanted, found)]))

    def check(self, kept: bool, otherwise: str) -> None:
        if not kept:
            raise AssertionError(f"{otherwise}\nafter:\n" + "\n".join(self.log))


def _counts(dump: Dump) -> RowCounts:
    """The machine's tables are small: every row is in a dump."""
    assert all(rows.count == len(rows.texts) for rows in dump.tables.values())
    return {table: Counter(rows.texts) for table, rows in dump.tables.items() if rows.count}


def _shape(dump: Dump, table: str) -> str:
    return "\n".join(line for line in dump.schema if line.startswith(f"column {table} #"))


def _copied(counts: RowCounts) -> RowCounts:
    return {table: Counter(rows) for table, rows in counts.items()}


def _differ(one: RowCounts, other: RowCounts) -> bool:
    """Whether any row counts differently; absent is 0."""
    for table in one.keys() | other.keys():
        left = Counter(one.get(table, Counter()))
        left.subtract(other.get(table, Counter()))
        if any(left.values()):
            return True
    return False
