"""The values that cross boundaries: frozen, versioned, plain. Behaviour lives elsewhere.

The words are those of the paper (section 3.1, Figure 5) and of ``docs/architecture.md``. Times are UTC in ISO 8601,
durations seconds, sizes bytes. Identifiers are random, never derived from time.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from planarian_core.codec import encode

MODEL_VERSION = 1


def new_id(prefix: str) -> str:
    """A fresh identifier such as ``sp-3f9c27a1b4d0``: 48 random bits, no meaning beyond its prefix."""
    return f"{prefix}-{os.urandom(6).hex()}"


def utc_now() -> str:
    """The present moment, UTC, ISO 8601 with milliseconds. For people; order comes from the registry."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Domain(StrEnum):
    """The three domains of an agent's environment."""

    FILES = "files"
    PROCESSES = "processes"
    REMOTE = "remote"


class Status(StrEnum):
    """Figure 5's status. Only ``committed`` statepoints can be restored; of a ``pruned`` one the evidence is left."""

    PENDING = "pending"
    COMMITTED = "committed"
    DISCARDED = "discarded"
    PRUNED = "pruned"


@dataclass(frozen=True)
class Gap:
    """One thing that a statepoint did not capture, by name (guarantee 9)."""

    domain: Domain
    subject: str
    reason: str


@dataclass(frozen=True)
class Coverage:
    """What a statepoint captured (short statements) and, by name, what it did not."""

    captured: tuple[str, ...] = ()
    missing: tuple[Gap, ...] = ()

    @property
    def complete(self) -> bool:
        return not self.missing


@dataclass(frozen=True)
class Artefact:
    """One captured part, durable in the home.

    ``reference`` means something to ``backend`` alone. ``stored`` is what this capture added to the disk, ``logical``
    what it stands for, both in bytes. ``details`` is the backend's own JSON-safe data. ``owner`` is the statepoint
    under whose id it is kept, where another one shares it because nothing had changed; empty for its own.
    ``workspace`` is where its processes ran, if not in the workspace of the statepoint's sandbox (a promoted fork's).
    """

    domain: Domain
    backend: str
    reference: str
    stored: int = 0
    logical: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)
    owner: str = ""
    workspace: str = ""


@dataclass(frozen=True)
class ProcessInfo:
    """A process that ran at the statepoint. ``pid`` is the one inside the sandbox."""

    pid: int
    argv: tuple[str, ...]
    cwd: str = ""
    state: str = ""


@dataclass(frozen=True)
class RemotePosition:
    """Where a remote service stood: Figure 5's ``remote-state``. ``position`` orders calls within one service."""

    service: str
    endpoint: str
    position: str
    hook: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


class CallClass(StrEnum):
    """What a remote call is (guarantee 8). ``BRANCHABLE``: undone by the service's own versions."""

    READ_ONLY = "read-only"
    COMPENSABLE = "compensable"
    BRANCHABLE = "branchable"
    PIVOT = "pivot"
    REFUSED = "refused"


@dataclass(frozen=True)
class RemoteCall:
    """A call of a tool of a remote service, as the agent asked for it. ``arguments`` are JSON-safe."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Equal for equal calls, whatever the order of the arguments."""
        text = json.dumps([self.tool, self.arguments], sort_keys=True, ensure_ascii=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Verdict:
    """The class of a call (or of a tool), and why, in one sentence. ``approved``: a pivot that the configuration
    allows beforehand; one equal to a pivot that a rollback left behind is asked about all the same.
    """

    call_class: CallClass
    reason: str = ""
    approved: bool = False


class EffectState(StrEnum):
    """``SENT``: under way, or nobody knows yet. ``VOID``: it never took effect. ``KEPT``: a pivot that a rollback
    passed; it stays in effect.
    """

    SENT = "sent"
    APPLIED = "applied"
    UNDONE = "undone"
    VOID = "void"
    KEPT = "kept"


@dataclass(frozen=True)
class Effect:
    """An entry of the undo log: one call that changed, or may have changed, remote state.

    Effects of a sandbox on a service are numbered from 1 in the order of the calls; a number is never used again.
    ``parent`` is the number of the effect before it that was in force when it was made (0: none): rollbacks make the
    log a tree, as they make one of statepoints. ``details`` are the service kind's own, JSON-safe.
    """

    sandbox_id: str
    service: str
    number: int
    parent: int
    tool: str
    digest: str
    call_class: CallClass
    state: EffectState
    reason: str = ""
    summary: str = ""
    made_at: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    forgotten: bool = False
    """Its undo data is dropped: no statepoint that is kept needs it."""
    server: str = ""
    """Which server it was sent to, as the service's kind tells servers apart; without secrets."""


@dataclass(frozen=True)
class RemoteEffect:
    """What a rollback does, or did, about one remote effect: undo it, do it again (``redo``), or leave it (``pivot``).

    Before a pivot runs, ``repeats`` says which equal one was already made. ``reason``: why it has its class.
    """

    service: str
    position: str
    summary: str
    pivot: bool = False
    redo: bool = False
    repeats: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Approval:
    """A pivot that waits for a user's consent, or has it. ``granted`` allows that call once."""

    id: str
    sandbox_id: str
    effect: RemoteEffect
    granted: bool = False
    asked_at: str = ""


@dataclass(frozen=True)
class Outcome:
    """How a run that went on from a statepoint ended. Appended, never changed (guarantee 6)."""

    id: str
    statepoint_id: str
    text: str
    status: str = "note"
    author: str = ""
    created_at: str = ""


@dataclass(frozen=True)
class Statepoint:
    """A consistent version of the environment; Figure 5's record and more.

    The evidence's second half, the prior outcomes, is kept beside the statepoint in the registry
    (:meth:`Registry.outcomes`), because it grows while the statepoint never changes.
    """

    id: str
    sandbox_id: str
    branch_id: str
    parent_id: str | None
    created_at: str
    status: Status = Status.PENDING
    name: str = ""
    description: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    files: Artefact | None = None
    processes: Artefact | None = None
    process_list: tuple[ProcessInfo, ...] = ()
    in_flight: tuple[int, ...] = ()
    remote: tuple[RemotePosition, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)
    base: str = ""
    automatic: bool = False
    timings: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    version: int = MODEL_VERSION

    def owner(self, artefact: Artefact) -> str:
        """The id under which one of its artefacts is kept."""
        return artefact.owner or self.id

    def to_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = encode(self)
        return data


@dataclass(frozen=True)
class Branch:
    """A line of work. Each sandbox has one; ``head`` is the statepoint that its live state grew from."""

    id: str
    sandbox_id: str
    head: str | None = None
    forked_from: str | None = None


@dataclass(frozen=True)
class Evidence:
    """State description and prior outcomes of one committed statepoint (paper, section 4.5)."""

    statepoint: Statepoint
    outcomes: tuple[Outcome, ...] = ()


@dataclass(frozen=True)
class Limits:
    """Resource limits of a sandbox; enforced where the host lets us (cgroups), said in ``doctor`` where not.

    ``memory`` in bytes, ``pids`` a count; 0 means no limit.
    """

    memory: int = 4 * 1024**3
    pids: int = 2048


class Network(StrEnum):
    """``none``: loopback only. ``host``: the host's own network; connections outward are not captured."""

    NONE = "none"
    HOST = "host"


@dataclass(frozen=True)
class SandboxSpec:
    """What a sandbox is, apart from whether it runs. ``layer`` and ``home`` are host paths.

    For an isolated sandbox the layer holds what it changed, and ``workspace`` is seen inside under its host path: not
    the host's present files, but ``origin``, the home's private copy of them as they were when the sandbox was made,
    which no one changes and all forks share. For ``directory`` the layer *is* the workspace. ``exclude`` are glob
    patterns, relative to the layer, of what isn't state.
    """

    id: str
    workspace: str
    layer: str
    home: str
    backend: str
    network: Network = Network.NONE
    limits: Limits = field(default_factory=Limits)
    hidden: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    origin: str = ""
    root: str = ""
    """A host directory with the root file system that the sandbox stands on, an image's; the host's own if empty. With
    one ``workspace`` is a directory in it."""

    @property
    def place(self) -> str:
        """The workspace's canonical path, as the sandbox sees it."""
        return self.workspace if self.root else os.path.realpath(self.workspace)


@dataclass(frozen=True)
class LiveSandbox:
    """A running sandbox: its init by host pid and start time (clock ticks since boot), so a reused pid is not it.

    ``cgroups`` are host paths of the control groups that hold all its tasks; empty where none could be made.
    """

    init_pid: int
    init_start: int
    boot_id: str
    cgroups: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SandboxRecord:
    """What the registry knows of a sandbox. ``live`` is None while it is stopped."""

    spec: SandboxSpec
    branch_id: str
    filesystem: str
    process: str
    created_at: str
    name: str = ""
    live: LiveSandbox | None = None
    base: str = ""
    closed: bool = False
    gaps: tuple[Gap, ...] = ()
    """What no statepoint of it holds, known since it was made."""
    made_by: str = ""
    """The sandbox whose agent, or whose agents' forks, made it by themselves; empty when somebody outside did."""
    policy: str = ""
    """When adapters take statepoints of it by themselves; empty for the home's policy."""

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def family(self) -> str:
        """What ``made_by`` says of the forks that an agent in it makes, and may name."""
        return self.made_by or self.id


@dataclass(frozen=True)
class Command:
    """A command to run in a sandbox.

    ``argv`` is executed as it is, without a shell. ``session`` names a persistent shell instead: then ``argv`` is one
    string of shell input. ``timeout`` in seconds ends the whole tree. ``output_limit`` in bytes per stream: what is
    beyond is cut out of the middle. ``detach`` returns at once and leaves the command running, its output going to
    ``stdout_path`` / ``stderr_path`` inside the sandbox (``/dev/null`` when empty).
    """

    argv: tuple[str, ...]
    cwd: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    clear_env: bool = False
    stdin: bytes = b""
    timeout: float | None = None
    output_limit: int = 1024 * 1024
    session: str = ""
    detach: bool = False
    stdout_path: str = ""
    stderr_path: str = ""


@dataclass(frozen=True)
class CommandResult:
    """How a command ended. A signal shows as ``128 + number``; a timeout as ``timed_out`` with exit code 124."""

    exit_code: int
    stdout: str
    stderr: str
    duration: float
    timed_out: bool = False
    truncated: bool = False


@dataclass(frozen=True)
class RestoreContext:
    """What a harness appends to the agent's context after a rollback or fork (paper, section 4.5)."""

    action: str
    statepoint: Statepoint
    sandbox_id: str
    safety_id: str | None = None
    files_changed: int | None = 0
    """None: not counted, because that would have taken longer than the whole rollback."""
    files_sample: tuple[str, ...] = ()
    processes_stopped: tuple[str, ...] = ()
    processes_running: tuple[str, ...] = ()
    remote_undone: tuple[RemoteEffect, ...] = ()
    remote_redone: tuple[RemoteEffect, ...] = ()
    not_undone: tuple[Gap, ...] = ()
    outcomes: tuple[Outcome, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = encode(self)
        return data

    def to_markdown(self, limit: int = 4000) -> str:
        """The same as bounded Markdown, at most ``limit`` characters."""
        from planarian_core.context import restore_markdown

        return restore_markdown(self, limit)


@dataclass(frozen=True)
class RollbackPreview:
    """What a rollback would do, found out without changing anything."""

    statepoint: Statepoint
    files_changed: int
    files_sample: tuple[str, ...]
    processes: tuple[str, ...]
    remote: tuple[RemoteEffect, ...]


@dataclass(frozen=True)
class Hold:
    """A statepoint that no pruning removes, and why."""

    statepoint_id: str
    note: str = ""
    created_at: str = ""


@dataclass(frozen=True)
class Drill:
    """A trial of a statepoint: it was restored beside the original. ``error`` is empty when that went well."""

    statepoint_id: str
    error: str = ""
    seconds: float = 0.0
    created_at: str = ""


@dataclass(frozen=True)
class Standby:
    """An already restored copy of a statepoint that stands still, ready to be handed out.

    ``record`` is the copy as a sandbox, with its own id and layer; its ``live`` is None where only the files are kept
    warm. ``runtime`` is whose copy it is (:class:`planarian_core.standby.StandbyManager`); ``memory`` in bytes.
    """

    statepoint_id: str
    runtime: str
    record: SandboxRecord
    memory: int = 0
    ready: bool = False

    @property
    def id(self) -> str:
        return self.record.id


@dataclass(frozen=True)
class Application:
    """A sandbox's changes that were written to the host's workspace, and can be taken back while nobody else touched
    them. What they replaced lies in ``home/applied/ID``.
    """

    id: str
    sandbox_id: str
    statepoint_id: str
    workspace: str
    paths: tuple[str, ...] = ()
    created_at: str = ""
