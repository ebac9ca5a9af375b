"""One overlay as a tree of files: a layer over a lower directory, as overlayfs merges them, without mounting it.

Whiteouts, opaque directories, renamed lower directories (``redirect``), and hard links that the overlay's index holds
together. Markers of overlayfs never show.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from planarian_core.content import stretches
from planarian_core.errors import RestoreError
from planarian_core.file_tree import FileEntry, FileKind, FileTree
from planarian_sandbox.index import HANDLE_TYPE, HEADER_SIZE
from planarian_sandbox.lower import LowerTree


@dataclass(frozen=True)
class _Place:
    """A name in an overlay, by its path in the layer and in the lower tree; None where it isn't there."""

    entry: FileEntry
    upper: str | None
    lower: str | None


class Overlay:
    """One overlay as a tree.

    Args:
        layer: where ``upper`` (a path in it) is; ``index`` is that of the overlay's index, empty where it has none.
        lower: None where the layer's directory is all there is; ``start`` is the directory of it that is merged.
        label: tells the lower tree from others in identities.
        hidden: whether a path of the lower tree must not be seen.
        small: whether the lower tree is one that can be walked when need be.
    """

    def __init__(
        self,
        layer: FileTree,
        upper: str,
        lower: LowerTree | None,
        label: str,
        *,
        start: str = "",
        index: str = "",
        rootless: bool = False,
        hidden: Callable[[str], bool] = lambda path: False,
        small: bool = False,
    ) -> None:
        self._layer = layer
        self._lower = lower
        self._label = label
        self._mark = "user.overlay." if rootless else "trusted.overlay."
        self._redirects = not rootless
        self._hidden = hidden
        self._index = self._read_index(index)
        self._replaced_below = self._find_replaced() if small else frozenset()
        self._places: dict[str, _Place | None] = {"": self._root(upper, start)}

    # --- the tree ---

    def entry(self, path: str) -> FileEntry | None:
        place = self._place(path)
        return place.entry if place else None

    def children(self, path: str) -> Sequence[FileEntry]:
        place = self._place(path)
        if place is None or place.entry.kind is not FileKind.DIRECTORY:
            return ()
        names = {entry.name for entry in self._in_upper(place)} | {entry.name for entry in self._in_lower(place)}
        found = (self._place(f"{path}/{name}" if path else name, place) for name in sorted(names))
        return [one.entry for one in found if one is not None]

    def read(self, path: str) -> Iterator[bytes]:
        tree, there = self._holder(path)
        return tree.read(there)

    def stretches(self, path: str) -> Iterator[tuple[int, bytes]]:
        tree, there = self._holder(path)
        return stretches(tree, there)

    def _holder(self, path: str) -> tuple[FileTree, str]:
        """Where the content of a file is, and by which path."""
        place = self._place(path)
        if place is None or place.entry.kind is not FileKind.FILE:
            raise RestoreError(f"{path} is no regular file.", code="tree-no-file", remedy="name a file")
        if place.upper is not None:
            return self._layer, place.upper
        assert self._lower is not None
        assert place.lower is not None
        return self._lower, place.lower

    # --- merging ---

    def _root(self, upper: str, start: str) -> _Place | None:
        above = self._layer.entry(upper)
        under = self._lower.entry(start) if self._lower is not None else None
        if above is not None and self._is_opaque(above):
            under = None
        if above is None and under is None:
            return None
        return self._merge("", above, upper, under, start)

    def _place(self, path: str, parent: _Place | None = None) -> _Place | None:
        if path not in self._places:
            above, _, name = path.rpartition("/")
            if name in ("", ".", ".."):
                return None
            parent = parent or self._place(above)
            found = self._look(parent, name) if parent and parent.entry.kind is FileKind.DIRECTORY else None
            if found is not None and found.entry.kind is not FileKind.DIRECTORY:
                return found
            self._places[path] = found
        return self._places[path]

    def _look(self, parent: _Place, name: str) -> _Place | None:
        upper = _join(parent.upper, name) if parent.upper is not None else None
        above = self._layer.entry(upper) if upper is not None else None
        if above is not None and self._is_whiteout(above):
            return None
        if above is not None and above.kind is not FileKind.DIRECTORY:
            return self._merge(name, above, upper, None, None)
        lower = self._lower_of(parent, name, above)
        under = self._lower.entry(lower) if self._lower is not None and lower is not None else None
        if under is not None and (_is_null_device(under) or self._hidden(lower or "")):
            under = None
        if above is None and under is None:
            return None
        if above is None and under is not None and under.links and (indexed := self._indexed(lower or "")):
            found = self._layer.entry(indexed)
            if found is None:
                return None
            found = replace(found, links=found.links or f"index {indexed}")  # all its names may be lower ones
            return self._merge(name, found, indexed, None, None)
        if above is not None and (under is None or not self._merges(above, under, lower or "")):
            return self._merge(name, above, upper, None, None)
        return self._merge(name, above, upper, under, lower)

    def _merge(
        self, name: str, above: FileEntry | None, upper: str | None, under: FileEntry | None, lower: str | None
    ) -> _Place:
        """A place from what is in the layer and what is under it; at least one of them is there."""
        beneath = f"{self._label}:{lower}" if under is not None else ""
        if lower in self._replaced_below:
            entry = self._clean(above or under or plain_directory(name))
            return _Place(replace(entry, name=name, identity=""), upper, lower)
        if above is None:
            assert under is not None
            links = f"{self._label}:{under.links}" if under.links else ""
            return _Place(replace(self._clean(under), name=name, identity=beneath, links=links), None, lower)
        identity = f"{above.identity}|{beneath}" if above.identity else ""
        entry = replace(self._clean(above), name=name, identity=identity)
        return _Place(entry, upper, lower if under is not None else None)

    def _lower_of(self, parent: _Place, name: str, above: FileEntry | None) -> str | None:
        """Where in the lower tree a name is to be looked for; None when nowhere."""
        if above is not None:
            if self._is_opaque(above):
                return None
            redirect = os.fsdecode(above.xattrs.get(f"{self._mark}redirect", b"")) if self._redirects else ""
            if redirect.startswith("/"):
                return redirect.strip("/") if not self._hidden(redirect.strip("/")) else None
            name = redirect or name
        return _join(parent.lower, name) if parent.lower is not None else None

    def _merges(self, above: FileEntry, under: FileEntry, lower: str) -> bool:
        """Whether overlayfs joins these two: both directories, the lower one still the one that the layer grew over."""
        if under.kind is not FileKind.DIRECTORY:
            return False
        origin = above.xattrs.get(f"{self._mark}origin", b"")[HEADER_SIZE:]
        if not origin or not self._redirects or self._lower is None:
            return True
        return self._lower.handle(lower) in (origin, b"")

    def _in_upper(self, place: _Place) -> Iterable[FileEntry]:
        return self._layer.children(place.upper) if place.upper is not None else ()

    def _in_lower(self, place: _Place) -> Iterable[FileEntry]:
        return self._lower.children(place.lower) if self._lower is not None and place.lower is not None else ()

    # --- markers ---

    def _is_opaque(self, entry: FileEntry) -> bool:
        return entry.xattrs.get(f"{self._mark}opaque") == b"y"

    def _is_whiteout(self, entry: FileEntry) -> bool:
        marked = entry.kind is FileKind.FILE and entry.size == 0 and f"{self._mark}whiteout" in entry.xattrs
        return marked or _is_null_device(entry)

    def _clean(self, entry: FileEntry) -> FileEntry:
        """Without overlayfs's own attributes; what an overlay inside had of its own is escaped by one more name."""
        if not any(name.startswith(self._mark) for name in entry.xattrs):
            return entry
        escaped = f"{self._mark}overlay."
        kept = {
            self._mark + name.removeprefix(escaped) if name.startswith(escaped) else name: value
            for name, value in entry.xattrs.items()
            if name.startswith(escaped) or not name.startswith(self._mark)
        }
        return replace(entry, xattrs=kept)

    # --- the index: files of the layer that stand for lower files with several names ---

    def _read_index(self, index: str) -> dict[bytes, tuple[int, str]]:
        """By the lower file's handle: the type of that, and where the file is in the layer."""
        found: dict[bytes, tuple[int, str]] = {}
        for entry in self._layer.children(index) if index else ():
            if entry.kind is FileKind.FILE:
                with suppress(ValueError, IndexError):
                    name = bytes.fromhex(entry.name)
                    found[name[HEADER_SIZE:]] = (name[HANDLE_TYPE], f"{index}/{entry.name}")
        return found

    def _indexed(self, lower: str) -> str:
        if not self._index or self._lower is None:
            return ""
        return self._index.get(self._lower.handle(lower), (0, ""))[1]

    def _find_replaced(self) -> frozenset[str]:
        """Lower directories that hold another name of a file that was changed: they aren't what they were."""
        lower = self._lower
        if lower is None or not any(lower.has_several_names(h, kind) for h, (kind, _) in self._index.items()):
            return frozenset()
        found: set[str] = set()
        todo = [""]
        while todo:
            path = todo.pop()
            for entry in lower.children(path):
                below = _join(path, entry.name)
                if entry.kind is FileKind.DIRECTORY:
                    todo.append(below)
                elif entry.links and path not in found and self._indexed(below):
                    found |= {path, *(path[:end] for end in ends(path)), ""}
        return frozenset(found)


def plain_directory(path: str) -> FileEntry:
    return FileEntry(path.rpartition("/")[2], FileKind.DIRECTORY, 0o755, 0, 0)


def ends(path: str) -> list[int]:
    """Where each directory above a path ends, the outermost first."""
    return [at for at, letter in enumerate(path) if letter == "/"]


def _join(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name


def _is_null_device(entry: FileEntry) -> bool:
    return entry.kind is FileKind.CHARACTER and entry.device == 0
