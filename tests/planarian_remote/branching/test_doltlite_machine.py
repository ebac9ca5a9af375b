"""Random statements, snapshots, rollbacks, rollbacks of rollbacks, forks and promotions on doltlite branches.

The oracle is another process's full dump of a branch at each statepoint. Whatever happens on one, no other moves.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from planarian_core import Planarian
from planarian_core.model import EffectState
from planarian_core.sandbox import Sandbox
from planarian_core.testing.branched_notes import Agent, Notes, Outside
from planarian_core.testing.fakes import FakePlugin

pytestmark = pytest.mark.needs("doltlite")

_TABLES = st.sampled_from(["notes", "one", "two"])
_VALUE = st.sampled_from(["1", "-2", "NULL", "'x'", "'é'", "3.5", "x'00ff'", "random()"])
_SHAPES = st.sampled_from(
    [
        "(id INTEGER PRIMARY KEY, text)",
        "(id INTEGER PRIMARY KEY AUTOINCREMENT, text UNIQUE)",
        "(id, text, PRIMARY KEY (id, text))",
        "(id TEXT PRIMARY KEY, text) WITHOUT ROWID",
        "(id, text)",
        "(id INTEGER PRIMARY KEY, text, twice GENERATED ALWAYS AS (id * 2) STORED)",
        "(id INTEGER PRIMARY KEY, text REFERENCES notes(text) ON DELETE CASCADE)",
    ]
)

_STATEMENTS = [
    "INSERT INTO {table}(text) VALUES ({value})",
    "INSERT INTO {table}(id, text) VALUES ({value}, {value})",
    "REPLACE INTO {table}(id, text) VALUES ({number}, {value})",
    "UPDATE {table} SET text = {value}",
    "UPDATE {table} SET id = id + 1",
    "DELETE FROM {table} WHERE id > {number}",
    "DELETE FROM {table}",
    "INSERT INTO {table}(text) SELECT text || {value} FROM notes",
    "CREATE TABLE {table}{shape}",
    "DROP TABLE {table}",
    "ALTER TABLE {table} RENAME TO {other}",
    "ALTER TABLE {table} ADD COLUMN extra DEFAULT {number}",
    "CREATE INDEX by_{table} ON {table}(text)",
    "CREATE VIEW seen_{table} AS SELECT * FROM {table}",
    "CREATE TRIGGER on_{table} AFTER INSERT ON {table} BEGIN DELETE FROM notes WHERE id = 1; END",
    "PRAGMA user_version = {number}",
    "SELECT dolt_commit('-A', '-m', 'by the agent')",
    "SELECT dolt_add('-A')",
    "CREATE VIRTUAL TABLE words USING fts5(word)",
    "INSERT INTO words VALUES ({value})",
    "DROP TABLE words",
]


@st.composite
def statements(draw: st.DrawFn) -> str:
    """Statements most of which go well; some the engine refuses, some change nothing."""
    words = {"table": draw(_TABLES), "value": draw(_VALUE), "shape": draw(_SHAPES), "other": draw(_TABLES)}
    return draw(st.sampled_from(_STATEMENTS)).format(**words, number=draw(st.integers(0, 3)))


class BranchingMachine(RuleBasedStateMachine):
    """Each statepoint can be had back exactly, from anywhere on its branch, any number of times."""

    outside: Outside

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.notes = Notes(Path(self._folder.name) / "notes", self.outside)
        self.planarian = Planarian.open(self.notes.home, plugins=[FakePlugin()])
        self.planarian.with_config(sandbox="fake", filesystem="fake", process="fake")
        self.sandboxes: list[Sandbox] = []
        self.agents: dict[str, Agent] = {}
        self.saved: dict[str, tuple[str, Any]] = {}
        self.now: dict[str, Any] = {}

    @initialize()
    def begin(self) -> None:
        self._take_up(self.planarian.create_sandbox(self.notes.workspace))
        self.snapshot(0)

    def _take_up(self, sandbox: Sandbox) -> None:
        self.sandboxes.append(sandbox)
        self.agents[sandbox.id] = Agent(self.planarian, sandbox)
        self.now[sandbox.id] = self.notes.dump(sandbox.id)

    def _any(self, which: int) -> Sandbox:
        return self.sandboxes[which % len(self.sandboxes)]

    def _own(self, sandbox: Sandbox) -> list[str]:
        return [statepoint for statepoint, (owner, _) in self.saved.items() if owner == sandbox.id]

    @rule(which=st.integers(0, 5), sql=statements())
    def send(self, which: int, sql: str) -> None:
        sandbox = self._any(which)
        before, entries = self.now[sandbox.id], len(self.planarian.effects(sandbox))
        self.agents[sandbox.id].send(sql)
        self.now[sandbox.id] = self.notes.dump(sandbox.id)
        made = self.planarian.effects(sandbox)[entries:]
        assert {effect.state for effect in made} <= {EffectState.APPLIED, EffectState.VOID}
        if EffectState.APPLIED not in {effect.state for effect in made}:
            assert self.now[sandbox.id] == before

    @rule(which=st.integers(0, 5))
    def snapshot(self, which: int) -> None:
        sandbox = self._any(which)
        taken = self.planarian.snapshot(sandbox)
        self.saved[taken.id] = (sandbox.id, self.now[sandbox.id])

    @rule(which=st.integers(0, 5), at=st.integers(0, 99), safety=st.booleans())
    def rollback(self, which: int, at: int, safety: bool) -> None:
        sandbox = self._any(which)
        own = self._own(sandbox)
        if not own:
            return
        chosen = own[at % len(own)]
        context = self.planarian.rollback(sandbox, chosen, safety=safety)
        if context.safety_id is not None:
            self.saved.setdefault(context.safety_id, (sandbox.id, self.now[sandbox.id]))
        self.now[sandbox.id] = self.saved[chosen][1]

    @precondition(lambda self: len(self.sandboxes) < 3)
    @rule(which=st.integers(0, 5), at=st.integers(0, 99))
    def fork(self, which: int, at: int) -> None:
        own = self._own(self._any(which))
        if not own:
            return
        chosen = own[at % len(own)]
        self._take_up(self.planarian.fork(chosen))
        assert self.now[self.sandboxes[-1].id] == self.saved[chosen][1]

    @precondition(lambda self: len(self.sandboxes) > 1)
    @rule()
    def promote(self) -> None:
        fork = self.sandboxes[-1]
        origin = self.planarian.registry.branch(fork.id).forked_from
        assert origin is not None
        source = self.saved[origin][0]
        context = self.planarian.promote(fork, force=True)
        if context.safety_id is not None:
            self.saved.setdefault(context.safety_id, (source, self.now[source]))
        self.now[source] = self.now[fork.id]
        self.saved[context.statepoint.id] = (source, self.now[fork.id])

    @rule()
    def collect_garbage(self) -> None:
        self.outside.ask(self.notes.database, "", "SELECT dolt_gc()")

    @invariant()
    def every_branch_is_where_it_should_be(self) -> None:
        for sandbox in self.sandboxes:
            assert self.notes.dump(sandbox.id) == self.now[sandbox.id]

    def teardown(self) -> None:
        for sandbox in self.sandboxes:
            for statepoint in self._own(sandbox):
                self.planarian.rollback(sandbox, statepoint, safety=False)
                assert self.notes.dump(sandbox.id) == self.saved[statepoint][1]
        for agent in self.agents.values():
            agent.close()
        for sandbox in reversed(self.sandboxes):
            self.planarian.remove_sandbox(sandbox)
        assert (self.notes.branches(), self.notes.refs()) == (["main"], [])
        self.planarian.close()
        self._folder.cleanup()


def test_any_statepoint_can_be_had_back_exactly(outside: Outside) -> None:
    machine = type("Machine", (BranchingMachine,), {"outside": outside})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=10,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
        ),
    )
