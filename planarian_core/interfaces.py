"""What a backend is: one Protocol per kind, and the values that pass between the statepoint manager and backends.

A backend does one thing to one domain. It never calls the runtime, another backend or an adapter; what it needs of
another domain it is given as a value (:class:`RestoreEnvironment`, :class:`RunningSandbox`). A backend declares
``name`` and frozen ``capabilities`` (what the code can do); ``probe()`` says what this host allows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from planarian_core.file_tree import FileEntry, FileTree
from planarian_core.model import (
    Artefact,
    Command,
    CommandResult,
    Gap,
    LiveSandbox,
    ProcessInfo,
    RemoteEffect,
    RemotePosition,
    SandboxSpec,
)


@dataclass(frozen=True)
class Availability:
    """What this host allows. ``reason`` says why not (or what is limited); ``remedy`` is the command that mends it."""

    available: bool
    reason: str = ""
    remedy: str = ""


# --- files ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """A directory tree that holds a sandbox's files; ``exclude``: glob patterns of what isn't state.

    A pattern without a leading ``/`` is matched (:func:`fnmatch.fnmatchcase`) against paths relative to ``path``; a
    matching directory is left out whole and, in a restore, left alone.
    """

    path: Path
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True)
class FilesystemCapabilities:
    """Promises of a filesystem backend, each checked by ``planarian_core.testing.FilesystemConformance``."""

    in_place: bool
    """A restore keeps the inodes of what did not change, so it can serve a directory that people have open."""
    constant_time: bool
    """Capture, rollback and fork cost the same however many files there are."""
    rootless: bool
    """Works for an ordinary user."""


class StagedFiles(Protocol):
    """A restore that is verified and ready: everything that can fail for lack of space or data has happened."""

    @property
    def changed(self) -> tuple[str, ...]:
        """Relative paths that the switch will change, or did (bounded to the first thousand)."""

    @property
    def changed_count(self) -> int:
        """How many there are."""

    def switch(self) -> None:
        """Make the layer equal to the artefact. Idempotent; a crash inside is finished by staging again."""

    def discard(self) -> None:
        """Be done with it: drop what was staged or, after :meth:`switch`, what was kept of the layer before, where the
        backend keeps that to tell what changed. The layer stays as it is. Idempotent.
        """


class FilesystemBackend(Protocol):
    """Versions of a layer. All artefacts live under the home that the backend was made for."""

    name: str
    capabilities: FilesystemCapabilities

    def probe(self) -> Availability:
        """Whether it works here, in this home."""

    def create(self, layer: Layer) -> None:
        """Make a new, empty layer; its parent exists. FileExistsError if it is there already."""

    def capture(self, layer: Layer, statepoint_id: str) -> Artefact:
        """Record the layer as it is now. Called while everything stands still; durable when it returns.

        Raises:
            CaptureError: the layer can't be read, keeps changing, or the disk is full. Nothing remains.
        """

    def verify(self, artefact: Artefact) -> None:
        """Check cheaply that all of the artefact is there; RestoreError names what is missing."""

    def stage(self, artefact: Artefact, layer: Layer) -> StagedFiles:
        """Prepare to make ``layer`` equal to the artefact; ``layer.path`` need not exist (a fork).

        Content is checked against its hash here. RestoreError when it is damaged or there is no room.
        """

    def discard(self, statepoint_id: str) -> None:
        """Give up what :meth:`capture` recorded, or began to record, for a statepoint. Idempotent; what other
        artefacts share stays.
        """

    def destroy(self, layer: Layer) -> None:
        """Remove a layer and what the backend keeps beside it. Idempotent."""

    def forget(self, layer: Layer) -> None:
        """Remove what the backend keeps beside a layer, which itself stays: it is the user's. Idempotent."""


@runtime_checkable
class Collects(Protocol):
    """A filesystem backend whose artefacts share storage, so that giving one up frees nothing by itself."""

    def collect(self) -> int:
        """Free what no artefact needs any more; returns bytes. Safe beside captures of other processes."""


@runtime_checkable
class Prehashing(Protocol):
    """A filesystem backend that can do part of a capture before the instant, while the sandbox still runs."""

    def prepare(self, layer: Layer) -> None:
        """Do ahead what can be done ahead. Purely an optimisation; never fails for what changes meanwhile."""


@runtime_checkable
class PlacesLayers(Protocol):
    """A filesystem backend whose layers lie in a place of its own, not in the sandbox's folder."""

    def place(self, sandbox_id: str) -> Path:
        """Where the layer of a new sandbox goes. Its parent is there when this returns."""


@runtime_checkable
class WritesBack(Protocol):
    """A filesystem backend whose capture waits for write-back, so that it pays to begin that early."""

    def write_back(self, layer: Layer) -> None:
        """Begin to write to the disk what a tool call left in memory. Returns at once, never fails for it."""


@runtime_checkable
class ProvesUnchanged(Protocol):
    """A filesystem backend that can prove, without a capture, that a layer is as it was."""

    def unchanged(self, layer: Layer, artefact: Artefact) -> bool:
        """Whether the layer is certainly as ``artefact`` says, which was captured from this very layer or restored to
        it. A doubt is a no. Nothing in the sandbox runs, or what runs is proven not to have moved.
        """


@runtime_checkable
class OpensTrees(Protocol):
    """A filesystem backend whose artefacts can be looked into without restoring them."""

    def open_tree(self, artefact: Artefact) -> AbstractContextManager[FileTree]:
        """The layer as it was captured, its markers of deleted names included. RestoreError when it is damaged."""


# --- sandboxes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SandboxCapabilities:
    """Promises of a sandbox backend, each checked by ``planarian_core.testing.SandboxConformance``."""

    isolated: bool
    """Commands see only their own processes, network and writable files (guarantee 10)."""
    process_tree: bool
    """All tasks hang below one init in their own pid namespace: what an image of the processes needs."""
    in_place: bool
    """The layer is the user's own workspace."""


@dataclass(frozen=True)
class RunningSandbox:
    """What a process backend is given of a sandbox that runs."""

    spec: SandboxSpec
    live: LiveSandbox
    tasks: Callable[[], tuple[int, ...]]
    """Host pids of all processes of the sandbox, its init first where it has one."""
    in_flight: tuple[int, ...] = ()
    """Inside pids of the call that asked for the snapshot: stopped like all, but not part of what is captured."""


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
    that namespace. OSError names what could not be mounted, SandboxError what else hinders. ``groups`` are the directories of the sandbox's control
    groups: the process that restores is put into them before it begins, so that all it makes is in them. ``freezer``
    is the one of version 2 among them, empty where there is none. ``mounts``: what is mounted below the sandbox's root
    from elsewhere, path inside -> where it is mounted there; not below ``root``, because CRIU can't take a mount over
    that has others below it.
    """

    enter: Callable[[], None]
    root: str
    private_network: bool
    mounts: Mapping[str, str] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    freezer: str = ""


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


# --- processes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProcessCapabilities:
    """Promises of a process backend, each checked by ``planarian_core.testing.ProcessConformance``."""

    memory: bool
    """A restore brings back pids, memory and open files."""
    restarts: bool
    """Without memory: what ran is started again."""
    incremental: bool = False
    """An image holds only what changed since its parent (paper, section 5.3)."""


class Instant(Protocol):
    """The moment when everything in a sandbox stands still. Results are there when the context has ended well."""

    artefact: Artefact | None
    process_list: tuple[ProcessInfo, ...]
    gaps: tuple[Gap, ...]


class ProcessBackend(Protocol):
    """Captures and restores what runs in a sandbox, and owns the instant."""

    name: str
    capabilities: ProcessCapabilities

    def probe(self) -> Availability:
        """Whether it works here; really tries, once, and caches the finding in the home."""

    def serves(self, spec: SandboxSpec, sandbox: SandboxCapabilities) -> Availability:
        """Whether it can capture this sandbox, given its backend's capabilities."""

    def instant(self, sandbox: RunningSandbox, images: Path) -> AbstractContextManager[Instant]:
        """Stop everything; inside the context the caller captures files and remote positions; then all goes on.

        ``images`` is an empty directory of this statepoint's own for image files. Leaving the context by an exception
        abandons the capture; either way the sandbox runs on.

        Raises:
            CaptureError: names the process and the cause.
        """

    def verify(self, artefact: Artefact, images: Path) -> None:
        """Check cheaply that the image is whole; RestoreError says what is missing."""

    def discard(self, images: Path) -> None:
        """Give up an image, whole or begun, besides the directory itself. Idempotent."""


@runtime_checkable
class ProvesStillness(Protocol):
    """A process backend that can prove that nothing in a sandbox has moved since a capture."""

    def still(self, sandbox: RunningSandbox, artefact: Artefact) -> bool:
        """Whether what runs is certainly in the state that ``artefact`` holds, captured from these very processes.

        A doubt is a no. The sandbox's own init is left out: between calls it has no state but its children.
        """


@runtime_checkable
class Thaws(Protocol):
    """A process backend whose instant leaves things stopped when the runtime is killed inside it."""

    def thaw(self, sandbox: RunningSandbox) -> None:
        """Let run on what a killed runtime had stopped; a no-op where nothing was. The caller holds the lock."""


@runtime_checkable
class RestoresTree(Protocol):
    """A process backend with ``capabilities.memory``."""

    def restore(
        self,
        artefact: Artefact,
        images: Path,
        environment: RestoreEnvironment,
        kill: Sequence[int] = (),
        *,
        frozen: bool = False,
    ) -> int:
        """Bring the tree back; returns the host pid of its init. The inside pids ``kill`` die before they run.

        ``frozen``: nothing of the tree runs an instruction until ``environment.freezer`` is thawed
        (:meth:`Wakes.wake`).

        Raises:
            RestoreError: the cause, from the image's own log. Nothing is left running.
        """


@runtime_checkable
class TakesImages(Protocol):
    """A process backend that can tell whether an image from another host can come back to life on this one."""

    def accepts(self, artefact: Artefact) -> Availability:
        """Whether it can, as far as that is known before it is tried."""


@runtime_checkable
class RestartsCommands(Protocol):
    """A process backend with ``capabilities.restarts``."""

    def commands(self, artefact: Artefact) -> tuple[Command, ...]:
        """What to start again, in order, each with ``detach`` set."""


# --- remote services -----------------------------------------------------------------------------------------------


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
