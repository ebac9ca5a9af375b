"""What keeps state elsewhere, changed through tools.

The statepoint manager knows a :class:`RemoteService`: positions, and ways between them. Nearly all of it is
the same for every service and lives in :mod:`planarian_core.logged_service`; what differs is a :class:`ServiceKind`:
what a call is, how it is made so that it can be undone, and how to undo it and do it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from planarian_core.model import (
    Effect,
    EffectState,
    Gap,
    RemoteCall,
    RemoteEffect,
    RemotePosition,
    Verdict,
)

ToolResult = Mapping[str, Any]
"""The result of a tool call as MCP has it on the wire: ``content``, ``structuredContent``, ``isError``, ``_meta``."""

Moved = Callable[[Effect, EffectState], None]
"""Told after each effect that a move changed: the effect as it was (its ``details`` may be new), and its state from now
on. Told the state that the effect already has, only its details are recorded, durably: how far the move is with it.
"""


class RemoteService(Protocol):
    """Remote state that the agent changes through tools (paper, section 6.1). Positions count calls, in order."""

    name: str
    endpoint: str
    forkable: bool
    """Whether a fork may use the service (it versions itself); if not, the fork is fenced off."""

    def settle(self, sandbox_id: str) -> None:
        """Find out how the calls ended that a killed or cancelled proxy left behind. Called before positions are asked
        for, outside the instant; nothing to do is the rule, and costs nothing.

        Raises:
            CompensationError: the service can't be reached (``service-unreachable``).
        """

    def capture(self, sandbox_id: str) -> RemotePosition:
        """The position now. Called inside the instant; must not block."""

    def origin(self, sandbox_id: str) -> RemotePosition | None:
        """The position before the sandbox's first call, for statepoints from before the service was configured; None
        where nobody can go back there.
        """

    def plan(self, position: RemotePosition, sandbox_id: str) -> tuple[RemoteEffect, ...]:
        """What going to ``position`` would undo, newest first, and then do again, oldest first; pivots included.

        Raises:
            CompensationError: undo data is missing. Nothing was changed.
        """

    def rehearse(self, position: RemotePosition, sandbox_id: str) -> None:
        """See that :meth:`compensate` would succeed now, without any lasting effect, before anything is touched.

        Raises:
            CompensationConflict: another writer was there; its rows are named.
            CompensationError: the service can't be reached, or can't go there.
        """

    def compensate(self, position: RemotePosition, sandbox_id: str) -> tuple[RemoteEffect, ...]:
        """Go to ``position``: undo what isn't part of it, newest first, do again what is, oldest first. Idempotent:
        called again after a crash it does the rest. Returns what was done.

        Raises:
            CompensationConflict: another writer was there; what was undone before stays recorded as undone.
        """

    def fence(self, sandbox_id: str, source_id: str, position: RemotePosition) -> Gap | None:
        """Prepare for a fork: give it a branch of its own (None), or fence it off and say so."""

    def forget(self, sandbox_id: str) -> None:
        """The sandbox is removed: drop what is kept for it, its branch too. Idempotent; remote state stays."""


# --- service kinds ---


class ToolTarget(Protocol):
    """A connection to the server that really serves a service's tools. Usable from one thread at a time."""

    def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call one tool and wait. An error that the tool reports is a result (``isError``), not an exception.

        Raises:
            RemoteError: ``service-unreachable`` when the connection is lost before the result is there (the call may
                have had its effect), ``call-cancelled`` when the harness cancelled it, or the server's own protocol
                error (``service-error``: the call had no effect, ``service-failed``: it may have had one).
        """

    def tools(self) -> Sequence[Mapping[str, Any]]:
        """The server's tools as MCP has them on the wire: ``name``, ``inputSchema``, ``annotations``…"""

    def close(self) -> None:
        """Let go of the connection. Idempotent."""


@dataclass(frozen=True)
class TargetServer:
    """Where the MCP server is that really serves the tools: a ``command`` to start (stdio), or a ``url`` (streamable
    HTTP). ``env`` and ``headers`` are added to the defaults; they may hold secrets and are never shown.
    """

    command: tuple[str, ...] = ()
    url: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 60.0
    """Seconds that a call may take."""
    max_message: int = 64 * 1024 * 1024
    """Bytes that one message from the server may have; a longer one is thrown away, not held in memory."""


@dataclass(frozen=True)
class CallOutcome:
    """How a call that may change state ended. ``state``: ``APPLIED``, or ``VOID`` where it is certain that nothing
    changed. ``details`` go into the undo log with it; ``summary`` is one line for people.
    """

    result: ToolResult
    state: EffectState
    summary: str
    details: Mapping[str, Any] = field(default_factory=dict)
    pivot: str = ""
    """Why it turned out to be a pivot: it may have had an effect, and that can't be undone after all. The call is made:
    nobody is asked, and a rollback past it needs consent and says so.
    """


class ServiceKind(Protocol):
    """One configured service, as its kind knows it (paper, Table 2). Used by one thread at a time.

    A call goes: :meth:`classify`; for a read, :meth:`read`; else the effect is entered in the undo log as ``SENT``,
    durable, and then :meth:`run`. Whoever dies in between leaves ``SENT`` behind, which :meth:`settle` clears up.
    """

    name: str
    endpoint: str
    """What people are shown of where it is; without secrets."""
    server: TargetServer | None
    """None where the kind serves the tools itself, through the target that :meth:`connect` gives."""

    def connect(self) -> ToolTarget:
        """A connection of one's own to the server, for settling and compensating where no proxy runs.

        Raises:
            RemoteError: ``service-unreachable``.
        """

    def describe(self, tool: str, annotations: Mapping[str, Any]) -> Verdict:
        """What calls of a tool are as far as that can be said without arguments; shown in the tool's ``_meta``.
        ``annotations`` are the server's own and untrusted hints (MCP).
        """

    def classify(self, call: RemoteCall) -> Verdict:
        """What a call is, from its arguments alone."""

    def read(self, call: RemoteCall, target: ToolTarget) -> ToolResult | Verdict:
        """Make a call that was classified as a read, in a way that can't change anything; or say what it turned out
        to be (it had no effect then).
        """

    def run(self, call: RemoteCall, effect: Effect, target: ToolTarget) -> CallOutcome:
        """Make a call that changes state, so that it can be undone (unless its class is pivot).

        Raises:
            RemoteError: ``call-refused``: it can't be undone exactly, and had no effect. Anything else that is raised
                leaves the effect ``SENT``.
        """

    def settle(self, effect: Effect, target: ToolTarget) -> CallOutcome:
        """What became of an effect that was left ``SENT``: ``APPLIED``, or ``VOID`` and from now on unable to happen.
        The outcome's ``result`` is not used.

        Raises:
            CompensationError: it can't be found out; ``remedy`` says what the user can do.
        """

    def rehearse(self, undo: Sequence[Effect], redo: Sequence[Effect], target: ToolTarget) -> None:
        """See that :meth:`move` would succeed now, without any lasting effect (CompensationConflict if not)."""

    def move(self, undo: Sequence[Effect], redo: Sequence[Effect], target: ToolTarget, moved: Moved) -> None:
        """Undo effects, in this order (newest first), then do others again, in this order (oldest first).

        Idempotent: an effect that is already in the wanted state there is passed over and reported all the same.

        Raises:
            CompensationConflict: somebody else changed what an effect had left; with the rows or objects.
        """

    def forget(self, effects: Sequence[Effect], target: ToolTarget) -> None:
        """Drop the undo data of effects that nobody will undo or do again."""


@runtime_checkable
class Prepares(Protocol):
    """A :class:`ServiceKind` whose undo data is read before the effect, and kept in the home's undo log."""

    def prepare(self, call: RemoteCall, target: ToolTarget) -> Mapping[str, Any]:
        """What undoing or settling a compensable or branchable call takes, as far as it is known before. Stored durably
        with the effect's ``SENT`` entry as its ``details``, before :meth:`ServiceKind.run` is asked to make the call.

        Raises:
            RemoteError: ``call-refused``: it could not be undone. Nothing was changed, nothing is entered.
        """


@runtime_checkable
class KeepsEntries(Protocol):
    """A :class:`ServiceKind` whose service holds an entry of each compensable effect, committed with it, so that
    :meth:`ServiceKind.settle` needs no more of one than its sandbox, service and number.
    """

    keeps_entries: Literal[True]


@runtime_checkable
class RecognizesEffects(Protocol):
    """A :class:`ServiceKind` that notices when the configuration names another server than the one that a sandbox's
    effects were made on.
    """

    mark: str
    """Kept with each effect, as :attr:`Effect.server`; without secrets."""

    def recognizes(self, effect: Effect, target: ToolTarget | None) -> bool:
        """Whether this is the server on which ``effect`` was made; by what the server holds, where it holds something.
        Changes nothing there. ``SENT``: whether the effect ever got there isn't known. ``target`` is None for a kind
        that goes back by its own versions.

        Raises:
            CompensationError: it can't be found out.
        """


@runtime_checkable
class ServesBranches(Protocol):
    """A :class:`ServiceKind` whose target server is told, when it is started, which branch it serves."""

    def server_for_branch(self) -> TargetServer:
        """In the place of :attr:`ServiceKind.server`, just before it is started: the sandbox's branch is there from
        now on.

        Raises:
            RemoteError: ``service-unreachable``.
        """


class Versions(Protocol):
    """The versions and branches that a service has itself."""

    def commit(self, sandbox_id: str) -> str:
        """Make the sandbox's state a version and name it; the last one's name where nothing changed. Inside the
        instant.
        """

    def check(self, sandbox_id: str, version: str) -> None:
        """See that :meth:`reset` to a version can succeed (CompensationError if not)."""

    def reset(self, sandbox_id: str, version: str) -> None:
        """Bring the sandbox's branch to a version. Idempotent."""

    def branch(self, sandbox_id: str, source_id: str, version: str) -> None:
        """Make the branch of a fork from a version of its source. Idempotent."""

    def take_over(self, sandbox_id: str, version: str) -> None:
        """See that a version of a fork outlives the fork: this sandbox holds it as well, until :meth:`keep` gives it
        up. Idempotent.

        Raises:
            CompensationError: it is gone, or the service can't be reached.
        """

    def keep(self, sandbox_id: str, versions: Sequence[str]) -> None:
        """Give up what keeps other versions than these from being collected: no statepoint of the sandbox holds them.

        Raises:
            CompensationError: the service can't be reached; nothing is lost.
        """

    def drop(self, sandbox_id: str) -> None:
        """Remove the sandbox's branch. Idempotent."""


@runtime_checkable
class VersionsItself(Protocol):
    """A :class:`ServiceKind` whose service has versions and branches: each sandbox works on a branch of its own.

    Effects are logged for people; going back is the service's own reset to a version, never :meth:`ServiceKind.move`.
    """

    @property
    def versions(self) -> Versions: ...
