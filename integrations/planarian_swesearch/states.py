"""Where a search's states come from and where they are kept: statepoints of the searched sandbox, each one held.

An action is tried in a fork that lives as long as the trial, or, one after the other, in the sandbox itself. Either way
the state is in the end a statepoint of the sandbox (a fork's is adopted), so that it can be forked from, gone back to
and given up without regard to where it came from. What a killed search left behind is known by the search's id.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection, Iterable
from concurrent.futures import Future
from typing import Protocol

from planarian_core import Planarian, Sandbox
from planarian_core.errors import LineageError, PlanarianError
from planarian_core.model import SandboxRecord, Statepoint, Status
from planarian_core.prune_choice import PrunePolicy

_log = logging.getLogger(__name__)


class Place(Protocol):
    """Where actions are tried."""

    def enter(self, statepoint_id: str, node_id: int) -> Sandbox:
        """A sandbox in the state of a statepoint. RestoreError, SandboxError: there is none."""
        ...

    def keep(self, capture: Future[Statepoint], description: str) -> Statepoint:
        """Wait for a capture and make it a statepoint of the searched sandbox. CaptureError: there is none."""
        ...

    def leave(self, sandbox: Sandbox) -> None:
        """The trial is over; nothing of it is needed any more but what is kept."""
        ...


class InForks:
    """Each action in a fork of its own. The source isn't touched; remote services that can't branch are fenced off."""

    def __init__(self, planarian: Planarian, source: Sandbox, search_id: str) -> None:
        self._planarian = planarian
        self._source = source
        self._search_id = search_id

    def enter(self, statepoint_id: str, node_id: int) -> Sandbox:
        name = f"{self._search_id}-{node_id}-{secrets.token_hex(2)}"
        return self._planarian.fork(statepoint_id, of=self._source, name=name)

    def keep(self, capture: Future[Statepoint], description: str) -> Statepoint:
        return self._planarian.adopt(capture.result(), description)

    def leave(self, sandbox: Sandbox) -> None:
        remove_fork(self._planarian, sandbox)


class InPlace:
    """Each action in the searched sandbox, which is rolled back before it; remote effects go back as well.

    The first rollback takes a safety statepoint, since it leaves a state that isn't the search's own.
    """

    def __init__(self, planarian: Planarian, sandbox: Sandbox, *, accept_pivots: bool) -> None:
        self._planarian = planarian
        self._sandbox = sandbox
        self._accept_pivots = accept_pivots
        self._own = False

    def enter(self, statepoint_id: str, node_id: int) -> Sandbox:
        if not self._is_at(statepoint_id):
            self._planarian.rollback(
                self._sandbox, statepoint_id, safety=not self._own, accept_pivots=self._accept_pivots
            )
        self._own = True
        return self._sandbox

    def _is_at(self, statepoint_id: str) -> bool:
        """Proven: what would be gone back to is what is there."""
        planarian, record = self._planarian, self._sandbox.record
        with planarian.sandboxes.hold(record.id, exclusive=True):
            if planarian.registry.branch(record.id).head != statepoint_id or not planarian.sandboxes.running(record):
                return False
            return planarian.statepoints.unchanged(record)

    def keep(self, capture: Future[Statepoint], description: str) -> Statepoint:
        return capture.result()

    def leave(self, sandbox: Sandbox) -> None:
        return


# --- holding and giving up ---


def description_of(search_id: str, node_id: int, label: str) -> str:
    """What the statepoint of a node is called in the ledger; :func:`left_statepoints` knows it by the beginning."""
    return f"{search_id} node {node_id}: {label}"


def give_up(planarian: Planarian, sandbox: Sandbox, statepoints: Collection[str]) -> set[str]:
    """Release statepoints and prune them; the ids of those that are still there, because something needs them now.

    A pruning that fails is said in the log: what is marked stays given up, and the next one frees its space.
    """
    there = [i for i in statepoints if _is_there(planarian, i)]
    for statepoint_id in there:
        planarian.registry.holds.remove(statepoint_id)
    if there:
        try:
            planarian.prune(PrunePolicy(keep_last=0, keep_named=False, only=frozenset(there)), [sandbox])
        except PlanarianError as error:
            _log.warning("States of a search were not freed: %s", error)
    return {i for i in there if _is_there(planarian, i)}


def _is_there(planarian: Planarian, statepoint_id: str) -> bool:
    found = planarian.registry.find(statepoint_id)
    return found is not None and found.status is Status.COMMITTED


def root_lost(error: LineageError) -> LineageError:
    """What to raise where the root's state can't be held any more."""
    return LineageError(
        f"the state that this search began from is gone: {error.message}",
        code="search-root-lost",
        state="the tree is as it was; nothing was changed",
        remedy="begin a new search in another path",
    )


# --- what a killed search left ---


def left_forks(planarian: Planarian, source: Sandbox, search_id: str) -> list[Sandbox]:
    """The search's own forks of a sandbox, by their names. Those that agents made aren't among them."""

    def ours(record: SandboxRecord) -> bool:
        if record.made_by or not record.name.startswith(f"{search_id}-"):
            return False
        origin = planarian.registry.find(planarian.registry.branch(record.id).forked_from or "")
        return origin is not None and origin.sandbox_id == source.id

    return [Sandbox(planarian, record.id) for record in planarian.registry.sandboxes() if ours(record)]


def left_statepoints(planarian: Planarian, sandbox: Sandbox, search_id: str, known: Iterable[str]) -> list[str]:
    """The ids of a search's statepoints that its tree doesn't know: taken, and then the search was killed."""
    begins = description_of(search_id, 0, "").partition("0")[0]
    mine = [s for s in planarian.registry.statepoints(sandbox.id) if s.automatic and s.description.startswith(begins)]
    without = set(known)
    return [s.id for s in mine if s.status is Status.COMMITTED and s.id not in without]


def remove_fork(planarian: Planarian, fork: Sandbox) -> None:
    """Remove a fork, and those that agents in it made.

    One that somebody else forked from stays, as what it is: theirs now. So does one that is in use; the next run tries
    again.
    """
    made = [record for record in planarian.registry.sandboxes() if record.made_by == fork.id]
    for sandbox in (*(Sandbox(planarian, record.id) for record in reversed(made)), fork):
        try:
            planarian.remove_sandbox(sandbox)
        except PlanarianError as error:
            if error.code == "sandbox-unknown":
                continue
            _log.warning("The fork %s of a search stays: %s", sandbox.id, error)
