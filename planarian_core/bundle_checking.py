"""Looks through a whole bundle before anything of it is written: is it sound, who made it, does it fit this host?

The walk that checks is the walk that unpacks, with a sink that keeps nothing; so nothing is written that was not
looked at, and memory and time are bounded by what the disk could take.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from planarian_core.bundle_format import BundleError, BundleReader, Frame, Kind, damaged
from planarian_core.bundle_packing import Progress
from planarian_core.bundle_records import BundleHead, BundleHost, read_ancestor, read_head
from planarian_core.bundle_unpacking import Nowhere, TreeReader, TreeSink
from planarian_core.file_tree import FileEntry, FileKind
from planarian_core.interfaces import SandboxBackend, TakesLayers
from planarian_core.model import Evidence

_MOST_DOUBTS = 5
_ANYWHERE = ("user.", "system.posix_acl_")
_PRIVILEGED = ("trusted.", "security.capability")
_SET_ID = 0o6000

Sinks = Callable[[str, BundleHead], TreeSink]
"""Gives the sink for a part."""


def this_host() -> BundleHost:
    """What is known of this host in bundles."""
    found = os.uname()
    return BundleHost(found.machine, platform.system(), found.release, os.geteuid() == 0, os.geteuid(), os.getegid())


def objection(part: str, layers: TakesLayers | None, path: str, entry: FileEntry, *, trusted: bool) -> str:
    """Why a name can't be in a part of a bundle; empty when it can.

    Args:
        layers: the sandbox backend, where its layers are more than plain files (:func:`layers_of`).
        trusted: the home's owner vouches for who made it. Otherwise nothing may be in it that means more here than
            where it was made.
    """
    if entry.kind is FileKind.BLOCK:
        return "a block device"
    foreign = [name for name in entry.xattrs if not name.startswith((*_ANYWHERE, *_PRIVILEGED))]
    if foreign:
        return f"the attribute {foreign[0][:80]!a}, which belongs to a host"
    if part == "files" and layers is not None:
        return layers.objection(path, entry, trusted=trusted)
    if part == "images":
        plain = entry.kind in (FileKind.FILE, FileKind.DIRECTORY) and not entry.xattrs and not entry.mode & _SET_ID
        return "" if plain else "something that is no plain file among the images of processes"
    if entry.kind is FileKind.CHARACTER and entry.device:
        return "a device"
    if not trusted and entry.kind is FileKind.FILE and entry.mode & _SET_ID:
        return "a program that runs as somebody else"
    if not trusted and any(name.startswith(_PRIVILEGED) for name in entry.xattrs):
        return "an attribute that gives privileges"
    return ""


def layers_of(backend: SandboxBackend | None) -> TakesLayers | None:
    """The backend, if its layers are more than plain files."""
    return backend if isinstance(backend, TakesLayers) else None


@dataclass(frozen=True)
class Inspection:
    """A bundle that is sound from beginning to end. ``ancestors``: the nearest first.

    ``authentic``: this home, or one with the same key, wrote it. ``doubts``: what only an authentic bundle, or one
    that the user vouches for, may hold.
    """

    head: BundleHead
    ancestors: tuple[Evidence, ...]
    authentic: bool
    doubts: tuple[str, ...]
    digest: bytes


class _Walk:
    """One walk through a bundle's frames, in the order in which a bundle has them."""

    def __init__(self, backends: Callable[[str], SandboxBackend | None], sinks: Sinks, progress: Progress) -> None:
        self._backends = backends
        self._sinks = sinks
        self._progress = progress
        self.head: BundleHead | None = None
        self.ancestors: list[Evidence] = []
        self.doubts: list[str] = []
        self._known = False
        self._layers: TakesLayers | None = None
        self._part: TreeReader | None = None
        self._seen: list[str] = []

    def take(self, frame: Frame) -> None:
        if self.head is None:
            if frame.kind is not Kind.HEAD:
                raise damaged("it doesn't begin with its first record")
            self.head = read_head(frame.record())
            backend = self._backends(self.head.sandbox.backend)
            self._known, self._layers = backend is not None, layers_of(backend)
        elif frame.kind is Kind.PART:
            self._begin(self.head, frame.part)
        elif self._part is not None:
            self._part.feed(frame)
        elif frame.kind is Kind.LINEAGE and len(self.ancestors) < self.head.lineage:
            self.ancestors.append(read_ancestor(frame.record()))
        else:
            raise damaged("a frame where none of its kind can be")

    def _begin(self, head: BundleHead, name: str) -> None:
        self._end_part()
        if name not in head.parts:
            raise damaged("a part that it doesn't announce")
        self._seen.append(name)

        def examine(path: str, entry: FileEntry) -> None:
            if self._known:
                self._examine(name, path, entry)

        self._part = TreeReader(head.parts[name], self._sinks(name, head), examine, self._progress)

    def _examine(self, part: str, path: str, entry: FileEntry) -> None:
        problem = objection(part, self._layers, path, entry, trusted=True)
        if problem:
            raise BundleError(
                f"the bundle holds what none may: {problem} ({path[:200]!a})",
                code="bundle-content",
                state="nothing was imported",
                remedy="don't use this bundle; ask who made it",
            )
        doubt = objection(part, self._layers, path, entry, trusted=False)
        if doubt and len(self.doubts) < _MOST_DOUBTS:
            self.doubts.append(f"{doubt} ({path[:200]!a})")

    def _end_part(self) -> None:
        if self._part is not None and not self._part.done:
            raise damaged("a tree of files ends in the middle")

    def end(self) -> BundleHead:
        """All frames were taken."""
        self._end_part()
        if self.head is None or set(self._seen) != set(self.head.parts) or len(self.ancestors) != self.head.lineage:
            raise damaged("parts of it are missing")
        known = self.head.statepoint
        ids = {known.id}
        for ancestor in (evidence.statepoint for evidence in self.ancestors):
            if known.parent_id != ancestor.id or ancestor.id in ids:
                raise damaged("its ancestors don't follow each other")
            ids.add(ancestor.id)
            known = ancestor
        outcomes = [outcome.id for outcome in self.head.outcomes]
        outcomes += [outcome.id for evidence in self.ancestors for outcome in evidence.outcomes]
        if len(set(outcomes)) < len(outcomes):
            raise damaged("an outcome comes twice")
        return self.head


def walk(
    reader: BundleReader, backends: Callable[[str], SandboxBackend | None], sinks: Sinks, progress: Progress
) -> _Walk:
    """Go through all frames; BundleError where there is anything wrong."""
    found = _Walk(backends, sinks, progress)
    for frame in reader.frames():
        found.take(frame)
    found.end()
    return found


def inspect(
    file: IO[bytes], key: bytes, backends: Callable[[str], SandboxBackend | None], home: Path, progress: Progress
) -> Inspection:
    """Read a bundle to its end, writing nothing.

    Args:
        key: of this home; empty where it has none.
        backends: a sandbox backend by its name, None where there is none: then the bundle can't come here anyway.

    Raises:
        BundleError: damaged, hostile, or more than fits on the home's disk.
    """
    reader = BundleReader(file)
    budget = _Budget(home)

    def count(size: int) -> None:
        budget.take(size)
        progress(size)

    found = walk(reader, backends, lambda name, head: budget.counting(), count)
    assert found.head is not None
    doubts = tuple(found.doubts)
    return Inspection(found.head, tuple(found.ancestors), reader.sealed_with(key), doubts, reader.digest)


class _Budget:
    """What the home's disk could take; reading on beyond that would be for nothing."""

    def __init__(self, home: Path) -> None:
        status = os.statvfs(home)
        self._bytes = status.f_bavail * status.f_frsize
        self._names = status.f_favail if status.f_files else 2**40

    def take(self, size: int) -> None:
        self._bytes -= size
        if self._bytes < 0:
            raise self._too_much("bytes")

    def name(self) -> None:
        self._names -= 1
        if self._names < 0:
            raise self._too_much("files")

    def counting(self) -> TreeSink:
        return _Counting(self)

    @staticmethod
    def _too_much(what: str) -> BundleError:
        return BundleError(
            f"the bundle holds more {what} than the home's disk has room for",
            code="bundle-too-large",
            state="nothing was imported",
            remedy="free disk space, or set PLANARIAN_HOME to a larger disk",
        )


class _Counting(Nowhere):
    def __init__(self, budget: _Budget) -> None:
        self._budget = budget

    def enter(self, entry: FileEntry) -> None:
        self._budget.name()

    begin = node = enter
