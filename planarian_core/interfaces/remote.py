"""What keeps state elsewhere, changed through tools."""

from __future__ import annotations

from typing import Protocol

from planarian_core.model import (
    Gap,
    RemoteEffect,
    RemotePosition,
)


class RemoteService(Protocol):
    """Remote state that the agent changes through tools (paper, section 6.1). Positions count calls, in order."""

    name: str
    endpoint: str
    forkable: bool
    """Whether a fork may use the service (it versions itself); if not, the fork is fenced off."""

    def capture(self, sandbox_id: str) -> RemotePosition:
        """The position now. Called inside the instant; must not block."""

    def plan(self, position: RemotePosition, sandbox_id: str) -> tuple[RemoteEffect, ...]:
        """What a rollback to ``position`` would undo, newest first; pivots included.

        Raises:
            CompensationError: undo data is missing, or the service can't be reached. Nothing was changed.
        """

    def compensate(self, position: RemotePosition, sandbox_id: str) -> tuple[RemoteEffect, ...]:
        """Undo what came after ``position``, newest first. Idempotent: called again after a crash it undoes the rest.

        Raises:
            CompensationConflict: another writer was there; what was undone before stays recorded as undone.
        """

    def fence(self, sandbox_id: str, source_id: str, position: RemotePosition) -> Gap | None:
        """Prepare for a fork: give it a branch of its own (None), or fence it off and say so."""
