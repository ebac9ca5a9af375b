"""What captures and restores the processes of a sandbox, and owns the instant."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from planarian_core.interfaces.availability import Availability
from planarian_core.interfaces.sandboxes import RestoreEnvironment, RunningSandbox, SandboxCapabilities
from planarian_core.model import (
    Artefact,
    Command,
    Gap,
    ProcessInfo,
    SandboxSpec,
)


@dataclass(frozen=True)
class ProcessCapabilities:
    """Promises of a process backend, each checked by ``planarian_core.testing.ProcessConformance``."""

    memory: bool
    """A restore brings back pids, memory and open files."""
    restarts: bool
    """Without memory: what ran is started again."""
    incremental: bool = False
    """An image holds only what changed since the one before, also after a restore, where the kernel tells that (paper,
    section 5.3)."""


@dataclass
class Instant:
    """The moment when everything in a sandbox stands still. Filled when the context has ended well."""

    artefact: Artefact | None = None
    process_list: tuple[ProcessInfo, ...] = ()
    gaps: tuple[Gap, ...] = ()
    frozen: float | None = None
    """Seconds for which it stood still; None where the whole context is that."""
    notes: tuple[str, ...] = ()
    """What else the coverage is to say of how it was captured."""


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
class PreparesStart(Protocol):
    """A process backend for which what it will capture should begin in a certain way."""

    def starting(self) -> AbstractContextManager[None]:
        """A context in which a sandbox of its is started: what is started there inherits what it should have.

        It never fails: without it captures are as right as with it, and larger or slower.
        """


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
class SharesPages(Protocol):
    """A process backend whose images share on the disk what did not change between them."""

    def freed(self, images: Path) -> int:
        """Bytes that giving an image up now would free: what no other one has."""


@runtime_checkable
class RestartsCommands(Protocol):
    """A process backend with ``capabilities.restarts``."""

    def commands(self, artefact: Artefact) -> tuple[Command, ...]:
        """What to start again, in order, each with ``detach`` set."""
