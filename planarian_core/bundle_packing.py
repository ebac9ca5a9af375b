"""Packs a tree of files into a bundle: depth first, names in order, nothing but what is next to each other.

A path is never written down, so none can lead anywhere: an entry is a name in the directory that was entered last.
Of a file with several names the content comes with the first.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Any

from planarian_core.bundle_format import PIECE, BundleError, BundleWriter, Kind
from planarian_core.bundle_records import PartSize
from planarian_core.errors import RestoreError
from planarian_core.file_tree import FileEntry, FileKind, FileTree, ReadsHoles

DEEPEST = 256
"""How deep directories may lie in each other in a bundle."""
_BLOCK = 4096

Objection = Callable[[str, FileEntry], str]
"""Why a name can't be in a bundle, given its path in the tree; empty when it can."""
Progress = Callable[[int], None]
"""Told of bytes of content that were passed on."""


def encode_entry(entry: FileEntry, group: int | None) -> dict[str, Any]:
    """A name as plain data. ``group`` numbers files of several names."""
    data: dict[str, Any] = {"n": entry.name, "k": entry.kind.value, "m": entry.mode, "u": entry.uid, "g": entry.gid}
    data["t"] = entry.mtime_ns
    if entry.kind is FileKind.FILE:
        data["s"] = entry.size
    if entry.target:
        data["l"] = entry.target
    if entry.device:
        data["d"] = entry.device
    if entry.xattrs:
        data["x"] = {name: base64.b64encode(value).decode("ascii") for name, value in entry.xattrs.items()}
    if group is not None:
        data["h"] = group
    return data


class TreePacker:
    """Packs one tree as one part. Measure it first: what the two walks find has to agree.

    Raises:
        BundleError: something in it can't be in a bundle, or it changed between the two walks.
        RestoreError: it is damaged.
    """

    def __init__(self, tree: FileTree, objection: Objection) -> None:
        self._tree = tree
        self._stretches = tree.stretches if isinstance(tree, ReadsHoles) else partial(_without_zeros, tree)
        self._objection = objection
        self._entries = 0
        self._groups: dict[str, int] = {}

    def measure(self) -> PartSize:
        """Names and bytes of the tree, holes counted; every name is checked."""
        entries = size = 0
        seen: set[str] = set()
        for path, entry in self._walk():
            if entry is None:
                continue
            problem = self._objection(path, entry)
            if problem:
                raise BundleError(
                    f"{path or 'the top directory'} can't be in a bundle: {problem}",
                    code="bundle-content",
                    state="nothing was exported",
                    remedy="take it away, take another statepoint (planarian snapshot), and export that",
                )
            entries += 1
            if not entry.links or entry.links not in seen:
                size += entry.size
            seen.update(filter(None, [entry.links]))
        self._entries = entries
        return PartSize(entries, size)

    def pack(self, writer: BundleWriter, progress: Progress) -> None:
        """Write all of it."""
        entries = 0
        for path, entry in self._walk():
            if entry is None:
                writer.write(Kind.UP)
                continue
            entries += 1
            first = bool(entry.links) and entry.links not in self._groups
            group = self._groups.setdefault(entry.links, len(self._groups)) if entry.links else None
            content: Iterator[tuple[int, bytes]] = iter(())
            if entry.kind is FileKind.FILE and (first or group is None):
                try:
                    content = _begun(self._stretches(path))
                except RestoreError as error:
                    if error.code != "tree-no-file":
                        raise
                    continue  # its capture could not read it and says so; a restore does without it too
            writer.record(Kind.ENTRY, encode_entry(entry, group))
            self._content(path, entry, content, writer, progress)
        if entries != self._entries:
            raise _changed("it has another number of files than a moment ago")

    @staticmethod
    def _content(
        path: str, entry: FileEntry, content: Iterator[tuple[int, bytes]], writer: BundleWriter, progress: Progress
    ) -> None:
        for offset, data in content:
            for start in range(0, len(data), PIECE):
                writer.piece(offset + start, data[start : start + PIECE])
            if offset + len(data) > entry.size:
                raise _changed(f"{path} grew")
            progress(len(data))

    def _walk(self) -> Iterator[tuple[str, FileEntry | None]]:
        """Every name with its path; None when a directory is left."""
        root = self._tree.entry("")
        if root is None or root.kind is not FileKind.DIRECTORY:
            raise RestoreError("the tree to be packed is gone", code="artefact-missing")
        yield "", root
        stack = [("", iter(sorted(self._tree.children(""), key=_by_name)))]
        while stack:
            above, children = stack[-1]
            entry = next(children, None)
            if entry is None:
                stack.pop()
                yield above, None
                continue
            path = f"{above}/{entry.name}" if above else entry.name
            yield path, entry
            if entry.kind is FileKind.DIRECTORY:
                if len(stack) >= DEEPEST:
                    raise BundleError(f"{path[:200]}… lies deeper than a bundle can hold", code="bundle-content")
                stack.append((path, iter(sorted(self._tree.children(path), key=_by_name))))


def _by_name(entry: FileEntry) -> str:
    return entry.name


def _without_zeros(tree: FileTree, path: str) -> Iterator[tuple[int, bytes]]:
    """The content of a file of a tree that doesn't know of holes, without blocks of nothing but zeros."""
    offset = 0
    for data in _blocks(tree.read(path)):
        if data.strip(b"\0"):
            yield offset, data
        offset += len(data)


def _begun(pieces: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """The same pieces, the first of which was had."""
    return chain(list(islice(pieces, 1)), pieces)


def _blocks(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes, cut at multiples of a file system's block where they come in other pieces."""
    left = b""
    for piece in pieces:
        left += piece
        whole = len(left) - len(left) % _BLOCK
        for start in range(0, whole, _BLOCK * 16):
            yield left[start : min(start + _BLOCK * 16, whole)]
        left = left[whole:]
    if left:
        yield left


def _changed(what: str) -> BundleError:
    return BundleError(
        f"the statepoint was changed or removed while it was exported: {what}",
        code="bundle-changed",
        state="nothing was exported",
        remedy="planarian log shows what there is",
    )
