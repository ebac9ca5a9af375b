"""The promises of a service kind, as tests. Subclass :class:`ServiceKindConformance` and supply the fixture ``remote``.

The oracle is the subject's own look at the remote state, past the kind: a second connection, the files on disk.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from planarian_core.errors import CompensationConflict, RemoteError
from planarian_core.interfaces import KeepsEntries, Prepares, ServiceKind, ToolTarget
from planarian_core.logged_service import LoggedService
from planarian_core.model import CallClass, Effect, EffectState, RemoteCall, RemotePosition, Verdict
from planarian_core.registry import Registry
from planarian_core.testing.power_cut import lose_entries

SANDBOX = "sb-conformance"


@dataclass
class RemoteSubject:
    """A service kind and what is needed to try it.

    ``changes`` are compensable calls, each possible after the one before; the last two touch the same thing, so that
    their order matters. ``meddle`` changes, as another writer, what the last change left. ``state`` is everything that
    a rollback must bring back.
    """

    kind: ServiceKind
    changes: Sequence[RemoteCall]
    read: RemoteCall
    refused: RemoteCall
    state: Callable[[], Any]
    meddle: Callable[[], None]


class Driver:
    """Makes calls as a session does, with a log of its own."""

    def __init__(self, subject: RemoteSubject, registry: Registry) -> None:
        self.kind = subject.kind
        self.registry = registry
        self.log = registry.effects
        self.service = LoggedService(subject.kind, self.log)
        self.target: ToolTarget = subject.kind.connect()

    def begin(self, call: RemoteCall) -> Effect:
        """The entry of a call that is about to be made."""
        verdict = self.kind.classify(call)
        if verdict.call_class is CallClass.READ_ONLY:
            found = self.kind.read(call, self.target)
            assert isinstance(found, Verdict), f"{call} was made as a read"
            verdict = found
        assert verdict.call_class is CallClass.COMPENSABLE, verdict
        return self.enter(call, verdict)

    def enter(self, call: RemoteCall, verdict: Verdict) -> Effect:
        details = self.kind.prepare(call, self.target) if isinstance(self.kind, Prepares) else None
        ahead = isinstance(self.kind, KeepsEntries)
        return self.log.begin(SANDBOX, self.kind.name, call, verdict, call.tool, details, ahead=ahead)

    def run(self, call: RemoteCall) -> Effect:
        """Make a call without recording its end, as a proxy that is killed right after it."""
        effect = self.begin(call)
        outcome = self.kind.run(call, effect, self.target)
        assert outcome.state is EffectState.APPLIED, outcome
        return replace(effect, details=outcome.details or effect.details)

    def change(self, call: RemoteCall) -> Effect:
        effect = self.run(call)
        return self.log.update(effect, EffectState.APPLIED, details=effect.details)

    def position(self) -> RemotePosition:
        return self.service.capture(SANDBOX)

    def go(self, position: RemotePosition) -> list[tuple[str, bool]]:
        self.service.rehearse(position, SANDBOX)
        return [(effect.position, effect.redo) for effect in self.service.compensate(position, SANDBOX)]


class ServiceKindConformance:
    """What every service kind holds."""

    @pytest.fixture
    def driver(self, remote: RemoteSubject) -> Iterator[Driver]:
        with tempfile.TemporaryDirectory() as folder:
            registry = Registry(Path(folder, "registry"))
            made = Driver(remote, registry)
            yield made
            made.target.close()
            registry.close()

    def test_every_position_is_reached_exactly_from_every_other(self, remote: RemoteSubject, driver: Driver) -> None:
        states = [remote.state()]
        positions = [driver.position()]
        for call in remote.changes:
            driver.change(call)
            states.append(remote.state())
            positions.append(driver.position())
        assert all(one != other for one, other in pairwise(states)), "each change changes something"
        last = len(states) - 1
        for index in (last - 1, last, 0, last, last // 2, 0, 1, last):
            driver.go(positions[index])
            assert remote.state() == states[index]

    def test_going_where_it_is_does_nothing(self, remote: RemoteSubject, driver: Driver) -> None:
        driver.change(remote.changes[0])
        state = remote.state()
        assert driver.go(driver.position()) == []
        assert remote.state() == state

    def test_a_rehearsal_has_no_effect(self, remote: RemoteSubject, driver: Driver) -> None:
        start = driver.position()
        for call in remote.changes:
            driver.change(call)
        state = remote.state()
        driver.service.rehearse(start, SANDBOX)
        assert remote.state() == state
        assert all(effect.state is EffectState.APPLIED for effect in driver.log.entries(SANDBOX))

    def test_a_move_that_was_cut_off_before_it_was_recorded_is_not_repeated(
        self, remote: RemoteSubject, driver: Driver
    ) -> None:
        before = remote.state()
        effects = [driver.change(call) for call in remote.changes]
        driver.kind.move(effects[::-1], [], driver.target, lambda effect, state: None)
        assert remote.state() == before
        told: list[int] = []
        driver.kind.move(effects[::-1], [], driver.target, lambda effect, state: told.append(effect.number))
        assert (remote.state(), told) == (before, [effect.number for effect in effects[::-1]])

    def test_another_writer_is_never_overwritten(self, remote: RemoteSubject, driver: Driver) -> None:
        start = driver.position()
        for call in remote.changes:
            driver.change(call)
        remote.meddle()
        state = remote.state()
        with pytest.raises(CompensationConflict) as caught:
            driver.service.rehearse(start, SANDBOX)
        assert caught.value.message
        with pytest.raises(CompensationConflict):
            driver.service.compensate(start, SANDBOX)
        assert remote.state() == state

    def test_a_call_that_was_made_is_found_to_be_applied(self, remote: RemoteSubject, driver: Driver) -> None:
        before = remote.state()
        start = driver.position()
        driver.run(remote.changes[0])
        driver.service.settle(SANDBOX)
        assert [effect.state for effect in driver.log.entries(SANDBOX)] == [EffectState.APPLIED]
        driver.go(start)
        assert remote.state() == before

    def test_a_call_that_was_not_made_is_found_to_be_void(self, remote: RemoteSubject, driver: Driver) -> None:
        before = remote.state()
        driver.begin(remote.changes[0])
        driver.service.settle(SANDBOX)
        assert [effect.state for effect in driver.log.entries(SANDBOX)] == [EffectState.VOID]
        driver.change(remote.changes[0])
        assert remote.state() != before

    def test_what_a_power_cut_took_of_the_log_is_found(self, remote: RemoteSubject, driver: Driver) -> None:
        if not isinstance(driver.kind, KeepsEntries):
            pytest.skip("its entries are in the home alone: each is waited for")
        before, start = remote.state(), driver.position()
        for call in remote.changes:
            driver.change(call)
        after = remote.state()
        lose_entries(driver.registry.path, SANDBOX, driver.kind.name, after=1)
        driver.service.settle(SANDBOX)
        assert driver.position().position == str(len(remote.changes))
        end = driver.position()
        driver.go(start)
        assert remote.state() == before
        driver.go(end)
        assert remote.state() == after

    def test_a_read_changes_nothing(self, remote: RemoteSubject, driver: Driver) -> None:
        before = remote.state()
        assert driver.kind.classify(remote.read).call_class is CallClass.READ_ONLY
        assert not isinstance(driver.kind.read(remote.read, driver.target), Verdict)
        assert remote.state() == before

    def test_what_is_refused_has_no_effect_and_says_why(self, remote: RemoteSubject, driver: Driver) -> None:
        before = remote.state()
        verdict = driver.kind.classify(remote.refused)
        if verdict.call_class is CallClass.READ_ONLY:
            found = driver.kind.read(remote.refused, driver.target)
            assert isinstance(found, Verdict)
            verdict = found
        if verdict.call_class is not CallClass.REFUSED:
            with pytest.raises(RemoteError) as caught:
                driver.kind.run(remote.refused, driver.enter(remote.refused, verdict), driver.target)
            assert (caught.value.code, bool(caught.value.message)) == ("call-refused", True)
        else:
            assert verdict.reason
        assert remote.state() == before

    def test_forgetting_leaves_the_state(self, remote: RemoteSubject, driver: Driver) -> None:
        for call in remote.changes:
            driver.change(call)
        state = remote.state()
        driver.service.forget(SANDBOX)
        driver.service.forget(SANDBOX)
        assert remote.state() == state
        assert driver.log.entries(SANDBOX) == []
