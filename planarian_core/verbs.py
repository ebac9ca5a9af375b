"""The verbs that people reach for by hand: compare, bring back, apply, keep, give up, promote, pick up again.

Methods of :class:`planarian_core.runtime.Planarian`, which takes them up under their names.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from planarian_core.errors import LineageError, RestoreError, SandboxError
from planarian_core.logged_service import adopted
from planarian_core.model import Drill, Hold, RestoreContext, SandboxRecord, Statepoint
from planarian_core.sandbox import Sandbox, StatepointRef

if TYPE_CHECKING:
    from planarian_core.applied_changes import AppliedChanges, Undone
    from planarian_core.diff import Diff, Side
    from planarian_core.promote import Promotion, PromotionPreview
    from planarian_core.prune_choice import PrunePolicy
    from planarian_core.reclaim import Pruned
    from planarian_core.restore_paths import RestoredPaths
    from planarian_core.runtime import Planarian


def diff(
    self: Planarian,
    a: StatepointRef,
    b: StatepointRef | None = None,
    *,
    of: Sandbox | None = None,
    paths: Sequence[str] = (),
    text: bool = True,
) -> Diff:
    """What lies between two statepoints, of a sandbox or of it and its forks; see :func:`planarian_core.diff.diff`.

    Args:
        b: None is the sandbox as it is now.
        of: the sandbox that references are of; the owner of ``a`` if None.
    """
    from planarian_core.diff import Side
    from planarian_core.diff import diff as compare

    source = of or self.owner_of(a)
    with self.sandboxes.hold(source.id, exclusive=b is None):
        before = _side(self, source, a)
        after = _side(self, source, b) if b is not None else Side(source.record)
        return compare(self.plugins, self.statepoints.remote, before, after, paths=paths, text=text)


def restore_paths(
    self: Planarian, sandbox: Sandbox, statepoint: StatepointRef, paths: Sequence[str], *, safety: bool = True
) -> RestoredPaths:
    """Bring single paths back from a statepoint: files, or directories with all in them; removed where they
    weren't there. The rest of the sandbox, and what runs in it, is not touched.

    Args:
        paths: relative to the workspace, or absolute as the sandbox sees them. Symlinks are not followed.
        safety: take a statepoint of the present state first.

    Raises:
        SandboxError: it doesn't run. ConfigurationError: a path is unknown. RestoreError: ``state`` says what is.
    """
    from planarian_core.restore_paths import restore_paths as bring_back

    with self.sandboxes.hold(sandbox.id, exclusive=True):
        point = self.resolve(sandbox, statepoint)
        return bring_back(self.statepoints, sandbox.record, point, paths, safety=safety)


def apply(
    self: Planarian,
    sandbox: Sandbox,
    *,
    paths: Sequence[str] = (),
    preview: bool = False,
    theirs: bool = False,
    skip_conflicts: bool = False,
    with_git_config: bool = False,
) -> AppliedChanges:
    """Write what a sandbox changed in its workspace back to the host's; a fork in place: to its source's.

    Three-way: what the host did not change since the sandbox was made (or last applied) is written, what both have
    alike is left, the rest is a conflict. Owners stay those of the host; setuid bits, device nodes, attributes that
    mean something to the kernel, and what git on the host would execute are not written, and named.

    Args:
        paths: only these; relative to the workspace.
        preview: only say what would be done. Takes no statepoint, writes nothing.
        theirs: where there is a conflict, the sandbox's version.
        skip_conflicts: where there is one, the host's; without either a conflict is an error, nothing written.
        with_git_config: hooks, configuration and the like of version control, too.

    Raises:
        ApplyConflict: both sides changed a path. RestoreError: it could not be written; ``state`` says what is.
        ConfigurationError: there is nothing to apply to.
    """
    from planarian_core.applied_changes import ApplyRequest
    from planarian_core.apply import Applier

    request = ApplyRequest(tuple(paths), preview, theirs, skip_conflicts, with_git_config)
    with self.sandboxes.hold(sandbox.id, exclusive=True):
        return Applier(self.statepoints).apply(sandbox.record, request)


def undo_application(
    self: Planarian, sandbox: Sandbox, application: str = "", *, skip_conflicts: bool = False
) -> Undone:
    """Put back what an application (the last one if empty) replaced on the host; what somebody changed there since is
    a conflict.

    The handle may be of a sandbox that was removed since (:meth:`sandbox_of_application`).
    """
    from planarian_core.apply_undo import LAST, Undoer

    undoer = Undoer(self.statepoints)
    with self.sandboxes.hold(sandbox.id, exclusive=True):
        return undoer.undo(undoer.find(sandbox.id, application or LAST), skip_conflicts=skip_conflicts)


def sandbox_of_application(self: Planarian, application: str) -> Sandbox | None:
    """A handle on whose changes were applied, be it there or not; None for an id that nothing has."""
    found = self.registry.applications.get(application)
    return Sandbox(self, found.sandbox_id) if found is not None else None


def _side(self: Planarian, source: Sandbox, reference: StatepointRef) -> Side:
    """A statepoint with the sandbox that it is of; a full id may be another sandbox's."""
    from planarian_core.diff import Side

    found = reference if isinstance(reference, Statepoint) else None
    if found is None and isinstance(reference, str) and reference.startswith("sp-"):
        with suppress(LineageError):
            found = self.registry.statepoint(reference)
    found = found if found is not None and found.sandbox_id != source.id else self.resolve(source, reference)
    return Side(self.registry.sandbox(found.sandbox_id), found)


def hold(self: Planarian, statepoint: StatepointRef, note: str = "", *, of: Sandbox | None = None) -> Hold:
    """Keep a statepoint from every pruning until it is released.

    Args:
        note: why, for people.
        of: whose statepoint a reference means.
    """
    from planarian_core import reclaim

    return reclaim.hold(self.registry, self.resolve(of or self.owner_of(statepoint), statepoint), note)


def release(self: Planarian, statepoint: StatepointRef, *, of: Sandbox | None = None) -> bool:
    """Let a held statepoint go; whether it was held."""
    found = self.resolve(of or self.owner_of(statepoint), statepoint)
    held = self.registry.holds.get(found.id) is not None
    self.registry.holds.remove(found.id)
    return held


def prune(
    self: Planarian, policy: PrunePolicy, sandboxes: Sequence[Sandbox] | None = None, *, dry_run: bool = False
) -> Pruned:
    """Give up statepoints and free what they alone hold; their records, evidence and outcomes stay.

    Args:
        sandboxes: whose; all sandboxes of the home if None. Busy ones are passed over, and named.
        dry_run: only say what would go.

    Raises:
        PlanarianError: ``prune-unfinished`` or ``prune-not-freed``: what is pruned stays so, and ``state`` says it.
    """
    from planarian_core.reclaim import Reclaimer

    records = self.registry.sandboxes() if sandboxes is None else [sandbox.record for sandbox in sandboxes]
    timeout = self.config.lock_timeout
    pruned = Reclaimer(self.statepoints).prune(records, policy, dry_run=dry_run, timeout=timeout)
    if not dry_run:
        self.warmer.forget(pruned.statepoints)
        for record in records:
            _reclaim_undo_data(self, record)
    return pruned


def _reclaim_undo_data(self: Planarian, record: SandboxRecord) -> None:
    """What remote services keep for statepoints that are gone; a busy sandbox's waits for the next pruning."""
    points = self.registry.statepoints(record.id)
    if not self.registry.effects.entries(record.id) and not any(adopted(p) for point in points for p in point.remote):
        return
    try:
        with self.sandboxes.lock(record.id).acquire(exclusive=True, timeout=0):
            unreachable = self.statepoints.remote.reclaim(record)
    except SandboxError:
        return
    for gap in unreachable:
        logging.getLogger(__name__).warning("undo data of %s was not dropped: %s", gap.subject, gap.reason)


def promote(
    self: Planarian, fork: Sandbox, *, force: bool = False, files_only: bool = False, accept_pivots: bool = False
) -> RestoreContext:
    """Make the present state of a fork the head of the sandbox that it came from; the fork stays as it is.

    The source's old head stays reachable. Its remote services stay where they are, because the fork was fenced off; one
    that has versions goes to the fork's.

    Args:
        force: set aside what the source did since the fork point; a safety statepoint keeps it.
        files_only: leave the fork's processes out.
        accept_pivots: as in :meth:`rollback`.

    Raises:
        LineageError: it is no fork, or its source is gone.
        RestoreError: ``promote-conflict`` names what the source did since; nothing was changed.
    """
    with _promotion(self, fork) as promotion:
        restored = promotion.run(force=force, files_only=files_only, accept_pivots=accept_pivots)
        self.moved(restored.sandbox_id)
        self.moved(fork.id)
        return restored


def adopt(self: Planarian, statepoint: Statepoint, description: str = "") -> Statepoint:
    """Make what a statepoint of a fork holds a statepoint of the sandbox that the fork came from, too. Neither is
    moved, and the fork can be removed without it.

    It hangs below the fork point, and says of remote services what :meth:`promote` would.

    Raises:
        LineageError: it is of no fork, or given up, or the source is gone.
    """
    fork = self.owner_of(statepoint)
    with _promotion(self, fork) as promotion:
        return promotion.adopt(self.resolve(fork, statepoint), description)


def preview_promotion(self: Planarian, fork: Sandbox) -> PromotionPreview:
    """What :meth:`promote` would set aside."""
    with _promotion(self, fork) as promotion:
        return promotion.preview()


@contextmanager
def _promotion(self: Planarian, fork: Sandbox) -> Iterator[Promotion]:
    from planarian_core.promote import Promotion, source_of

    source_id = source_of(self.statepoints, fork.record)
    with self.sandboxes.hold(source_id, exclusive=True), self.sandboxes.hold(fork.id, exclusive=True):
        source = self.registry.sandbox(source_id)
        yield Promotion(self.statepoints, self.calls, source, fork.record)


def attach(
    self: Planarian, sandbox: Sandbox, *, as_left: bool = False, files_only: bool = False, accept_pivots: bool = False
) -> RestoreContext | None:
    """Pick a sandbox up again that doesn't run, at its newest statepoint; also after a reboot of the host.

    Files that were left otherwise are kept first, as a safety statepoint.

    Args:
        as_left: go on with the files as they were left; processes start anew.
        files_only: of the newest statepoint let processes start anew.
        accept_pivots: as in :meth:`rollback`.

    Returns:
        None when it runs already, and nothing was to be done.

    Raises:
        SandboxError, RestoreError, CaptureError: it doesn't run; nothing is lost.
    """
    from planarian_core.attach import attach as pick_up

    with self.sandboxes.hold(sandbox.id, exclusive=True):
        restored = pick_up(
            self.statepoints, sandbox.record, as_left=as_left, files_only=files_only, accept_pivots=accept_pivots
        )
        if restored is not None:
            self.moved(sandbox.id)
    return restored


def keep_warm(
    self: Planarian, statepoint: StatepointRef, copies: int = 1, *, of: Sandbox | None = None, wait: bool = False
) -> None:
    """Keep restored copies of a statepoint ready, whatever the policy ``standby`` says, for rollbacks and forks.

    Args:
        copies: how many; 0 leaves the statepoint to the policy again.
        wait: until they are there, or can't be made (memory, or see :meth:`drill`).
    """
    source = of or self.owner_of(statepoint)
    self.warmer.keep(self.resolve(source, statepoint), copies)
    if wait:
        self.warmer.settle()


def drill(self: Planarian, statepoint: StatepointRef, *, of: Sandbox | None = None) -> Drill:
    """Restore a statepoint beside everything else, to see that it can be, and drop that copy again.

    Returns what the registry says from now on: one that failed can't be gone back to with its processes.

    Raises:
        RestoreError: it could not be tried: this host lacks disk space, for example. LineageError: it was given up.
    """
    source = of or self.owner_of(statepoint)
    point = self.resolve(source, statepoint)
    record = self.registry.sandbox(point.sandbox_id)
    try:
        self.standbys.spare(self.standbys.build(record, point))
    except RestoreError:
        found = self.registry.drills.get(point.id)
        if found is None or not found.error:
            raise
        return found  # the registry's word is the result
    done = self.registry.drills.get(point.id)
    assert done is not None
    return done
