"""Two trees of files, compared: what is only in one, and what differs in which respect."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from planarian_core.content import same_blocks, stretches
from planarian_core.errors import RestoreError
from planarian_core.file_tree import FileEntry, FileKind, FileTree


class Aspect(StrEnum):
    """In which respect two files of one name differ."""

    KIND = "kind"
    CONTENT = "content"
    TARGET = "target"
    DEVICE = "device"
    MODE = "mode"
    OWNER = "owner"
    ATTRIBUTES = "attributes"
    TIME = "time"
    LINKS = "links"


@dataclass(frozen=True)
class Difference:
    """One path that differs. ``before`` or ``after`` is None where there is nothing; ``aspects`` when both are there.

    ``source``: where it was before, of what was renamed; all below it was, too.
    """

    path: str
    before: FileEntry | None
    after: FileEntry | None
    aspects: frozenset[Aspect] = frozenset()
    source: str = ""


class Subtree:
    """What is below a directory of a tree, as a tree of its own."""

    def __init__(self, tree: FileTree, top: str, *, without: str | None = None) -> None:
        """``without``: a path (in ``tree``) that is left out with all below it."""
        self._tree = tree
        self._top = top
        self._without = without

    def _path(self, path: str) -> str:
        return f"{self._top}/{path}" if self._top and path else self._top or path

    def _is_out(self, path: str) -> bool:
        return self._without is not None and (path == self._without or path.startswith(f"{self._without}/"))

    def entry(self, path: str) -> FileEntry | None:
        return None if self._is_out(self._path(path)) else self._tree.entry(self._path(path))

    def children(self, path: str) -> Sequence[FileEntry]:
        top = self._path(path)
        found = self._tree.children(top)
        return [child for child in found if not self._is_out(f"{top}/{child.name}" if top else child.name)]

    def read(self, path: str) -> Iterator[bytes]:
        return self._tree.read(self._path(path))

    def stretches(self, path: str) -> Iterator[tuple[int, bytes]]:
        return stretches(self._tree, self._path(path))


class NoFiles:
    """A tree in which there is nothing."""

    def entry(self, path: str) -> FileEntry | None:
        return None

    def children(self, path: str) -> Sequence[FileEntry]:
        return ()

    def read(self, path: str) -> Iterator[bytes]:
        raise RestoreError(f"{path} isn't there", code="tree-no-file")


@dataclass
class Links:
    """Which names of one tree were met that are hard links of each other."""

    names: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    labels: dict[str, str] = field(default_factory=dict)

    def note(self, path: str, entry: FileEntry | None) -> None:
        if entry is not None and entry.links:
            self.names[entry.links].add(path)
            self.labels[path] = entry.links

    def group(self, path: str) -> frozenset[str]:
        return frozenset(self.names[self.labels[path]] if path in self.labels else {path})


def compare(
    one: FileTree, other: FileTree, path: str = "", *, times: bool = False, linked: Links | None = None
) -> Iterator[Difference]:
    """What differs at and below a path, a directory before what is in it; names that only came to be linked, or not,
    come last.

    Args:
        times: whether another modification time alone is a difference.
        linked: gets the hard links among the names of ``other`` that were met.

    Raises:
        RestoreError: a tree is damaged, or can't be read.
    """
    links = Links(), linked if linked is not None else Links()
    same: list[tuple[str, FileEntry, FileEntry]] = []
    todo = [(path, one.entry(path), other.entry(path))]
    while todo:
        at, before, after = todo.pop()
        if before is None and after is None:
            continue
        if before and after and before.identity and before.identity == after.identity and before.links == after.links:
            if before.kind is not FileKind.DIRECTORY:
                links[0].note(at, before)
                links[1].note(at, after)
            continue
        links[0].note(at, before)
        links[1].note(at, after)
        if before is None or after is None:
            yield Difference(at, before, after)
        else:
            aspects = differing(one, other, at, before, after, times=times)
            if aspects:
                yield Difference(at, before, after, aspects)
            elif before.links or after.links:
                same.append((at, before, after))
        todo += reversed(list(_below(one, other, at, before, after)))
    for at, before, after in same:
        if links[0].group(at) != links[1].group(at):
            yield Difference(at, before, after, frozenset({Aspect.LINKS}))


def _below(
    one: FileTree, other: FileTree, path: str, before: FileEntry | None, after: FileEntry | None
) -> Iterator[tuple[str, FileEntry | None, FileEntry | None]]:
    mine = {e.name: e for e in one.children(path)} if is_directory(before) else {}
    theirs = {e.name: e for e in other.children(path)} if is_directory(after) else {}
    for name in sorted(mine.keys() | theirs.keys()):
        yield f"{path}/{name}" if path else name, mine.get(name), theirs.get(name)


def is_directory(entry: FileEntry | None) -> bool:
    return entry is not None and entry.kind is FileKind.DIRECTORY


def differing(
    one: FileTree, other: FileTree, path: str, before: FileEntry, after: FileEntry, *, times: bool = False
) -> frozenset[Aspect]:
    """In which respects two entries of one path differ, what is in a directory and hard links apart."""
    if before.kind is not after.kind:
        return frozenset({Aspect.KIND})
    found = set()
    pairs: Mapping[Aspect, tuple[object, object]] = {
        Aspect.TARGET: (before.target, after.target),
        Aspect.DEVICE: (before.device, after.device),
        Aspect.MODE: (before.mode, after.mode),
        Aspect.OWNER: ((before.uid, before.gid), (after.uid, after.gid)),
        Aspect.ATTRIBUTES: (dict(before.xattrs), dict(after.xattrs)),
    }
    found = {aspect for aspect, (mine, theirs) in pairs.items() if mine != theirs}
    if before.kind is FileKind.SYMLINK:
        found.discard(Aspect.MODE)
    if before.kind is FileKind.FILE and not same_content(one, other, path, before, after):
        found.add(Aspect.CONTENT)
    if times and before.mtime_ns != after.mtime_ns:
        found.add(Aspect.TIME)
    return frozenset(found)


def same_content(one: FileTree, other: FileTree, path: str, before: FileEntry, after: FileEntry) -> bool:
    """Whether two regular files hold the same bytes. Times prove nothing: whoever writes can set them."""
    if before.size != after.size:
        return False
    if before.identity and before.identity == after.identity:
        return True
    return before.size == 0 or same_blocks(one, other, path)
