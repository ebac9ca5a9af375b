"""Picking a sandbox up again that doesn't run: later, after a reboot, after its init was killed.

It is brought to its head. Files that were left otherwise are kept first as a statepoint of their own; with ``as_left``
they are what the sandbox goes on with, and processes start anew.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from planarian_core.capture import SnapshotRequest
from planarian_core.errors import RestoreError, SandboxError
from planarian_core.live_changes import changed_files
from planarian_core.model import Domain, Gap, RestoreContext, SandboxRecord, Statepoint, Status
from planarian_core.statepoint_manager import StatepointManager


def attach(
    statepoints: StatepointManager,
    record: SandboxRecord,
    *,
    as_left: bool = False,
    files_only: bool = False,
    accept_pivots: bool = False,
) -> RestoreContext | None:
    """Let a sandbox run again; None when it runs already. The caller holds its exclusive lock.

    Where nothing was captured yet the files as they were left are all there is, and it goes on with them.

    Args:
        as_left: go on with the files as they were left, not with the head's.
        files_only: of the head, let processes start anew.
        accept_pivots: go back past remote effects that can't be undone.

    Raises:
        SandboxError: an operation was cut off and is to be recovered first.
        RestoreError, CaptureError: it doesn't run; its files, or the statepoint that keeps them, are there.
    """
    if statepoints.sandboxes.running(record):
        return None
    pending = statepoints.registry.operations(record.id)
    if pending:
        raise SandboxError(
            f"{record.id} is in the middle of a {pending[0].kind} that was cut off",
            code="sandbox-unfinished",
            remedy="planarian recover",
        )
    head = _head(statepoints, record)
    if as_left or head is None:
        return _as_left(statepoints, record, nothing_captured=head is None)
    try:
        differs = not Path(record.spec.layer).exists() or changed_files(statepoints, record, head)[0] != 0
        restored = statepoints.rollback(
            record, head, safety=differs, files_only=files_only, accept_pivots=accept_pivots
        )
    except RestoreError as error:
        error.remedy = f"{error.remedy}; or go on with the files as they were left: planarian attach --as-left"
        raise
    return replace(restored, action="attach")


def _head(statepoints: StatepointManager, record: SandboxRecord) -> Statepoint | None:
    head_id = statepoints.registry.branch(record.id).head
    head = statepoints.registry.find(head_id) if head_id else None
    return head if head is not None and head.status is Status.COMMITTED else None


def _as_left(statepoints: StatepointManager, record: SandboxRecord, *, nothing_captured: bool) -> RestoreContext:
    """Keep the files in a statepoint, and start the sandbox on them."""
    request = SnapshotRequest(description="the files as they were left", automatic=True)
    left = statepoints.snapshot(record, request)
    restored = statepoints.rollback(record, left, safety=False, files_only=True)
    reason = "they ended with the sandbox" + ("; nothing had been captured yet" if nothing_captured else "")
    gone = Gap(Domain.PROCESSES, "what ran before", reason)
    return replace(restored, action="attach", not_undone=(gone, *restored.not_undone))
