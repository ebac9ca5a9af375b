"""A sandbox's changes written to the host's workspace: previewed, checked against what the host did, and undoable.

Order: compare, journal, keep what is replaced, write, record. A crash or a failure before the record undoes it
(:func:`finish`). All that comes out of the sandbox is hostile: :mod:`planarian_core.apply_policy` filters it, and
:mod:`planarian_core.writing` follows no symlink.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from planarian_core.applied_changes import AppliedChanges, AppliedPath, ApplyConflict, ApplyRequest, NotApplied
from planarian_core.applied_store import AppliedStore, FileState, Replaced
from planarian_core.apply_plan import Decision, Ends, Verdict, plan, reports
from planarian_core.apply_undo import alone, checked, journal, kept_words, raise_clearly
from planarian_core.apply_writing import mark_of, write
from planarian_core.capture import SnapshotRequest
from planarian_core.directory_tree import DirectoryTree
from planarian_core.errors import ConfigurationError, LineageError, RestoreError
from planarian_core.faults import reach
from planarian_core.model import Application, SandboxRecord, Statepoint, new_id, utc_now
from planarian_core.registry import Operation
from planarian_core.seen_files import Excluding, SeenFiles, at_creation, at_statepoint, now
from planarian_core.statepoint_manager import StatepointManager


@dataclass(frozen=True)
class _Target:
    """Where changes go. A fork that works in place began at the statepoint ``began`` of the sandbox ``source``, whose
    workspace it is.
    """

    record: SandboxRecord
    workspace: Path
    source: SandboxRecord | None = None
    began: Statepoint | None = None


class Applier:
    """Applies, and takes back. The caller holds the sandbox's exclusive lock."""

    def __init__(self, manager: StatepointManager) -> None:
        self.manager = manager
        self.registry = manager.registry
        self.plugins = manager.plugins

    # --- applying ---

    def apply(self, record: SandboxRecord, request: ApplyRequest) -> AppliedChanges:
        """See :meth:`planarian_core.Planarian.apply`."""
        target = self._target(record)
        with self._alone(target):
            if request.preview:
                with now(self.plugins, record) as theirs, self._ends(target, theirs) as ends:
                    return self._changes(ends, target, request, self._plan(ends, theirs, request), "")
            point = self.manager.snapshot_anyway(
                record, SnapshotRequest(description="before it was applied to the workspace", automatic=True)
            )
            with at_statepoint(self.plugins, record, point) as theirs, self._ends(target, theirs) as ends:
                return self._apply(ends, target, request, self._plan(ends, theirs, request), point.id)

    def _apply(
        self, ends: Ends, target: _Target, request: ApplyRequest, decisions: Sequence[Decision], statepoint_id: str
    ) -> AppliedChanges:
        changes = self._changes(ends, target, request, decisions, statepoint_id)
        if changes.conflicts and not request.skip_conflicts:
            told = "; ".join(f"{one.path}: {one.reason}" for one in changes.conflicts[:5])
            raise ApplyConflict(
                f"{len(changes.conflicts)} of the changed paths conflict with the workspace: {told}",
                changes,
                state="nothing was written",
                remedy="planarian apply --preview shows both sides; then --skip-conflicts, or --theirs",
            )
        writing = [decision for decision in decisions if decision.writes]
        if not writing:
            return changes
        paths = tuple(decision.path for decision in writing)
        application = Application(
            new_id("ap"), target.record.id, statepoint_id, str(target.workspace), paths, utc_now()
        )
        left_out = self._carry_out(ends, target, application, writing)
        return replace(changes, id=application.id, left_out=tuple(NotApplied(*one) for one in left_out))

    def _plan(self, ends: Ends, theirs: SeenFiles, request: ApplyRequest) -> list[Decision]:
        paths = [_in_workspace(theirs, path) for path in request.paths]
        return plan(ends, paths, force=request.theirs, with_git_config=request.with_git_config)

    def _changes(
        self, ends: Ends, target: _Target, request: ApplyRequest, decisions: Sequence[Decision], statepoint_id: str
    ) -> AppliedChanges:
        by = {verdict: [d for d in decisions if d.verdict is verdict] for verdict in Verdict}
        told = reports(ends, by[Verdict.CONFLICT])
        return AppliedChanges(
            "",
            target.record.id,
            statepoint_id,
            str(target.workspace),
            request.preview,
            tuple(AppliedPath(d.path, d.change, d.dropped, d.reason) for d in by[Verdict.APPLY]),
            tuple(NotApplied(d.path, d.reason, told.get(d.path, "")) for d in by[Verdict.CONFLICT]),
            tuple(NotApplied(d.path, d.reason) for d in by[Verdict.HELD_BACK]),
            tuple(d.path for d in by[Verdict.SAME]),
        )

    def _carry_out(
        self, ends: Ends, target: _Target, application: Application, decisions: Sequence[Decision]
    ) -> list[tuple[str, str]]:
        operation = journal(self.manager, application)
        store = AppliedStore(self.manager.home, application.id)
        try:
            reach("apply.begun")
            store.save(ends.ours, [Replaced(d.path, d.ours, d.was, d.becomes) for d in decisions])
            operation = self.registry.advance(operation, "saved")
        except BaseException as error:
            store.discard()
            self.registry.end(operation)
            raise_clearly(error, "apply-failed", "nothing was written")
        try:
            reach("apply.saved")
            left_out = write(ends, target.workspace, decisions, application.id)
            reach("apply.written")
        except Exception as error:
            self._take_back(operation, store, target.workspace, error)
        self.registry.applications.put(application.id, application)
        reach("apply.recorded")
        self.registry.end(operation)
        reach("apply.committed")
        return left_out

    def _take_back(self, operation: Operation, store: AppliedStore, workspace: Path, error: Exception) -> NoReturn:
        """It failed while it wrote: all is put back."""
        try:
            done = store.put_back(workspace, mark_of(store.id))
        except Exception as second:
            raise RestoreError(
                f"the changes could not be written: {error}; nor could what was written be taken back: {second}",
                code="apply-unfinished",
                state=f"the workspace is half-way; what was replaced is kept in {store.folder}",
                remedy="mend the cause, then: planarian recover",
            ) from error
        self.registry.end(operation)
        if not done.kept:
            store.discard()
        raise_clearly(error, "apply-failed", f"the workspace is as it was{kept_words(done.kept, store)}")

    # --- what with what ---

    def _target(self, record: SandboxRecord) -> _Target:
        if not self.plugins.sandbox(record.spec.backend).capabilities.in_place:
            if record.spec.root:
                raise ConfigurationError(
                    f"{record.name or record.id} stands on an image: its workspace is a directory of that",
                    code="apply-image",
                    remedy="take a patch out of it: planarian run -- git diff",
                )
            return _Target(record, checked(record.spec.workspace))
        began = self.registry.branch(record.id).forked_from
        if began is None:
            raise ConfigurationError(
                f"{record.name or record.id} works in place: what it changed is in the workspace already",
                code="apply-in-place",
                remedy="nothing is left to do; planarian diff shows what changed",
            )
        try:
            point = self.registry.statepoint(began)
            source = self.registry.sandbox(point.sandbox_id)
        except LineageError as error:
            raise ConfigurationError(
                f"the sandbox that {record.id} was forked from is gone, and with it the workspace to apply to",
                code="apply-source-gone",
                remedy=f"copy what you need from {record.spec.workspace}",
            ) from error
        return _Target(record, checked(source.spec.workspace), source, point)

    @contextmanager
    def _alone(self, target: _Target) -> Iterator[None]:
        """One application at a time, and nothing else in the workspace that a fork is applied to."""
        with ExitStack() as stack:
            if target.source is not None:
                stack.enter_context(self.manager.sandboxes.hold(target.source.id, exclusive=True))
            stack.enter_context(alone(self.manager))
            yield

    @contextmanager
    def _ends(self, target: _Target, theirs: SeenFiles) -> Iterator[Ends]:
        applied = self._applied_before(target)
        with ExitStack() as stack:
            tree = stack.enter_context(DirectoryTree(target.workspace))
            if target.source is None or target.began is None:
                yield Ends(at_creation(self.plugins, target.record).files, theirs.files, tree, applied)
                return
            base = stack.enter_context(at_statepoint(self.plugins, target.source, target.began))
            ours = Excluding(tree, target.source.spec.exclude)
            yield Ends(base.files, theirs.files, ours, applied)

    def _applied_before(self, target: _Target) -> dict[str, FileState | None]:
        """What this sandbox, or one that it was forked from before it was forked, applied to the workspace last."""
        until: dict[str, str] = {target.record.id: ""}
        record = target.record
        with suppress(LineageError):
            while (began := self.registry.branch(record.id).forked_from) is not None:
                source = self.registry.sandbox(self.registry.statepoint(began).sandbox_id)
                if source.id in until:
                    break
                until[source.id] = min(filter(None, [record.created_at, until[record.id]]))
                record = source
        found: dict[str, FileState | None] = {}
        for application in self.registry.applications.all().values():
            last = until.get(application.sandbox_id)
            if last is None or (last and application.created_at > last):
                continue
            if application.workspace == str(target.workspace):
                with suppress(RestoreError):  # what was applied is then unknown, which gives conflicts at worst
                    stored = AppliedStore(self.manager.home, application.id).load()
                    found |= {one.path: one.became for one in stored}
        return found


def _in_workspace(theirs: SeenFiles, path: str) -> str:
    shown = theirs.shown(theirs.locate(path))
    if shown.startswith("/"):
        raise ConfigurationError(
            f"{path} lies outside of the workspace, and only that is applied to the host",
            code="path-outside",
            remedy="name a path in the workspace",
        )
    return "" if shown == "." else shown
