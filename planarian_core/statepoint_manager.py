"""The statepoint manager: the only code that orders the steps of snapshot, rollback and fork (paper, section 6.2).

Snapshot: freeze, process image, file snapshot, remote position, thaw, registry commit. Rollback: check, safety
statepoint, stage, stop, compensate, switch the files, restore the processes, registry commit. Fork: stage, switch,
restore, registry commit, on a new sandbox. Each step that can't be repeated blindly is journaled before it is taken;
:mod:`planarian_core.recovery` finishes what a killed runtime left.
"""

from __future__ import annotations

import errno
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from planarian_core import context, lineage, quota
from planarian_core.artefacts import Artefacts
from planarian_core.capture import Capturer, SnapshotRequest
from planarian_core.destination import ByCopy, ByFiles, Destination
from planarian_core.errors import (
    CaptureError,
    CompensationError,
    LineageError,
    PlanarianError,
    RestoreError,
    SandboxError,
)
from planarian_core.faults import reach
from planarian_core.interfaces import (
    EndsAbandonedCalls,
    KillsAtOnce,
)
from planarian_core.model import (
    Branch,
    Domain,
    Gap,
    RemoteEffect,
    RestoreContext,
    RollbackPreview,
    SandboxRecord,
    Statepoint,
    Status,
    new_id,
    utc_now,
)
from planarian_core.plugin_manager import PluginManager
from planarian_core.registry import Operation, Registry
from planarian_core.remote_state import RemoteState
from planarian_core.revival import Revived, described
from planarian_core.sandbox_manager import SandboxManager
from planarian_core.standby import StandbyManager

_RECOVER = "mend the cause, then: planarian recover; or let processes start anew: planarian recover --files-only"


class StatepointManager:
    """Orders the steps. The caller holds the sandbox's lock: exclusive for snapshot and rollback."""

    def __init__(
        self,
        home: Path,
        registry: Registry,
        plugins: PluginManager,
        sandboxes: SandboxManager,
        standbys: StandbyManager,
    ) -> None:
        self.home = home
        self.registry = registry
        self.plugins = plugins
        self.sandboxes = sandboxes
        self.standbys = standbys
        self.remote = RemoteState(registry, plugins, sandboxes.config.services)
        self.artefacts = Artefacts(home, registry, plugins)
        self.capturer = Capturer(registry, plugins, sandboxes, self.remote, self.artefacts)

    # --- snapshot ---

    def snapshot(self, record: SandboxRecord, request: SnapshotRequest) -> Statepoint:
        """Take a statepoint of a sandbox, running or stopped.

        Raises:
            CaptureError: nothing was committed; the sandbox runs on.
        """
        quota.check(self.registry, self.sandboxes.config, self.home, record)
        self.check_name(record, request.name)
        if not request.in_flight:
            self._end_abandoned_calls(record)
        statepoint = Statepoint(
            id=new_id("sp"),
            sandbox_id=record.id,
            branch_id=record.branch_id,
            parent_id=self.registry.branch(record.id).head,
            created_at=utc_now(),
            name=request.name,
            automatic=request.automatic,
            in_flight=request.in_flight,
        )
        committed = self.capturer.shared(record, statepoint, request)
        if committed is not None:
            self.registry.add(committed)
        else:
            committed = self._capture(record, statepoint, request)
        reach("snapshot.committed")
        self.plugins.notify("planarian_statepoint_committed", sandbox=record, statepoint=committed)
        return committed

    def _capture(self, record: SandboxRecord, statepoint: Statepoint, request: SnapshotRequest) -> Statepoint:
        operation = Operation(new_id("op"), "snapshot", record.id, statepoint.id)
        self.registry.add(statepoint, operation)
        try:
            reach("snapshot.begun")
            statepoint = self.capturer.capture(record, statepoint, request)
            reach("snapshot.durable")
        except BaseException as error:
            self._abandon(record, statepoint, operation, error)
        return self.registry.commit(statepoint, operation)

    def unchanged(self, record: SandboxRecord) -> bool:
        """Whether it is proven that a statepoint taken now would hold just what the head holds."""
        return self.capturer.unchanged(record)

    def check_name(self, record: SandboxRecord, name: str) -> None:
        """LineageError when the name can't be one, or another statepoint of the sandbox has it; no name is fine."""
        if not name:
            return
        lineage.check_text(name)
        taken = self.registry.named(record.id, name)
        if taken is not None:
            raise LineageError(
                f"the name {name!r} is taken by {taken.id}", code="name-taken", remedy="choose another name"
            )

    def _end_abandoned_calls(self, record: SandboxRecord) -> None:
        """A statepoint is of a boundary between calls (guarantee 2), also where a runtime was killed in a call."""
        backend = self.plugins.sandbox(record.spec.backend)
        if not isinstance(backend, EndsAbandonedCalls) or not self.sandboxes.running(record):
            return
        assert record.live is not None
        try:
            backend.end_abandoned_calls(record.spec, record.live)
        except SandboxError as error:
            raise CaptureError(
                f"a tool call whose runtime was killed can't be ended: {error.message}",
                state=f"no statepoint was begun; {error.state}",
                remedy=error.remedy,
            ) from error

    def snapshot_anyway(self, record: SandboxRecord, request: SnapshotRequest) -> Statepoint:
        """A snapshot that nobody asked for by itself: where processes can't be captured, of files alone, said so.

        Raises:
            CaptureError: not even the files could be captured.
        """
        try:
            return self.snapshot(record, request)
        except CaptureError as error:
            if request.files_only or not self.plugins.process(record.process).capabilities.memory:
                raise
            return self.snapshot(record, replace(request, files_only=error.message))

    def _abandon(
        self, record: SandboxRecord, statepoint: Statepoint, operation: Operation, error: BaseException
    ) -> NoReturn:
        self.drop_artefacts(record, statepoint)
        self.registry.discard(statepoint, str(error) or type(error).__name__, operation)
        if isinstance(error, PlanarianError) or not isinstance(error, Exception):
            raise error
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise CaptureError(
            f"the snapshot failed: {error}",
            state=f"{statepoint.id} was discarded; the sandbox goes on running",
            remedy="free disk space" if full else "see the cause above; planarian doctor",
        ) from error

    def drop_artefacts(self, record: SandboxRecord, statepoint: Statepoint) -> Counter[str]:
        """Remove what a statepoint that can't be restored any more left on the disk, and nobody else needs; what that
        freed, as :meth:`Artefacts.drop` says it.
        """
        return self.artefacts.drop(record, statepoint)

    def remove(self, record: SandboxRecord, operation: Operation) -> None:
        """Remove a sandbox for good, with its statepoints. Safe to repeat after a crash."""
        own = self.registry.statepoints(record.id)
        for statepoint in own:
            self.artefacts.drop(record, statepoint, leaving={s.id for s in own})
        self.remote.forget(record)
        reach("remove.dropped")
        self.sandboxes.destroy(record, operation)

    # --- rollback ---

    def check_restorable(self, record: SandboxRecord, statepoint: Statepoint, *, files_only: bool) -> None:
        """Every artefact is there, before anything is touched (guarantee 3)."""
        if statepoint.status is not Status.COMMITTED or statepoint.files is None:
            raise RestoreError(
                f"{statepoint.id} is {statepoint.status}, not committed", code="statepoint-not-committed"
            )
        self.plugins.filesystem(statepoint.files.backend).verify(statepoint.files)
        if statepoint.processes and not files_only:
            backend = self.plugins.process(statepoint.processes.backend)
            if backend.capabilities.memory:
                self.plugins.require("process", backend.name)
                self.capturer.check_base(record, statepoint.base, RestoreError)
            backend.verify(statepoint.processes, self.artefacts.images(statepoint))
            self._check_drill(statepoint)

    def _check_drill(self, statepoint: Statepoint) -> None:
        drill = self.registry.drills.get(statepoint.id)
        if drill is not None and drill.error:
            raise RestoreError(
                f"{statepoint.id} could not be restored when that was tried at {drill.created_at}: {drill.error}",
                code="drill-failed",
                state="nothing was changed",
                remedy=f"try again: planarian drill {statepoint.id}; or leave processes out: --files-only",
            )

    def check_rollback(
        self, record: SandboxRecord, statepoint: Statepoint, *, files_only: bool = False, accept_pivots: bool = False
    ) -> list[Gap]:
        """All that can be known before a rollback begins; returns what it can't undo. Changes nothing."""
        self.check_restorable(record, statepoint, files_only=files_only)
        return self._check_remote(record, statepoint, accept_pivots=accept_pivots)

    def _check_remote(self, record: SandboxRecord, statepoint: Statepoint, *, accept_pivots: bool) -> list[Gap]:
        plan = self.remote.plan(record, statepoint)
        consented = self.remote.consent(record, plan, given=accept_pivots)
        self.remote.rehearse(record, plan)
        return [*plan.gaps, *consented]

    def preview(self, record: SandboxRecord, statepoint: Statepoint) -> RollbackPreview:
        """What a rollback would do; nothing but the staging area is touched, and that is cleared."""
        self.check_restorable(record, statepoint, files_only=False)
        effects = self.remote.plan(record, statepoint).effects
        destination = self.by_files(record, statepoint)
        try:
            count, sample = destination.changed(record)
        finally:
            destination.finish()
        return RollbackPreview(statepoint, count or 0, sample, described(statepoint), effects)

    def by_files(
        self,
        record: SandboxRecord,
        statepoint: Statepoint,
        *,
        switched: str = "rollback.switched",
        files_only: bool = False,
    ) -> Destination:
        """The long way to a statepoint, ready: its files staged and verified."""
        return ByFiles(
            self.home, self.registry, self.plugins, record, statepoint, switched=switched, files_only=files_only
        )

    def _by_copy(self, source: SandboxRecord, statepoint: Statepoint) -> ByCopy | None:
        """The short way, where a valid copy is there."""
        standby = self.standbys.take(source, statepoint)
        if standby is None:
            return None
        return ByCopy(self.home, self.registry, self.plugins, self.standbys, standby, statepoint)

    def rollback(
        self,
        record: SandboxRecord,
        statepoint: Statepoint,
        *,
        safety: bool = True,
        files_only: bool = False,
        accept_pivots: bool = False,
    ) -> RestoreContext:
        """Bring a sandbox and its remote services to ``statepoint``.

        Raises:
            RestoreError, CompensationError: ``state`` says where the sandbox is now.
        """
        copy = None if files_only else self._by_copy(record, statepoint)
        try:
            if copy is None:
                self.check_restorable(record, statepoint, files_only=files_only)
            gaps = self._check_remote(record, statepoint, accept_pivots=accept_pivots)
            operation = Operation(
                new_id("op"),
                "rollback",
                record.id,
                statepoint.id,
                phase=_first_phase(safety, copy),
                files_only=files_only,
            )
            operation = self.registry.begin(operation)
            destination, operation, before, unsaved = self._make_ready(operation, record, statepoint, copy, safety)
        except BaseException:
            if copy is not None:
                copy.finish()
            raise
        try:
            undone, revived = self.go_back(operation, record, statepoint, destination)
            files = destination.changed(record)
        finally:
            destination.finish()
        self.plugins.notify("planarian_rolled_back", sandbox=record, statepoint=statepoint, safety=before)
        return context.restore_context(
            self.registry,
            "rollback",
            record.id,
            statepoint,
            files=files,
            running=revived.running,
            not_undone=[*gaps, *unsaved, *revived.gaps],
            safety=before,
            remote=undone,
        )

    def _make_ready(
        self, operation: Operation, record: SandboxRecord, statepoint: Statepoint, copy: ByCopy | None, safety: bool
    ) -> tuple[Destination, Operation, Statepoint | None, list[Gap]]:
        """The safety statepoint and the way to go; what fails ends the operation, nothing was changed."""
        destination: Destination | None = copy
        try:
            reach("rollback.begun")
            before, unsaved = self._safety(record, statepoint) if safety else (None, [])
            if safety:
                operation = self.registry.advance(operation, "safe", safety_id=before.id if before else None)
            if destination is None:
                destination = self.by_files(record, statepoint, files_only=operation.files_only)
            reach("rollback.staged")
        except BaseException:
            if destination is not None:
                destination.finish()
            self.registry.end(operation)
            raise
        return destination, operation, before, unsaved

    def _safety(self, record: SandboxRecord, target: Statepoint) -> tuple[Statepoint | None, list[Gap]]:
        """The state before the rollback; where the whole workspace of a directory sandbox is gone, there is none."""
        if not Path(record.spec.layer).exists():
            return None, [Gap(Domain.FILES, record.spec.layer, "was gone altogether: no safety statepoint was taken")]
        description = f"before the rollback to {target.name or target.id}"
        try:
            return self.snapshot_anyway(
                record, SnapshotRequest(description=description, automatic=True, apart_from=target)
            ), []
        except CaptureError as error:
            error.remedy = f"{error.remedy}; or give the present state up: rollback --no-safety"
            raise

    def go_back(
        self, operation: Operation, record: SandboxRecord, statepoint: Statepoint, destination: Destination
    ) -> tuple[list[RemoteEffect], Revived]:
        """The part of a rollback that changes things; journaled, and safe to repeat from its beginning."""
        undone: list[RemoteEffect] = []
        try:
            if operation.phase != "stopping":
                operation = self.registry.advance(operation, "stopping")
            plan = self.remote.plan(record, statepoint)
            self._end(record, at_once=destination.apart and not plan.moves)
            reach("rollback.stopped")
            if plan.moves:
                self.remote.compensate(record, plan, undone)
                operation = self.registry.advance(operation, "compensated")
            reach("rollback.compensated")
            arrived, revived = destination.arrive(record)
            reach("rollback.restored")
        except Exception as error:
            self._turn_back(operation, record, statepoint, error)
        self.registry.end(operation, record=arrived, head=statepoint.id, taken=destination.taken, left=destination.left)
        reach("rollback.committed")
        return undone, revived

    def _end(self, record: SandboxRecord, *, at_once: bool) -> None:
        """End what runs. ``at_once``: without waiting for it, where what comes next has nothing in common with it."""
        sandbox = self.plugins.sandbox(record.spec.backend)
        if at_once and record.live is not None and isinstance(sandbox, KillsAtOnce):
            sandbox.kill(record.spec, record.live)
        else:
            sandbox.stop(record.spec, record.live)

    def _turn_back(
        self,
        operation: Operation,
        record: SandboxRecord,
        statepoint: Statepoint,
        error: Exception,
    ) -> NoReturn:
        """A rollback failed half-way: return to the safety statepoint, or leave the journal entry to ``recover``."""
        cause = f"the rollback to {statepoint.id} failed: {error}"
        if operation.safety_id is None:
            raise RestoreError(
                cause,
                code="rollback-unfinished",
                state=f"{record.id} is stopped half-way; nothing is lost",
                remedy=_RECOVER,
            ) from error
        try:
            self.return_to_safety(operation, record)
        except Exception as second:
            raise RestoreError(
                f"{cause}; and so did the way back: {second}",
                code="rollback-unfinished",
                state=f"{record.id} is stopped half-way; nothing is lost",
                remedy=_RECOVER,
            ) from error
        if isinstance(error, CompensationError):
            raise error
        raise RestoreError(
            cause,
            code="rollback-failed",
            state=f"{record.id} is back where it was before ({operation.safety_id})",
            remedy="mend the cause and try again, or choose another statepoint; --files-only leaves processes out",
        ) from error

    def return_to_safety(self, operation: Operation, record: SandboxRecord) -> None:
        """Bring the sandbox and its services back to the operation's safety statepoint and end the operation."""
        assert operation.safety_id is not None
        safety = self.registry.statepoint(operation.safety_id)
        assert safety.files is not None
        self.plugins.sandbox(record.spec.backend).stop(record.spec, record.live)
        record = replace(record, live=None)
        self.remote.compensate(record, self.remote.plan(record, safety), [])
        record, _ = self.by_files(record, safety, switched="", files_only=operation.files_only).arrive(record)
        self.registry.end(operation, record=record, head=safety.id)

    # --- fork ---

    def fork(
        self,
        source: SandboxRecord,
        statepoint: Statepoint,
        name: str = "",
        *,
        files_only: bool = False,
        made_by: str = "",
    ) -> tuple[SandboxRecord, RestoreContext]:
        """Make a new sandbox from a statepoint. The caller holds the source's lock, shared.

        Raises:
            RestoreError, SandboxError: nothing remains of the fork.
        """
        self.sandboxes.check_name(name)
        copy = None if files_only else self._by_copy(source, statepoint)
        try:
            if copy is None:
                self.check_restorable(source, statepoint, files_only=files_only)
            record = self.sandboxes.successor(source, name, made_by)
            if copy is not None:
                record = replace(record, spec=copy.spec)
            record, revived, gaps = self._fork(source, record, statepoint, copy, files_only=files_only)
        finally:
            if copy is not None:
                copy.finish()
        self.plugins.notify("planarian_forked", source=source, sandbox=record, statepoint=statepoint)
        return record, context.restore_context(
            self.registry,
            "fork",
            record.id,
            statepoint,
            running=revived.running,
            not_undone=[*gaps, *revived.gaps],
        )

    def _fork(
        self,
        source: SandboxRecord,
        record: SandboxRecord,
        statepoint: Statepoint,
        copy: ByCopy | None,
        *,
        files_only: bool,
    ) -> tuple[SandboxRecord, Revived, list[Gap]]:
        """Make the new sandbox ``record`` known, and bring it to its statepoint; a failure leaves nothing of it."""
        branch = Branch(record.branch_id, record.id, head=statepoint.id, forked_from=statepoint.id)
        with self.sandboxes.lock(record.id).acquire(exclusive=True):
            operation = Operation(new_id("op"), "fork", record.id, statepoint.id)
            try:
                self.registry.add_sandbox(record, branch, operation, copy.taken if copy else None)
                reach("fork.begun")
                gaps = self.remote.fence(source, record, statepoint)
                record, revived = self._arrive(record, statepoint, copy, files_only=files_only)
                reach("fork.restored")
            except BaseException:
                try:
                    self.remote.forget(record)  # a branch that was made for it
                finally:
                    self.sandboxes.destroy(record, operation)
                raise
            self.registry.end(operation, record=record)
            reach("fork.committed")
        return record, revived, gaps

    def _arrive(
        self, record: SandboxRecord, statepoint: Statepoint, copy: ByCopy | None, *, files_only: bool
    ) -> tuple[SandboxRecord, Revived]:
        """Bring a new sandbox to its statepoint."""
        self.sandboxes.folder(record.id).mkdir(mode=0o700, parents=True, exist_ok=True)
        if copy is not None:
            return copy.arrive(record)
        destination = self.by_files(record, statepoint, switched="fork.switched", files_only=files_only)
        reach("fork.staged")
        return destination.arrive(record)


def _first_phase(safety: bool, copy: ByCopy | None) -> str:
    """Where a rollback begins in the journal: what needs no preparing needs no entry for it."""
    if safety:
        return "begun"
    return "safe" if copy is None else "stopping"
