"""Snapshot policies: what each says, whose word counts, and the count of calls across processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import pytest

from planarian_core import Planarian, hookimpl
from planarian_core.errors import ConfigurationError
from planarian_core.hookspecs import BackendFactory
from planarian_core.interfaces import Instant, Layer, RunningSandbox
from planarian_core.model import Artefact, Domain, SandboxRecord, Statepoint
from planarian_core.policy import CallCounter, Verdict, check_policy, verdict
from planarian_core.sandbox import Sandbox
from planarian_core.testing.fakes import FakeFilesystem, FakePlugin, FakeProcess, FakeService

TAKE, SKIP, CHANGED = Verdict.TAKE, Verdict.SKIP, Verdict.TAKE_IF_CHANGED


@pytest.mark.parametrize(
    ("policy", "call", "third_call", "milestone", "submit"),
    [
        ("every-call", TAKE, TAKE, TAKE, TAKE),
        ("every:3", SKIP, TAKE, TAKE, TAKE),
        ("on-change", CHANGED, CHANGED, TAKE, CHANGED),
        ("milestones", SKIP, SKIP, TAKE, TAKE),
        ("manual", SKIP, SKIP, SKIP, SKIP),
    ],
)
def test_what_a_policy_says(
    policy: str, call: Verdict, third_call: Verdict, milestone: Verdict, submit: Verdict
) -> None:
    check_policy(policy)
    assert verdict(policy, "tool-call", 1) is call
    assert verdict(policy, "tool-call", 3) is third_call
    assert verdict(policy, "milestone:gold", 1) is milestone
    assert verdict(policy, "submit", 1) is submit


@pytest.mark.parametrize("policy", ["sometimes", "every:0", "every:", "every:-1", "every-call\n", "", "Manual"])
def test_what_is_no_policy_is_refused_everywhere(fake_planarian: Planarian, workspace: Path, policy: str) -> None:
    with pytest.raises(ConfigurationError, match="unknown"):
        check_policy(policy)
    if policy:
        with pytest.raises(ConfigurationError):
            fake_planarian.create_sandbox(workspace, policy=policy)
        sandbox = fake_planarian.create_sandbox(workspace)
        with pytest.raises(ConfigurationError):
            fake_planarian.set_policy(sandbox, policy)
    with pytest.raises(ConfigurationError):
        fake_planarian.with_config(policy=policy)


@pytest.fixture
def sandbox(fake_planarian: Planarian, workspace: Path) -> Sandbox:
    return fake_planarian.create_sandbox(workspace, policy="every:2")


def test_every_n_takes_one_after_n_calls_and_counts_anew(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    taken = []
    for _ in range(6):
        sandbox.run(["true"])
        taken.append(fake_planarian.snapshot_by_policy(sandbox, description="a call") is not None)
    assert taken == [False, True] * 3
    last = fake_planarian.registry.statepoints(sandbox.id)[-1]
    assert (last.automatic, last.description) == (True, "a call")


def test_a_snapshot_that_somebody_asked_for_and_a_rollback_count_anew(
    fake_planarian: Planarian, sandbox: Sandbox
) -> None:
    sandbox.run(["true"])
    fake_planarian.snapshot(sandbox, name="asked")
    sandbox.run(["true"])
    assert fake_planarian.snapshot_by_policy(sandbox) is None
    fake_planarian.rollback(sandbox, "asked")
    sandbox.run(["true"])
    assert fake_planarian.snapshot_by_policy(sandbox) is None
    sandbox.run(["true"])
    assert fake_planarian.snapshot_by_policy(sandbox) is not None


def test_the_sandbox_s_policy_comes_before_the_home_s_and_forks_inherit_it(
    fake_planarian: Planarian, sandbox: Sandbox
) -> None:
    fake_planarian.with_config(policy="every-call")
    assert not fake_planarian.should_snapshot(sandbox)
    fork = fake_planarian.fork(fake_planarian.snapshot(sandbox))
    assert fork.record.policy == "every:2"
    fake_planarian.set_policy(sandbox, "manual")
    assert not fake_planarian.should_snapshot(sandbox, "submit")
    fake_planarian.set_policy(sandbox, "")
    assert fake_planarian.should_snapshot(sandbox)
    assert not fake_planarian.should_snapshot(fork)


def test_a_plugin_comes_first_and_hears_the_count(tmp_path: Path, workspace: Path) -> None:
    heard: list[tuple[str, int]] = []

    class Chooser:
        @hookimpl
        def planarian_should_snapshot(self, sandbox: SandboxRecord, trigger: str, calls: int) -> bool | None:
            heard.append((trigger, calls))
            return {"submit": True, "milestone:lead": False}.get(trigger)

    with Planarian.open(tmp_path / "home", plugins=[FakePlugin(), Chooser()]) as planarian:
        sandbox = planarian.create_sandbox(
            workspace, sandbox="fake", filesystem="fake", process="fake", policy="milestones"
        )
        sandbox.run(["true"])
        assert planarian.snapshot_by_policy(sandbox, "milestone:lead", name="lead") is None
        assert planarian.snapshot_by_policy(sandbox, "tool-call") is None
        planarian.set_policy(sandbox, "manual")
        assert planarian.snapshot_by_policy(sandbox, "submit") is not None
    assert heard == [("milestone:lead", 1), ("tool-call", 1), ("submit", 1)]


def test_a_milestone_has_its_name(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    taken = fake_planarian.snapshot_by_policy(sandbox, "milestone:gold", name="gold")
    assert taken is not None
    assert (taken.name, taken.automatic) == ("gold", False), "it can be kept by its name, and is in every ledger"


def test_in_the_background(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    nothing: Future[Statepoint | None] = fake_planarian.snapshot_by_policy(sandbox, wait=False)
    assert nothing.result(0) is None
    last = fake_planarian.snapshot_by_policy(sandbox, "submit", wait=False).result(60)
    assert last is not None
    assert fake_planarian.resolve(sandbox, "@head") == last


def test_on_change_in_doubt_takes_one(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    """The fakes can prove nothing."""
    fake_planarian.set_policy(sandbox, "on-change")
    assert fake_planarian.should_snapshot(sandbox)
    assert fake_planarian.snapshot_by_policy(sandbox) is not None
    assert fake_planarian.snapshot_by_policy(sandbox) is not None


class _StillFilesystem(FakeFilesystem):
    """Proves that a layer is unchanged by looking at all of it."""

    name = "still"

    def unchanged(self, layer: Layer, artefact: Artefact) -> bool:
        return self.stage(artefact, layer).changed_count == 0


class _StillProcess(FakeProcess):
    """Its sandboxes run nothing that could move."""

    name = "still"

    @contextmanager
    def instant(self, sandbox: RunningSandbox, images: Path) -> Iterator[Instant]:
        with super().instant(sandbox, images) as instant:
            instant.artefact = Artefact(Domain.PROCESSES, self.name, "")
            yield instant

    def still(self, sandbox: RunningSandbox, artefact: Artefact) -> bool:
        return True


class _StillPlugin:
    @hookimpl
    def planarian_backends(self) -> Sequence[BackendFactory]:
        return [
            BackendFactory("filesystem", "still", _StillFilesystem, rank=-10),
            BackendFactory("process", "still", _StillProcess, rank=-10),
        ]


def test_on_change_skips_what_is_proven_unchanged(tmp_path: Path, workspace: Path, service: FakeService) -> None:
    with Planarian.open(tmp_path / "home", plugins=[FakePlugin([service]), _StillPlugin()]) as planarian:
        sandbox = planarian.create_sandbox(
            workspace, sandbox="fake", filesystem="still", process="still", policy="on-change"
        )
        assert planarian.snapshot_by_policy(sandbox) is not None, "there is none yet"
        sandbox.run(["true"])
        assert not planarian.should_snapshot(sandbox)
        assert planarian.snapshot_by_policy(sandbox) is None
        assert planarian.snapshot_by_policy(sandbox, "submit") is None
        assert planarian.snapshot_by_policy(sandbox, wait=False).result(60) is None
        sandbox.run(["touch", "new"])
        assert planarian.snapshot_by_policy(sandbox) is not None
        service.put("a", "1")
        assert planarian.snapshot_by_policy(sandbox) is not None
        assert planarian.snapshot_by_policy(sandbox, "milestone:gold", name="gold") is not None, "a name is asked for"
        assert len(planarian.registry.statepoints()) == 4


_COUNT = """\
import pathlib, sys
from planarian_core.policy import CallCounter
counter = CallCounter(pathlib.Path(sys.argv[1]))
for _ in range(200):
    counter.add(sys.argv[2])
"""


def test_calls_of_all_processes_are_counted(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    command = [sys.executable, "-c", _COUNT, str(fake_planarian.home), sandbox.id]
    callers = [subprocess.Popen(command) for _ in range(3)]
    assert [caller.wait(60) for caller in callers] == [0, 0, 0]
    assert fake_planarian.calls.count(sandbox.id) == 600


def test_a_count_that_can_not_be_kept_costs_no_call(tmp_path: Path) -> None:
    counter = CallCounter(tmp_path)
    counter.add("sb-gone")
    assert counter.count("sb-gone") == 0
    counter.reset("sb-gone")
