"""What an application to the host's workspace does, did, or was kept from doing: plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planarian_core.codec import encode
from planarian_core.errors import RestoreError


@dataclass(frozen=True)
class AppliedPath:
    """A path that was written, or would be. ``change``: added, deleted, changed. ``dropped``: what did not come along;
    ``reason``: why all the same, where there was a conflict.
    """

    path: str
    change: str
    dropped: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class NotApplied:
    """A path that was not written, and why; ``report`` is what both sides did to a text."""

    path: str
    reason: str
    report: str = ""


@dataclass(frozen=True)
class AppliedChanges:
    """What an application did, or a preview would do. ``id`` is empty where nothing was written."""

    id: str
    sandbox_id: str
    statepoint_id: str
    workspace: str
    preview: bool = False
    applied: tuple[AppliedPath, ...] = ()
    conflicts: tuple[NotApplied, ...] = ()
    held_back: tuple[NotApplied, ...] = ()
    same: tuple[str, ...] = ()
    left_out: tuple[NotApplied, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = encode(self)
        return data


@dataclass(frozen=True)
class Undone:
    """What was put back in the workspace; ``kept``: paths that somebody changed since, which were left alone."""

    id: str
    workspace: str
    back: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = encode(self)
        return data


@dataclass(frozen=True)
class ApplyRequest:
    """What a caller wants. ``theirs``: the sandbox's version where there is a conflict; ``skip_conflicts``: go on
    without those.
    """

    paths: tuple[str, ...] = ()
    preview: bool = False
    theirs: bool = False
    skip_conflicts: bool = False
    with_git_config: bool = False


class ApplyConflict(RestoreError):
    """Both sides changed the same paths; nothing was written. ``changes`` says all about it."""

    default_code = "apply-conflict"

    def __init__(self, message: str, changes: AppliedChanges, **words: str) -> None:
        super().__init__(message, **words)
        self.changes = changes

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "conflicts": encode(self.changes.conflicts)}
