"""What keeps versions of a sandbox's files, and what it may do beyond that."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from planarian_core.file_tree import FileTree
from planarian_core.interfaces.availability import Availability
from planarian_core.model import (
    Artefact,
)


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
