"""What runs commands, confined, and what it may do beyond that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol, runtime_checkable

from planarian_core.file_tree import FileEntry, FileTree
from planarian_core.interfaces.availability import Availability
from planarian_core.model import (
    Command,
    CommandResult,
    LiveSandbox,
    SandboxSpec,
)


@dataclass(frozen=True)
class SandboxCapabilities:
    """Promises of a sandbox backend, each checked by ``planarian_core.testing.SandboxConformance``."""

    isolated: bool
    """Commands see only their own processes, network and writable files (guarantee 10)."""
    process_tree: bool
    """All tasks hang below one init in their own pid namespace: what an image of the processes needs."""
    in_place: bool
    """The layer is the user's own workspace."""
    other_root: bool = False
    """It can stand on another root file system than the host's (``SandboxSpec.root``)."""
    managed: str = ""
    """The container engine that keeps account of its processes, by name: a tree that was brought back past that one
    would not be its container any more. Empty where Planarian alone does."""


class CheckpointFailed(Exception):
    """A container engine took no image, or could not bring one back. ``log``: CRIU's own; ``said``: the engine's."""

    def __init__(self, reason: str, log: str = "", said: str = "") -> None:
        super().__init__(reason)
        self.log = log
        self.said = said


@dataclass
class Standstill:
    """A checkpoint under way. When its context has ended: CRIU's ``log``, and its file ``stats-dump``."""

    log: str = ""
    statistics: bytes = b""


TakeCheckpoint = Callable[[Path, bool, bool], AbstractContextManager[Standstill]]
"""Has a sandbox's engine take an image into a directory. ``track``: what is written from then on is marked;
``parent``: it is built on what the directory has in ``parent``. Inside the context the image is written and everything
stands still; it runs on when that ends, in any way. CheckpointFailed, then too."""


@dataclass(frozen=True)
class RunningSandbox:
    """What a process backend is given of a sandbox that runs."""

    spec: SandboxSpec
    live: LiveSandbox
    tasks: Callable[[], tuple[int, ...]]
    """Host pids of all processes of the sandbox, its init first where it has one."""
    in_flight: tuple[int, ...] = ()
    """Inside pids of the call that asked for the snapshot: stopped like all, but not part of what is captured."""
    checkpoint: TakeCheckpoint | None = None
    """Where its processes are a container engine's (:class:`TakesCheckpoints`)."""

    @classmethod
    def of(
        cls, backend: SandboxBackend, spec: SandboxSpec, live: LiveSandbox, in_flight: tuple[int, ...] = ()
    ) -> RunningSandbox:
        """A sandbox of this backend."""
        take = partial(backend.checkpoint, spec, live) if isinstance(backend, TakesCheckpoints) else None
        return cls(spec, live, lambda: backend.tasks(spec, live), in_flight, take)


OutputSink = Callable[[str, bytes], None]
"""Called with ``"stdout"`` or ``"stderr"`` and a piece of output as it arrives."""


@dataclass(frozen=True)
class AgentRequest:
    """A ``planarian …`` command that something inside the sandbox ran during a call; its content is untrusted.

    ``chain`` are the inside pids of the requesting process and its ancestors, up to but without the sandbox's init:
    what must not live on in a statepoint that this request takes (it would run on after a rollback).
    """

    argv: tuple[str, ...]
    chain: tuple[int, ...]


@dataclass(frozen=True)
class AgentReply:
    """The answer. With ``ends_call`` the call's whole tree is ended at once, the request gets no answer, and
    :meth:`SandboxBackend.execute` returns what was output so far.
    """

    exit_code: int = 0
    stdout: str = ""
    stderr: str = ""
    ends_call: bool = False


RequestHandler = Callable[[AgentRequest], AgentReply]
"""Answers requests from inside, in the thread that waits in :meth:`SandboxBackend.execute`."""


class SandboxBackend(Protocol):
    """Runs commands, confined. Stateless: all it knows comes in ``SandboxSpec`` and ``LiveSandbox``."""

    name: str
    capabilities: SandboxCapabilities

    def probe(self) -> Availability:
        """Whether it works here."""

    def prepare(self, spec: SandboxSpec) -> SandboxSpec:
        """Fill a layer that was just created (device nodes, hidden paths, mount points); returns the spec completed
        (``exclude`` set). Not called for a fork: its layer comes from the source.
        """

    def start(self, spec: SandboxSpec) -> LiveSandbox:
        """Start an init on the layer. SandboxError when it doesn't come up; then nothing is left running."""

    def execute(
        self,
        spec: SandboxSpec,
        live: LiveSandbox,
        command: Command,
        sink: OutputSink | None = None,
        requests: RequestHandler | None = None,
    ) -> CommandResult:
        """Run a command to its end. A timeout or an exception ends the command's whole tree.

        Inside, a ``planarian`` command is on PATH; while the call runs its requests go to ``requests`` (without one
        it says that nobody listens).

        Background processes that the command left behind keep running. SandboxError when the sandbox can't run it;
        a failure of the infrastructure is never a CommandResult.
        """

    def tasks(self, spec: SandboxSpec, live: LiveSandbox) -> tuple[int, ...]:
        """Host pids of all its processes."""

    def stop(self, spec: SandboxSpec, live: LiveSandbox | None) -> None:
        """End all its processes and release what :meth:`start` took. Idempotent; returns when they are gone.

        ``live`` is None when a runtime was killed before it could record what it had started: then find and end
        whatever runs for ``spec.id``.
        """

    def alive(self, spec: SandboxSpec, live: LiveSandbox) -> bool:
        """Whether it can run commands."""

    def fingerprint(self, spec: SandboxSpec) -> str:
        """Identifies what lies below the layer (package database, C library), so that an upgrade is noticed."""


@dataclass(frozen=True)
class RestoreEnvironment:
    """Where a process image comes back to life.

    ``enter`` mounts the sandbox's files at ``root`` (and at ``mounts``), by itself and without a process of its own. It
    is called in a thread that has a mount namespace to itself, from which nothing propagates; what it mounts goes with
    that namespace. OSError names what could not be mounted, SandboxError what else hinders. ``groups`` are the
    directories of the sandbox's control groups: the process that restores is put into them before it begins, so that
    all it makes is in them. ``freezer`` is the one of version 2 among them, empty where there is none. ``mounts``: what
    is mounted below the sandbox's root from elsewhere, path inside -> where it is mounted there; not below ``root``,
    because CRIU can't take a mount over that has others below it.

    ``revive``: where the processes are a container engine's, that alone brings an image back, and none of the rest is
    needed but ``freezer``.
    """

    enter: Callable[[], None]
    root: str
    private_network: bool
    mounts: Mapping[str, str] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    freezer: str = ""
    revive: Revive | None = None


Revive = Callable[[Path, Sequence[int], bool, Callable[[int], object]], int]
"""Makes a container of an image, of which the inside pids given never run an instruction, and of which nothing runs
until it is thawed where the third argument says so; the host pid of its init. The last one is called with that pid when
all is restored and nothing has run yet. CheckpointFailed when the engine can't."""


@runtime_checkable
class TakesCheckpoints(Protocol):
    """A sandbox backend whose processes a container engine keeps account of, which takes images of them by CRIU and has
    a restore go by it (:attr:`RestoreEnvironment.revive`).
    """

    def checkpoint(
        self, spec: SandboxSpec, live: LiveSandbox, images: Path, track: bool, parent: bool
    ) -> AbstractContextManager[Standstill]:
        """See :data:`TakeCheckpoint`."""


@runtime_checkable
class TreeHost(Protocol):
    """A sandbox backend whose process tree can be brought back from an image by a process backend."""

    def restore_environment(self, spec: SandboxSpec) -> RestoreEnvironment:
        """Make ready for a restore: control groups made, mount point there. The sandbox is stopped."""

    def adopt(self, spec: SandboxSpec, init_pid: int) -> LiveSandbox:
        """Take a restored tree over; ``init_pid`` is the host pid of its init."""


@runtime_checkable
class MergesLayers(Protocol):
    """A sandbox backend whose layer lies over other files. Of the others the layer is the workspace itself."""

    def merged(self, spec: SandboxSpec, layer: FileTree) -> FileTree:
        """What a sandbox with this layer sees: paths are those inside, without the leading ``/``."""


@runtime_checkable
class WritesInside(Protocol):
    """A sandbox backend whose files must not be written in their layer while it runs, only from inside."""

    def open_root(self, spec: SandboxSpec, live: LiveSandbox) -> int:
        """A descriptor of the running sandbox's root directory, the caller's to close. All below it is the sandbox's
        to change at any moment. SandboxError when it is gone.
        """


@runtime_checkable
class TakesLayers(Protocol):
    """An isolated sandbox backend whose layer can come from another home, by a bundle."""

    def objection(self, path: str, entry: FileEntry, *, trusted: bool) -> str:
        """Why something can't be at a path of a layer that was made elsewhere; empty when it can.

        ``trusted``: the home's owner vouches for who made it. Otherwise nothing may be in it by which a sandbox could
        do or see more on this host than one that was made here.
        """

    def take_over(self, spec: SandboxSpec, *, trusted: bool) -> SandboxSpec:
        """Make a layer that was just written, and nothing of which was refused, fit this host; returns the spec
        completed (``exclude`` set). ``spec.origin`` is in place.

        Raises:
            SandboxError: it was made for another kind of user, or isn't laid out as a layer is.
        """


@runtime_checkable
class Wakes(Protocol):
    """A sandbox backend whose process tree can be restored frozen (:attr:`RestoreEnvironment.freezer`)."""

    def wake(self, spec: SandboxSpec, live: LiveSandbox) -> None:
        """Let a frozen tree run. Idempotent. SandboxError when it is gone."""

    def memory(self, spec: SandboxSpec, live: LiveSandbox) -> int:
        """Bytes of memory that its processes alone take, about."""


@runtime_checkable
class KillsAtOnce(Protocol):
    """A sandbox backend that need not wait until what it killed is gone, because nothing else is touched by it."""

    def kill(self, spec: SandboxSpec, live: LiveSandbox) -> None:
        """End all processes without waiting for it: none gets to do anything further. :meth:`SandboxBackend.stop` is
        still to follow. Idempotent.
        """


@runtime_checkable
class NamesPaths(Protocol):
    """A sandbox backend in which files have other names than in their layer."""

    def inside(self, spec: SandboxSpec, path: str) -> str | None:
        """The name inside of a path relative to the layer; None for what is Planarian's own."""


@runtime_checkable
class EndsAbandonedCalls(Protocol):
    """A sandbox backend that tells calls whose runtime was killed: their commands run on, and nobody waits for them."""

    def end_abandoned_calls(self, spec: SandboxSpec, live: LiveSandbox) -> int:
        """End them with their trees; returns how many there were. The caller holds the exclusive lock, so no runtime
        waits for any call. What calls left behind that ended, and detached commands, run on.

        Raises:
            SandboxError: one of them can't be ended.
        """
