"""What the tools of ``planarian mcp`` give back: these dataclasses are their output schemas."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from planarian_core.model import CommandResult, Evidence, RestoreContext, Statepoint, Status
from planarian_core.restore_paths import RestoredPaths


@dataclass(frozen=True)
class Ran:
    """How a command ended. Of output that is too long for a harness the middle is cut out (``truncated``)."""

    exit_code: int
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool = False
    truncated: bool = False

    @classmethod
    def of(cls, done: CommandResult, stderr: str) -> Ran:
        """``stderr``: of the command's, as much as is to be shown."""
        cut = done.truncated or stderr != done.stderr
        return cls(done.exit_code, done.stdout, stderr, round(done.duration, 3), done.timed_out, cut)


@dataclass(frozen=True)
class Taken:
    """A statepoint. ``not_captured`` names what it doesn't hold."""

    statepoint: str
    name: str
    holds: list[str] = field(default_factory=list)
    not_captured: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, point: Statepoint) -> Taken:
        missing = [f"{gap.domain}: {gap.subject}: {gap.reason}" for gap in point.coverage.missing]
        return cls(point.id, point.name, list(point.coverage.captured), missing)


@dataclass(frozen=True)
class Restored:
    """Where an environment is now, and in ``context`` what is to be known about it. A rollback to ``undo`` takes this
    one back.
    """

    sandbox: str
    statepoint: str
    undo: str
    context: str

    @classmethod
    def of(cls, context: RestoreContext) -> Restored:
        return cls(context.sandbox_id, context.statepoint.id, context.safety_id or "", context.to_markdown())


@dataclass(frozen=True)
class Changed:
    """What lies between two states: the first files of it, and all in words."""

    files: list[str]
    text: str


@dataclass(frozen=True)
class PathsRestored:
    """What was brought back, removed because it wasn't there at the statepoint, and left as it is, with the reason. A
    rollback to ``undo`` takes it back.
    """

    restored: list[str]
    removed: list[str]
    left_out: list[str]
    undo: str

    @classmethod
    def of(cls, done: RestoredPaths) -> PathsRestored:
        left_out = [f"{gap.subject}: {gap.reason}" for gap in done.left_out]
        return cls(list(done.restored), list(done.removed), left_out, done.safety_id or "")


@dataclass(frozen=True)
class Tried:
    """How something that was tried from a statepoint ended."""

    status: Literal["note", "succeeded", "failed"]
    text: str
    author: str


@dataclass(frozen=True)
class Entry:
    """A statepoint of the ledger. One that was pruned can't be restored, but what was tried from it is still known."""

    statepoint: str
    name: str
    created: str
    description: str
    facts: dict[str, str]
    outcomes: list[Tried]
    restorable: bool

    @classmethod
    def of(cls, evidence: Evidence) -> Entry:
        point = evidence.statepoint
        outcomes = [Tried(o.status, o.text, o.author) for o in evidence.outcomes[-5:]]  # type: ignore[arg-type]  # one of them
        restorable = point.status is Status.COMMITTED
        return cls(point.id, point.name, point.created_at, point.description, dict(point.facts), outcomes, restorable)


@dataclass(frozen=True)
class Known:
    """The statepoints to go back to, newest first. ``head`` is the one that the present state goes on from; ``omitted``
    older ones are left out.
    """

    head: str
    statepoints: list[Entry]
    omitted: int
