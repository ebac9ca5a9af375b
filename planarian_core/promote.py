"""Promotion: the state of a fork becomes the head of the sandbox that it was forked from.

The fork is captured as it is now. A new statepoint of the source shares those artefacts, and the source is rolled back
to it, with a safety statepoint: its old head stays reachable. The new statepoint hangs below the fork point, because
what it holds grew from there; what the source did since is another line of work. A remote service that has versions
gives the source the fork's; any other stays where it is, because the fork was fenced off. Each step leaves a whole
state: a runtime that is killed between them leaves at most a statepoint that nobody asked for by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from planarian_core import coverage
from planarian_core.capture import SnapshotRequest, shared
from planarian_core.context import one_line
from planarian_core.errors import LineageError, RestoreError
from planarian_core.faults import reach
from planarian_core.live_changes import changed_files
from planarian_core.logged_service import adopted
from planarian_core.model import (
    Artefact,
    Branch,
    Domain,
    Gap,
    RestoreContext,
    SandboxRecord,
    Statepoint,
    Status,
    new_id,
    utc_now,
)
from planarian_core.policy import CallCounter
from planarian_core.registry import Operation
from planarian_core.statepoint_manager import StatepointManager

_NAMED = 10


@dataclass(frozen=True)
class Conflict:
    """Something that the source did since the fork point, and that a promotion sets aside.

    ``kind``: ``statepoint``, ``moved`` (to another line of work), ``calls``, ``files`` or ``remote``.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class PromotionPreview:
    """What a promotion would do, and what speaks against it."""

    fork: str
    source: str
    fork_point: str
    conflicts: tuple[Conflict, ...]


class Promotion:
    """One fork and its source. The caller holds the exclusive locks of both, the source's first."""

    def __init__(self, statepoints: StatepointManager, calls: CallCounter, source: SandboxRecord, fork: SandboxRecord):
        self._statepoints = statepoints
        self._registry = statepoints.registry
        self._sandboxes = statepoints.sandboxes
        self._calls = calls
        self._source = source
        self._fork = fork
        self._point = self._registry.statepoint(self._registry.branch(fork.id).forked_from or "")

    def preview(self) -> PromotionPreview:
        """Changes nothing. CompensationError when a remote service of the source can't be asked."""
        return PromotionPreview(self._fork.id, self._source.id, self._point.id, tuple(self._conflicts()))

    def run(self, *, force: bool = False, files_only: bool = False, accept_pivots: bool = False) -> RestoreContext:
        """Promote the fork.

        Args:
            force: set aside what the source did since; its safety statepoint keeps it.

        Raises:
            RestoreError: ``promote-conflict``, with what the source did; nothing was changed. Or the source could not
                be brought to the new statepoint: ``state`` says where it is.
            CaptureError: the fork could not be captured; nothing was changed.
        """
        conflicts = () if force else self.preview().conflicts
        if conflicts:
            raise RestoreError(
                f"{self._source.id} went on since {self._fork.id} was forked from {self._point.id}: "
                + "; ".join(conflict.text for conflict in conflicts),
                code="promote-conflict",
                state="nothing was changed",
                remedy=f"planarian promote {self._fork.id} --force: a safety statepoint keeps what is set aside",
            )
        why = "by request" if files_only else ""
        request = SnapshotRequest(description=f"as promoted into {self._source.id}", files_only=why)
        captured = self._statepoints.snapshot(self._fork, request)
        promoted = self.adopt(captured)
        restored = self._statepoints.rollback(
            self._source, promoted, files_only=files_only, accept_pivots=accept_pivots
        )
        left = self._left_behind(captured, promoted)
        return replace(restored, action="promote", not_undone=(*left, *restored.not_undone))

    # --- what the source did ---

    def _conflicts(self) -> Iterator[Conflict]:
        yield from self._statepoints_since()
        if self._statepoints.unchanged(self._source):
            return  # whatever was called since its head left nothing behind
        calls = self._calls.count(self._source.id)
        if calls:
            yield Conflict("calls", f"{calls} tool calls since its last statepoint")
        head_id = self._registry.branch(self._source.id).head
        head = self._registry.find(head_id) if head_id else None
        if head is None or head.status is not Status.COMMITTED:
            return
        yield from self._files_since(head)
        for effect in self._statepoints.remote.plan(self._source, head).effects:
            yield Conflict("remote", one_line(f"{effect.service}: {effect.summary}", 200))

    def _statepoints_since(self) -> Iterator[Conflict]:
        """Those that lead to the source's head and not to the fork point, oldest first."""
        known = {s.id: s for s in self._registry.statepoints(self._source.id)}
        known.setdefault(self._point.id, self._point)
        to_head = _line(known, self._registry.branch(self._source.id))
        to_point = _line(known, self._point.id)
        for statepoint_id in reversed(to_head):
            if statepoint_id not in to_point:
                statepoint = known[statepoint_id]
                what = one_line(statepoint.name or statepoint.description, 100)
                yield Conflict("statepoint", f"statepoint {statepoint_id} {what}".rstrip())
        if self._point.id not in to_head:
            yield Conflict("moved", f"it is at {to_head[0] if to_head else 'no statepoint'}, before the fork point")

    def _files_since(self, head: Statepoint) -> Iterator[Conflict]:
        """How the source's files differ from its head."""
        if not Path(self._source.spec.layer).exists():
            yield Conflict("files", "its files are gone altogether")
            return
        count, names = changed_files(self._statepoints, self._source, head)
        if count is None:
            yield Conflict("files", "files may have changed since its last statepoint")
        elif count:
            sample = ", ".join(one_line(name, 100) for name in names[:_NAMED])
            yield Conflict("files", f"{count} files changed since its last statepoint: {sample}")

    # --- the new statepoint ---

    def adopt(self, captured: Statepoint, description: str = "") -> Statepoint:
        """A statepoint of the source that holds what was captured of the fork; the source isn't moved."""
        source = self._source
        remote = self._statepoints.remote.adopt(source, captured, self._point)
        standing = self._sandboxes.standing_gaps(source)
        name = self._fork.name or self._fork.id
        statepoint = Statepoint(
            id=new_id("sp"),
            sandbox_id=source.id,
            branch_id=source.branch_id,
            parent_id=self._point.id,
            created_at=utc_now(),
            automatic=captured.automatic,
            description=description or f"promoted from the fork {name}",
            facts=captured.facts,
            files=shared(captured, captured.files),
            processes=self._shared_processes(captured),
            process_list=captured.process_list,
            remote=remote,
            coverage=coverage.shared(captured, captured.files, remote, standing),
            base=captured.base,
        )
        operation = Operation(new_id("op"), "snapshot", source.id, statepoint.id)
        self._registry.add(statepoint, operation)
        try:
            reach("promote.begun")
            committed = self._registry.commit(statepoint, operation, move_head=False)
        except BaseException as error:
            self._registry.discard(statepoint, str(error) or type(error).__name__, operation)
            raise
        reach("promote.shared")
        return committed

    def _shared_processes(self, captured: Statepoint) -> Artefact | None:
        """The fork's processes: where they ran in a directory of its own, they are started again in the source's."""
        artefact = shared(captured, captured.processes)
        if artefact is None or self._fork.spec.workspace == self._source.spec.workspace:
            return artefact
        return replace(artefact, workspace=artefact.workspace or self._fork.spec.workspace)

    def _left_behind(self, captured: Statepoint, promoted: Statepoint) -> list[Gap]:
        """Remote services in which the fork had a branch of its own that can't be made the source's."""
        reason = f"what {self._fork.id} did there stays in its own branch"
        taken = {position.service for position in promoted.remote if adopted(position)}
        return [Gap(Domain.REMOTE, p.service, reason) for p in captured.remote if p.service not in taken]


def source_of(statepoints: StatepointManager, fork: SandboxRecord) -> str:
    """The id of the sandbox that a fork came from.

    Raises:
        LineageError: it is no fork, or that sandbox is gone.
    """
    origin = statepoints.registry.branch(fork.id).forked_from
    if origin is None:
        raise LineageError(
            f"{fork.id} is no fork: there is nothing that it could be promoted into",
            code="not-a-fork",
            state="nothing was changed",
            remedy="planarian list shows which sandboxes are forks",
        )
    point = statepoints.registry.find(origin)
    if point is None:
        raise LineageError(
            f"the sandbox that {fork.id} was forked from is gone",
            code="source-gone",
            state="nothing was changed",
            remedy=f"go on in {fork.id} itself: it needs no source",
        )
    return point.sandbox_id


def _line(known: dict[str, Statepoint], start: Branch | str) -> list[str]:
    """The ids from a statepoint, or a branch's head, up to where its line of work began."""
    at = start if isinstance(start, str) else start.head
    line: list[str] = []
    while at in known and at not in line:
        line.append(at)
        at = known[at].parent_id or ""
    return line
