"""What a sandbox sees: its layer over the host's files and over the copy of its workspace, as overlayfs merges them.

The same answers as the kernel's, without mounting anything (:mod:`planarian_sandbox.overlay_tree`). Hidden paths and
Planarian's own runtime directory never show.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from planarian_core.errors import RestoreError
from planarian_core.file_tree import FileEntry, FileKind, FileTree
from planarian_core.model import SandboxSpec
from planarian_sandbox.hidden import below, hidden_paths
from planarian_sandbox.layout import FRESH_ROOTLESS, RUNTIME, Layout, top_directories
from planarian_sandbox.lower import LowerTree
from planarian_sandbox.overlay_tree import Overlay, ends, plain_directory

_UNSEEN = ("proc", "dev/pts", RUNTIME.lstrip("/"))
"""Not files of the sandbox's: the kernel's, and Planarian's own."""


class MergedTree:
    """Overlays at their mount points, as one tree."""

    def __init__(self, mounts: dict[str, Overlay], links: dict[str, str]) -> None:
        """``mounts`` by path, the root's (``""``) among them or not; ``links``: symlinks at the top of an own root."""
        self._mounts = mounts
        self._links = links
        self._above = {path[:end] for path in mounts for end in ends(path)} | {""}

    def entry(self, path: str) -> FileEntry | None:
        if path in _UNSEEN:
            return plain_directory(path) if "/" not in path else None
        if any(below(path, unseen) for unseen in _UNSEEN):
            return None
        name = path.rpartition("/")[2]
        if path in self._links:
            return FileEntry(name, FileKind.SYMLINK, 0o777, 0, 0, target=self._links[path])
        mount, rest = self._mount(path)
        found = mount.entry(rest) if mount is not None else None
        if path in self._above and (found is None or found.kind is not FileKind.DIRECTORY):
            return plain_directory(path)
        if found is None:
            return None
        # What is mounted below is no part of the directory's own identity.
        return replace(found, name=name, identity="" if path in self._above else found.identity)

    def children(self, path: str) -> Sequence[FileEntry]:
        entry = self.entry(path)
        if entry is None or entry.kind is not FileKind.DIRECTORY or path in _UNSEEN:
            return ()
        mount, rest = self._mount(path)
        names = {child.name for child in mount.children(rest)} if mount is not None else set()
        prefix = f"{path}/" if path else ""
        for other in (*self._above, *self._mounts, *self._links):
            if other and other.startswith(prefix) and "/" not in other[len(prefix) :]:
                names.add(other[len(prefix) :])
        found = (self.entry(prefix + name) for name in sorted(names))
        return [child for child in found if child is not None]

    def read(self, path: str) -> Iterator[bytes]:
        mount, rest = self._holder(path)
        return mount.read(rest)

    def stretches(self, path: str) -> Iterator[tuple[int, bytes]]:
        mount, rest = self._holder(path)
        return mount.stretches(rest)

    def _holder(self, path: str) -> tuple[Overlay, str]:
        mount, rest = self._mount(path)
        if mount is None or self.entry(path) is None:
            raise RestoreError(f"{path} is no regular file.", code="tree-no-file", remedy="name a file")
        return mount, rest

    def _mount(self, path: str) -> tuple[Overlay | None, str]:
        for end in (len(path), *reversed(ends(path)), 0):
            if path[:end] in self._mounts:
                return self._mounts[path[:end]], path[end:].lstrip("/")
        return None, path


def merged(spec: SandboxSpec, layer: FileTree, home: Path) -> FileTree:
    """What a sandbox with this layer sees; see :class:`planarian_core.interfaces.MergesLayers`."""
    layout = _layout(spec, layer)
    hidden = [] if spec.root else [p.lstrip("/") for p in hidden_paths((spec.home, str(home)), spec.hidden)]
    host = LowerTree(Path(spec.root or "/"), without_mounts=not layout.rootless)
    links: dict[str, str] = {}
    if layout.rootless:
        mounts = _rootless(layer, host, hidden)
        links = {entry.name: entry.target for entry in host.children("") if entry.kind is FileKind.SYMLINK}
    else:
        shown = Hidden(hidden)
        mounts = {"": Overlay(layer, "upper", host, spec.root or "host", index="work/index", hidden=shown)}
    workspace = layout.workspace.strip("/")
    if workspace:
        origin = LowerTree(Path(os.path.realpath(spec.origin or spec.workspace)), without_mounts=not layout.rootless)
        inside = [path[len(workspace) :].lstrip("/") for path in hidden if below(path, workspace)]
        mounts[workspace] = Overlay(
            layer,
            "workspace/upper",
            origin,
            f"origin {spec.origin}",
            index="" if layout.rootless else "workspace/work/index",
            rootless=layout.rootless,
            hidden=Hidden(inside),
            small=True,
        )
    return MergedTree(mounts, links)


class Hidden:
    """Whether a path is hidden, or lies in what is."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = frozenset(paths)

    def __call__(self, path: str) -> bool:
        return path in self._paths or any(path[:end] in self._paths for end in ends(path))


def _rootless(layer: FileTree, host: LowerTree, hidden: Iterable[str]) -> dict[str, Overlay]:
    """The overlays of an ordinary user's sandbox: one for each directory at the top, others from the layer alone."""
    shown = Hidden(hidden)
    mounts = {
        name: Overlay(layer, f"upper/{name}", host, "host", start=name, rootless=True, hidden=shown)
        for name in top_directories()
    }
    for name in {*FRESH_ROOTLESS, "dev/shm"} - {"dev", "proc", "sys", "lost+found"}:
        mounts[name] = Overlay(layer, f"upper/{name}", None, "", rootless=True)
    return mounts


def _layout(spec: SandboxSpec, layer: FileTree) -> Layout:
    """How the layer is laid out; as a new one of this user's would be where it doesn't say."""
    entry = layer.entry("layout.json")
    if entry is None:
        return Layout(os.geteuid() != 0, spec.place)
    try:
        data = json.loads(b"".join(layer.read("layout.json")))
        return Layout(bool(data["rootless"]), str(data["workspace"]))
    except (ValueError, KeyError, TypeError) as error:
        raise RestoreError(f"The layer's layout can't be read: {error}.", code="sandbox-layer") from error
