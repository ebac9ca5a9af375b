"""Single paths brought back from a statepoint, without touching the rest of the sandbox or what runs in it.

Order: check, compare, journal, safety statepoint, write, commit. What a killed runtime left is finished forward
(:func:`finish`): writing the same paths again is harmless.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from planarian_core.capture import SnapshotRequest
from planarian_core.codec import encode
from planarian_core.comparison import compare
from planarian_core.context import clip, one_line
from planarian_core.errors import ConfigurationError, PlanarianError, RestoreError
from planarian_core.faults import reach
from planarian_core.file_tree import FileKind
from planarian_core.interfaces import WritesInside
from planarian_core.model import Domain, Gap, SandboxRecord, Statepoint, new_id
from planarian_core.registry import Operation
from planarian_core.seen_files import SeenFiles, at_statepoint, now
from planarian_core.statepoint_manager import StatepointManager
from planarian_core.tree_changes import Changes, above_path, carry_out
from planarian_core.writing import Writer

_SAMPLE = 20


@dataclass(frozen=True)
class RestoredPaths:
    """What was brought back: the restore context of an agent that goes on. ``safety_id`` holds the state before.

    Paths are relative to the workspace, absolute outside of it. ``left_out``: what could not be brought back, by name.
    """

    statepoint: Statepoint
    sandbox_id: str
    paths: tuple[str, ...]
    restored: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    left_out: tuple[Gap, ...] = ()
    safety_id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = encode(self)
        return data

    def to_markdown(self, limit: int = 4000) -> str:
        """The same for an agent, in at most ``limit`` characters."""
        named = ", ".join(f"`{one_line(path, 200)}`" for path in self.paths[:_SAMPLE])
        lines = [
            f"# Files were brought back from statepoint {self.statepoint.id}",
            "",
            f"{named} of sandbox {self.sandbox_id}: again as at {self.statepoint.created_at}.",
            "All other files, and all processes, are as they were.",
        ]
        changed = (("Brought back", self.restored), ("Removed: not there at the statepoint", self.removed))
        for title, paths in changed:
            if paths:
                lines += ["", f"## {title} ({len(paths)})", *(f"- {one_line(p, 400)}" for p in paths[:_SAMPLE])]
            if len(paths) > _SAMPLE:
                lines.append(f"- … and {len(paths) - _SAMPLE} more")
        if not (self.restored or self.removed):
            lines += ["", "They were as they had been: nothing was changed."]
        if self.left_out:
            lines += ["", "## Left out", *(f"- {one_line(f'{g.subject}: {g.reason}', 400)}" for g in self.left_out[:9])]
        if self.safety_id:
            lines += ["", f"The state before is kept as {self.safety_id}: a rollback to it undoes this."]
        return clip("\n".join(lines) + "\n", limit)


def restore_paths(
    manager: StatepointManager, record: SandboxRecord, statepoint: Statepoint, paths: Sequence[str], *, safety: bool
) -> RestoredPaths:
    """Make ``paths``, with all below them, as they were; see :meth:`planarian_core.Planarian.restore_paths`. The
    caller holds the sandbox's exclusive lock.
    """
    if not paths:
        raise ConfigurationError("no path was named", code="path-missing", remedy="say what is to be brought back")
    manager.sandboxes.check_running(record)
    manager.check_restorable(record, statepoint, files_only=True)
    with _ends(manager, record, statepoint) as (present, past):
        located = tuple(dict.fromkeys(_located(present, past, path) for path in paths))
        shown = tuple(present.shown(path) for path in located)
        if not _plan(present, past, located).differences:
            return RestoredPaths(statepoint, record.id, shown)
    details = {"paths": list(located)}
    operation = manager.registry.begin(Operation(new_id("op"), "restore", record.id, statepoint.id, details=details))
    try:
        reach("restore.begun")
        before = _safety(manager, record, statepoint, shown) if safety else None
        operation = manager.registry.advance(
            operation,
            "writing",
            safety_id=before.id if before else None,
            details={**details, "head": manager.registry.branch(record.id).head},
        )
    except BaseException:
        manager.registry.end(operation)
        raise
    try:
        reach("restore.safe")
        done = _write(manager, record, statepoint, operation)
        reach("restore.written")
    except Exception as error:
        _turn_back(manager, record, statepoint, operation, error)
    manager.registry.end(operation)
    reach("restore.committed")
    return done


def finish(manager: StatepointManager, operation: Operation) -> str:
    """Finish what a killed runtime left of a restore; returns what became of it. The caller holds the lock."""
    record = manager.registry.sandbox(operation.sandbox_id)
    if operation.phase == "begun":
        manager.registry.end(operation)
        return "nothing had been restored"
    if not manager.sandboxes.running(record):
        manager.registry.end(operation)
        undo = f"; planarian rollback {operation.safety_id} undoes it" if operation.safety_id else ""
        return f"some of its paths may be restored, others not, for the sandbox doesn't run any more{undo}"
    if manager.registry.branch(record.id).head != operation.details["head"]:
        manager.registry.end(operation)
        return "the sandbox was brought elsewhere since: nothing more was restored"
    statepoint = manager.registry.statepoint(operation.statepoint_id)
    _write(manager, record, statepoint, operation)
    manager.registry.end(operation)
    return f"the paths are as at {statepoint.id}"


# --- what is to be done ---


@contextmanager
def _ends(
    manager: StatepointManager, record: SandboxRecord, statepoint: Statepoint
) -> Iterator[tuple[SeenFiles, SeenFiles]]:
    owner = manager.registry.sandbox(statepoint.sandbox_id)
    with now(manager.plugins, record) as present, at_statepoint(manager.plugins, owner, statepoint) as past:
        # A fork that works in place has its workspace elsewhere than its source.
        yield present, SeenFiles(past.tree, past.workspace, present.root)


def _located(present: SeenFiles, past: SeenFiles, path: str) -> str:
    located = present.locate(path)
    if not located and present.workspace:
        raise ConfigurationError(
            "the whole sandbox can't be brought back path by path", code="path-root", remedy="planarian rollback"
        )
    if past.tree.entry(located) is None and present.tree.entry(located) is None:
        above = next((a for a in above_path(located) if (e := past.tree.entry(a)) and e.kind is FileKind.SYMLINK), "")
        why = f": {present.shown(above)} is a symbolic link, which is not followed" if above else ""
        raise ConfigurationError(
            f"there is no {path}, neither at the statepoint nor now{why}",
            code="path-unknown",
            remedy="name a path of the statepoint (planarian diff shows what changed)",
        )
    return located


def _plan(present: SeenFiles, past: SeenFiles, located: Sequence[str]) -> Changes:
    changes = Changes()
    for path in located:
        found = list(compare(present.tree, past.tree, path, times=True, linked=changes.links))
        changes.differences += found
        for above in above_path(path) if any(d.after is not None for d in found) else ():
            is_now = present.tree.entry(above)
            if is_now is None and above not in changes.parents:
                changes.parents.append(above)
            elif is_now is not None and is_now.kind is not FileKind.DIRECTORY:
                raise ConfigurationError(
                    f"{present.shown(above)} is no directory now, so {present.shown(path)} can't be brought back",
                    code="path-blocked",
                    state="nothing was changed",
                    remedy="bring that one back instead, with all that is in it",
                )
    return changes


def _safety(
    manager: StatepointManager, record: SandboxRecord, statepoint: Statepoint, shown: Sequence[str]
) -> Statepoint:
    named = ", ".join(shown[:3]) + (" …" if len(shown) > 3 else "")
    description = f"before {named} was restored from {statepoint.name or statepoint.id}"
    try:
        return manager.snapshot_anyway(record, SnapshotRequest(description=clip(description, 300), automatic=True))
    except PlanarianError as error:
        error.remedy = f"{error.remedy}; or give the present files up: restore --no-safety"
        raise


# --- doing it ---


def _write(
    manager: StatepointManager, record: SandboxRecord, statepoint: Statepoint, operation: Operation
) -> RestoredPaths:
    """Compare again, for something may have run meanwhile, and write what differs."""
    with _ends(manager, record, statepoint) as (present, past), opened_root(manager, record) as root:
        located: list[str] = list(operation.details["paths"])
        changes = _plan(present, past, located)
        writer = Writer(root, f".planarian-{operation.id}")
        for path in located:
            writer.sweep(path)
        left_out = carry_out(writer, changes, past.tree, located)
        restored = [d.path for d in changes.differences if d.after is not None and d.path not in left_out]
        removed = [d.path for d in changes.differences if d.after is None]
        left_out |= dict(writer.left_out)
        return RestoredPaths(
            statepoint,
            record.id,
            tuple(map(present.shown, located)),
            tuple(map(present.shown, restored)),
            tuple(map(present.shown, removed)),
            tuple(Gap(Domain.FILES, present.shown(path), why) for path, why in left_out.items()),
            operation.safety_id,
        )


@contextmanager
def opened_root(manager: StatepointManager, record: SandboxRecord) -> Iterator[int]:
    """A descriptor of the directory that paths of a sandbox's :class:`SeenFiles` are below."""
    backend = manager.plugins.sandbox(record.spec.backend)
    if isinstance(backend, WritesInside):
        assert record.live is not None
        root = backend.open_root(record.spec, record.live)
    else:
        root = os.open(record.spec.layer, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield root
    finally:
        os.close(root)


def _turn_back(
    manager: StatepointManager, record: SandboxRecord, statepoint: Statepoint, operation: Operation, error: Exception
) -> NoReturn:
    """It failed half-way: bring the safety statepoint's files back, or leave the journal entry to ``recover``."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    cause = f"not all of it could be restored from {statepoint.id}: {error}"
    mend = "free disk space" if full else "mend the cause"
    safe = manager.registry.statepoint(operation.safety_id) if operation.safety_id else None
    try:
        if safe is None:
            raise error
        _write(manager, record, safe, operation)
    except Exception as second:
        raise RestoreError(
            cause if second is error else f"{cause}; and so did the way back: {second}",
            code="restore-unfinished",
            state="some of the paths are restored, others not; each file is whole",
            remedy=f"{mend}, then: planarian recover",
        ) from error
    manager.registry.end(operation)
    raise RestoreError(
        cause, code="restore-failed", state="the files are as they were before", remedy=f"{mend} and try again"
    ) from error
