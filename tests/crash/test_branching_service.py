"""kill -9 in calls, snapshots, rollbacks, forks, promotions and removals of a sandbox that works on a doltlite branch.

Another process looks at the branches. At every statepoint the file ``report`` says what the branch holds.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from planarian_core import Planarian
from planarian_core.faults import POINTS
from planarian_core.model import EffectState
from planarian_core.sandbox import Sandbox
from planarian_core.testing.branched_notes import Agent, Notes, Outside
from planarian_core.testing.workloads import remove_all

pytestmark = [pytest.mark.needs("doltlite"), pytest.mark.thorough]

OPERATE = Path(__file__).with_name("operate_branching.py")
CALLS = [point for point in POINTS if point.startswith("call.")]
SNAPSHOTS = [point for point in POINTS if point.startswith("snapshot.")]
MOVES = [point for point in POINTS if point.startswith(("rollback.", "compensate.", "branch."))]
FORKS = [point for point in POINTS if point.startswith("fork.")]
PROMOTIONS = [point for point in POINTS if point.startswith("promote.")]
REMOVALS = [point for point in POINTS if point.startswith("remove.")]


class World(Notes):
    """Notes, and a sandbox whose report agrees with its branch."""

    def write(self, planarian: Planarian, sandbox: Sandbox, text: str) -> None:
        agent = Agent(planarian, sandbox)
        agent.do(f"INSERT INTO notes(text) VALUES ('{text}')")  # noqa: S608  # texts of this file
        agent.close()
        self.report_of(sandbox).write_text(repr(self.texts(sandbox.id)))

    def report_of(self, sandbox: Sandbox) -> Path:
        return Path(sandbox.record.spec.layer) / "report"

    def agrees(self, sandbox: Sandbox) -> bool:
        return self.report_of(sandbox).read_text() == repr(self.texts(sandbox.id))

    def operate(self, *arguments: str, fault: str) -> int:
        argv = [sys.executable, str(OPERATE), str(self.home), *arguments]
        environment = {**os.environ, "PLANARIAN_FAULT": fault}
        done = subprocess.run(argv, env=environment, capture_output=True, timeout=120, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
        return done.returncode


@pytest.fixture(scope="module")
def outside() -> Iterator[Outside]:
    made = Outside()
    yield made
    made.close()


@pytest.fixture
def world(tmp_path: Path, outside: Outside) -> Iterator[World]:
    made = World(tmp_path / "world", outside)
    with made.open() as planarian:
        made.sandbox(planarian)
    yield made
    with made.open() as planarian:
        remove_all(planarian)
    assert (made.branches(), made.refs()) == (["main"], []), "nothing of any sandbox is left"


@pytest.mark.parametrize("point", CALLS)
def test_killed_in_a_call(world: World, point: str) -> None:
    with world.open() as planarian:
        sandbox = planarian.sandbox()
        world.write(planarian, sandbox, "one")
        before = planarian.snapshot(sandbox)
    world.operate("send", sandbox.id, "INSERT INTO notes(text) VALUES ('two')", fault=f"{point}=kill")
    happened = point != "call.begun"
    assert world.texts(sandbox.id)[2:] == (["one", "two"] if happened else ["one"])
    with world.open() as planarian:
        sandbox = planarian.sandbox()
        after = planarian.snapshot(sandbox)
        assert planarian.effects(sandbox)[-1].state is (EffectState.APPLIED if happened else EffectState.VOID)
        assert (after.remote != before.remote) is happened
        planarian.rollback(sandbox, before)
        assert (world.texts(sandbox.id)[2:], world.agrees(sandbox)) == (["one"], True)
        planarian.rollback(sandbox, after)
        assert world.texts(sandbox.id)[2:] == (["one", "two"] if happened else ["one"])


@pytest.mark.parametrize("point", SNAPSHOTS)
def test_killed_in_a_snapshot(world: World, point: str) -> None:
    with world.open() as planarian:
        sandbox = planarian.sandbox()
        world.write(planarian, sandbox, "one")
        early = planarian.snapshot(sandbox)
        world.write(planarian, sandbox, "two")
        sandbox.spawn(["sleep", "1000"])  # with nothing new that runs, no instant would be needed
    world.operate("snapshot", sandbox.id, fault=f"{point}=kill")
    assert world.agrees(sandbox), "the state goes on"
    with world.open() as planarian:
        assert [done.error for done in planarian.recovered] == [""] * len(planarian.recovered)
        sandbox = planarian.sandbox()
        late = planarian.snapshot(sandbox)
        for statepoint, texts in ((early, ["one"]), (late, ["one", "two"])):
            planarian.rollback(sandbox, statepoint)
            assert (world.texts(sandbox.id)[2:], world.agrees(sandbox)) == (texts, True)


@pytest.mark.parametrize(
    ("point", "safety"), [*((point, "safety") for point in MOVES), *((point, "none") for point in MOVES[-4:])]
)
def test_killed_in_a_rollback(world: World, point: str, safety: str) -> None:
    with world.open() as planarian:
        sandbox = planarian.sandbox()
        world.write(planarian, sandbox, "one")
        early = planarian.snapshot(sandbox)
        world.write(planarian, sandbox, "two")
        late = planarian.snapshot(sandbox)
        world.write(planarian, sandbox, "three")
    world.operate("rollback", sandbox.id, early.id, safety, fault=f"{point}=kill")
    with world.open() as planarian:
        assert [done.error for done in planarian.recovered] == [""] * len(planarian.recovered)
        sandbox = planarian.sandbox()
        assert world.agrees(sandbox)
        assert world.texts(sandbox.id)[2:] in (["one"], ["one", "two", "three"])
        world.outside.ask(world.database, "", "SELECT dolt_gc()")
        for statepoint, texts in ((late, ["one", "two"]), (early, ["one"]), (late, ["one", "two"])):
            planarian.rollback(sandbox, statepoint)
            assert (world.texts(sandbox.id)[2:], world.agrees(sandbox)) == (texts, True)
        states = [effect.state for effect in planarian.effects(sandbox)]
        assert states == [EffectState.APPLIED, EffectState.APPLIED, EffectState.UNDONE]


@pytest.mark.parametrize("point", FORKS)
def test_killed_in_a_fork(world: World, point: str) -> None:
    with world.open() as planarian:
        sandbox = planarian.sandbox()
        world.write(planarian, sandbox, "one")
        statepoint = planarian.snapshot(sandbox)
        world.write(planarian, sandbox, "two")
    world.operate("fork", sandbox.id, statepoint.id, fault=f"{point}=kill")
    with world.open() as planarian:
        assert [done.error for done in planarian.recovered] == [""] * len(planarian.recovered)
        source = planarian.sandbox(sandbox.id)
        assert world.texts(source.id)[2:] == ["one", "two"]
        forks = [record for record in planarian.registry.sandboxes() if record.id != source.id]
        assert len(world.branches()) == 2 + len(forks), "no branch without a sandbox"
        if not forks:
            planarian.fork(statepoint, name="fork")
        fork = planarian.sandbox("fork")
        assert world.texts(fork.id)[2:] == ["one"]
        world.write(planarian, fork, "theirs")
        assert world.texts(source.id)[2:] == ["one", "two"]


@pytest.mark.parametrize("point", [*PROMOTIONS, "rollback.stopped", "branch.kept", "compensate.done"])
def test_killed_in_a_promotion(world: World, point: str) -> None:
    with world.open() as planarian:
        source = planarian.sandbox()
        world.write(planarian, source, "one")
        fork = planarian.fork(planarian.snapshot(source), name="fork")
        world.write(planarian, fork, "attempted")
        world.write(planarian, source, "set aside")
    world.operate("promote", "fork", fault=f"{point}=kill")
    with world.open() as planarian:
        assert [done.error for done in planarian.recovered] == [""] * len(planarian.recovered)
        source, fork = planarian.sandbox(source.id), planarian.sandbox("fork")
        assert world.agrees(source)
        assert world.texts(source.id)[2:] in (["one", "set aside"], ["one", "attempted"])
        assert (world.texts(fork.id)[2:], world.agrees(fork)) == (["one", "attempted"], True)
        planarian.promote(fork, force=True)
        assert (world.texts(source.id)[2:], world.agrees(source)) == (["one", "attempted"], True)


@pytest.mark.parametrize("point", REMOVALS)
def test_killed_in_a_removal(world: World, point: str) -> None:
    with world.open() as planarian:
        sandbox = planarian.sandbox()
        start = planarian.snapshot(sandbox)
        world.write(planarian, sandbox, "one")
        planarian.rollback(sandbox, start)
    world.operate("remove", sandbox.id, fault=f"{point}=kill")
    with world.open() as planarian:
        for record in planarian.registry.sandboxes():
            planarian.remove_sandbox(planarian.sandbox(record.id))
    assert (world.branches(), world.refs()) == (["main"], [])
