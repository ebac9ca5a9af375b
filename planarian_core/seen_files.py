"""The files of a sandbox as it sees them, at a statepoint or now, whatever stores them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from planarian_core.comparison import NoFiles, Subtree
from planarian_core.content import stretches
from planarian_core.directory_tree import DirectoryTree
from planarian_core.errors import BackendUnavailable, ConfigurationError, RestoreError
from planarian_core.file_tree import FileEntry, FileTree
from planarian_core.interfaces import MergesLayers, OpensTrees
from planarian_core.model import SandboxRecord, Statepoint
from planarian_core.plugin_manager import PluginManager


@dataclass(frozen=True)
class SeenFiles:
    """``tree`` has the paths inside without the leading slash; ``workspace`` is one of them.

    Where a sandbox works in place ``tree`` is its workspace, ``workspace`` is empty, and ``root`` is the host path.
    """

    tree: FileTree
    workspace: str
    root: str = ""

    @property
    def files(self) -> FileTree:
        """What is in the workspace."""
        return Subtree(self.tree, self.workspace)

    @property
    def outside(self) -> FileTree:
        """All else; nothing where a sandbox works in place."""
        return Subtree(self.tree, "", without=self.workspace) if self.workspace else NoFiles()

    def locate(self, path: str) -> str:
        """The path in ``tree`` that a user means: relative to the workspace, or absolute as the sandbox sees it.

        Raises:
            ConfigurationError: it leads out of what is captured.
        """
        absolute = os.path.normpath(os.path.join(f"/{self.workspace}" if self.workspace else self.root, path))
        if self.workspace:
            return absolute.strip("/")
        relative = os.path.relpath(absolute, self.root)
        if relative == ".." or relative.startswith("../"):
            raise ConfigurationError(
                f"{path} lies outside of {self.root}, and a sandbox that works in place is of its workspace alone",
                code="path-outside",
                remedy="name a path in the workspace",
            )
        return "" if relative == "." else relative

    def shown(self, path: str) -> str:
        """A path of ``tree`` as users read it: relative in the workspace, absolute elsewhere."""
        if not self.workspace:
            return path or "."
        if path == self.workspace:
            return "."
        return path[len(self.workspace) + 1 :] if path.startswith(f"{self.workspace}/") else f"/{path}"


@contextmanager
def at_statepoint(plugins: PluginManager, record: SandboxRecord, statepoint: Statepoint) -> Iterator[SeenFiles]:
    """The files of a committed statepoint of the sandbox ``record``.

    Raises:
        RestoreError: it holds no files, or they are damaged.
        BackendUnavailable: its filesystem backend can't be looked into.
    """
    artefact = statepoint.files
    if artefact is None:
        raise RestoreError(f"{statepoint.id} holds no files", code="artefact-missing", remedy="choose another one")
    backend = plugins.filesystem(artefact.backend)
    if not isinstance(backend, OpensTrees):
        raise BackendUnavailable(
            f"statepoints of the filesystem backend {artefact.backend!r} can't be looked into",
            remedy="fork it, and look there",
        )
    with backend.open_tree(artefact) as tree:
        yield _seen(plugins, record, _Of(tree, artefact.backend))


@contextmanager
def now(plugins: PluginManager, record: SandboxRecord) -> Iterator[SeenFiles]:
    """The files of a sandbox as they are; the caller holds its lock."""
    with DirectoryTree(Path(record.spec.layer)) as tree:
        yield _seen(plugins, record, Excluding(tree, record.spec.exclude))


def at_creation(plugins: PluginManager, record: SandboxRecord) -> SeenFiles:
    """What an isolated sandbox saw before it had changed anything."""
    return _seen(plugins, record, NoFiles())


def _seen(plugins: PluginManager, record: SandboxRecord, layer: FileTree) -> SeenFiles:
    backend = plugins.sandbox(record.spec.backend)
    if isinstance(backend, MergesLayers):
        return SeenFiles(backend.merged(record.spec, layer), record.spec.place.strip("/"))
    return SeenFiles(layer, "", root=os.path.realpath(record.spec.workspace))


class _Of:
    """A backend's tree whose identities no other backend's are taken for."""

    def __init__(self, tree: FileTree, backend: str) -> None:
        self._tree = tree
        self._backend = backend

    def _mine(self, entry: FileEntry) -> FileEntry:
        return replace(entry, identity=f"{self._backend} {entry.identity}") if entry.identity else entry

    def entry(self, path: str) -> FileEntry | None:
        entry = self._tree.entry(path)
        return self._mine(entry) if entry is not None else None

    def children(self, path: str) -> Sequence[FileEntry]:
        return [self._mine(entry) for entry in self._tree.children(path)]

    def read(self, path: str) -> Iterator[bytes]:
        return self._tree.read(path)

    def stretches(self, path: str) -> Iterator[tuple[int, bytes]]:
        return stretches(self._tree, path)


class Excluding:
    """A tree without what isn't state; ``patterns`` as in :class:`planarian_core.interfaces.Layer`."""

    def __init__(self, tree: FileTree, patterns: Sequence[str]) -> None:
        self._tree = tree
        self._patterns = tuple(patterns)
        self._out = {"": False}
        """Of directories: whether they are left out."""

    def _is_out(self, path: str) -> bool:
        if not self._patterns:
            return False
        directory = path.rpartition("/")[0]
        unknown = []
        while directory not in self._out:
            unknown.append(directory)
            directory = directory.rpartition("/")[0]
        for below in reversed(unknown):
            self._out[below] = self._out[directory] or self._matches(below)
            directory = below
        return self._out[directory] or (path != "" and self._matches(path))

    def _matches(self, path: str) -> bool:
        return any(fnmatchcase(path, pattern) for pattern in self._patterns)

    def entry(self, path: str) -> FileEntry | None:
        return None if self._is_out(path) else self._tree.entry(path)

    def children(self, path: str) -> Sequence[FileEntry]:
        found = self._tree.children(path)
        if not self._patterns:
            return found
        return [child for child in found if not self._is_out(f"{path}/{child.name}" if path else child.name)]

    def read(self, path: str) -> Iterator[bytes]:
        return self._tree.read(path)

    def stretches(self, path: str) -> Iterator[tuple[int, bytes]]:
        return stretches(self._tree, path)
