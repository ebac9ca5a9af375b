"""Random schemas and statements, a second writer in between: undo and redo are exact, or nothing happens at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import apsw
import pytest
from hypothesis import HealthCheck, Phase, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from planarian_core.errors import CompensationConflict, RemoteError
from planarian_core.model import EffectState, RemotePosition
from planarian_core.registry import Registry
from planarian_core.testing.sqlite_contents import Contents
from planarian_core.testing.sqlite_service import SANDBOX, ServedDatabase
from planarian_core.testing.sqlite_statements import Schema, changes, definitions, schemas
from planarian_remote.configuration import Table
from planarian_remote.sqlite import images, rows
from planarian_remote.sqlite.capture import Change
from planarian_remote.sqlite.file import Writer
from planarian_remote.sqlite.kind import make

_EXAMPLES = int(os.environ.get("PLANARIAN_EXAMPLES", "40"))
_FAST = "/dev/shm"  # noqa: S108  # the disk would be most of the time
_SEQUENCES = "table sqlite_sequence"


class Machine(RuleBasedStateMachine):
    """``known`` holds what the database was at each position, as long as nobody else has written since."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="planarian-", dir=_FAST if os.path.isdir(_FAST) else None))
        self.known: list[tuple[RemotePosition, Contents]] = []
        self.before_others: list[RemotePosition] = []
        self.database: ServedDatabase | None = None

    @initialize(schema=schemas(), foreign_keys=st.booleans(), recursive=st.booleans(), wal=st.booleans())
    def prepare(self, schema: Schema, foreign_keys: bool, recursive: bool, wal: bool) -> None:
        path = self.folder / "data.db"
        other = apsw.Connection(str(path))
        other.execute(f"PRAGMA journal_mode = {'WAL' if wal else 'DELETE'}")
        other.execute("PRAGMA synchronous = OFF; PRAGMA user_version = 1")
        for sql in schema.script:
            with suppress(apsw.Error):  # not each of them fits
                other.execute(sql)
        # rows that refer to nothing, which only a writer without foreign keys can make, may be taken for a conflict
        other.execute(f"PRAGMA foreign_keys = {int(foreign_keys)}")
        raw = {"kind": "sql", "dialect": "sqlite", "path": str(path)}
        table = Table("notes", {**raw, "foreign_keys": foreign_keys, "recursive_triggers": recursive})
        self.database = ServedDatabase(path, make(table, SANDBOX), Registry(self.folder / "registry"), other)
        self.schema = schema
        self.remember()

    def remember(self) -> None:
        assert self.database is not None
        self.known.append((self.database.position(), self.database.contents()))

    @rule(data=st.data())
    def change_rows(self, data: st.DataObject) -> None:
        self.run(data.draw(changes(self.schema)))

    @rule(data=st.data())
    def change_definitions(self, data: st.DataObject) -> None:
        self.run(data.draw(definitions(self.schema)))

    def run(self, sql: str) -> None:
        """It takes effect and can be undone, or it changes nothing."""
        assert self.database is not None
        position, before = self.database.position(), self.database.contents()
        try:
            self.database.call(sql)
        except RemoteError as error:
            if error.code != "call-refused":
                raise
            event(f"refused: {error.message[:60]}")
            assert self.database.contents() == before, f"refused with an effect: {sql}"
            return
        if self.database.effects()[-1].state is EffectState.VOID or self.database.position() == position:
            event("an error of SQLite's")
            assert self.database.contents() == before, f"failed with an effect: {sql}"
            return
        event(f"made: {sql.split()[0]}")
        self.remember()
        after = self.known[-1]
        self.go(position, before)
        self.go(*after)

    @rule(data=st.data())
    def go_somewhere(self, data: st.DataObject) -> None:
        self.go(*data.draw(st.sampled_from(self.known)))

    def go(self, position: RemotePosition, expected: Contents) -> None:
        assert self.database is not None
        self.database.go(position)
        assert self.database.contents() == expected

    # --- another writer ---

    @rule(data=st.data())
    def another_one_writes(self, data: st.DataObject) -> None:
        """What was known is no longer so; where one can go is."""
        assert self.database is not None
        with suppress(apsw.Error):
            self.database.script(data.draw(changes(self.schema)))
        self.before_others += [position for position, _ in self.known]
        self.known = []
        self.remember()

    @precondition(lambda self: self.before_others)
    @rule(data=st.data())
    def go_past_another_one(self, data: st.DataObject) -> None:
        """A conflict without any effect, or only what is ours is undone: the way back leads to the same state."""
        assert self.database is not None
        position, before = self.database.position(), self.database.contents()
        try:
            self.database.go(data.draw(st.sampled_from(self.before_others)))
        except CompensationConflict:
            event("a conflict")
            assert self.database.contents() == before, "a conflict with an effect"
            return
        event("past another one")
        self.database.go(position)
        after = self.database.contents()
        assert {**after, _SEQUENCES: None} == {**before, _SEQUENCES: None}
        self.known = []
        self.remember()

    def teardown(self) -> None:
        if self.database is not None:
            self.database.close()
        shutil.rmtree(self.folder, ignore_errors=True)


_PHASES = (Phase.explicit, Phase.reuse, Phase.generate, *((Phase.shrink,) if "PLANARIAN_SHRINK" in os.environ else ()))
"""Shrinking takes minutes, and is asked for."""
_SETTINGS = settings(
    phases=_PHASES,
    max_examples=_EXAMPLES,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def test_whatever_is_done_is_undone_exactly() -> None:
    run_state_machine_as_test(Machine, settings=_SETTINGS)


def test_an_undo_that_forgets_a_row_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: the machine can tell."""
    whole = rows.apply_rows

    def all_but_one(writer: Writer, changes: Sequence[Change], *, skip: bool) -> list[str]:
        return whole(writer, changes[1:], skip=skip)

    monkeypatch.setattr(images, "apply_rows", all_but_one)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Machine, settings=settings(_SETTINGS, database=None, print_blob=False))
