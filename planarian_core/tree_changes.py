"""Making a live tree of files equal to another one at some of its paths: what differs, and the writing of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from planarian_core.comparison import Aspect, Difference, Links
from planarian_core.faults import reach
from planarian_core.file_tree import FileEntry, FileKind, FileTree
from planarian_core.writing import WRITABLE, Writer

_METADATA = frozenset({Aspect.MODE, Aspect.OWNER, Aspect.ATTRIBUTES, Aspect.TIME})


@dataclass
class Changes:
    """What has to be written. ``links`` are the hard links of the tree that is to be had; ``parents`` the directories
    above that are missing now, the uppermost first.
    """

    differences: list[Difference] = field(default_factory=list)
    links: Links = field(default_factory=Links)
    parents: list[str] = field(default_factory=list)


def above_path(path: str) -> Iterator[str]:
    """The directories above a path, the uppermost first, without the root."""
    for at, letter in enumerate(path):
        if letter == "/":
            yield path[:at]


def carry_out(writer: Writer, changes: Changes, tree: FileTree, within: Collection[str]) -> dict[str, str]:
    """Make what differs as it is in ``tree``, and directories at and below the paths ``within`` as old as there.

    Returns:
        What was left out, by path, with the reason.
    """
    for difference in reversed(changes.differences):
        if difference.after is None:
            writer.remove(difference.path, whole=True)
    for path in changes.parents:
        writer.make_directory(path)
    left_out: dict[str, str] = {}
    touched = set(changes.parents)
    making = _Making(writer, tree, changes.links)
    for difference in changes.differences:
        path, entry = difference.path, difference.after
        if entry is not None and entry.kind not in WRITABLE:
            left_out[path] = f"a {entry.kind} can't be made again"
        elif entry is not None:
            making.make(difference, entry)
            touched |= {path} if entry.kind is FileKind.DIRECTORY else set()
        touched |= {above for above in above_path(path) if any(_is_in(above, top) for top in within)}
        reach("restore.half")
    making.join_links({difference.path for difference in changes.differences})
    for path in sorted(touched, key=lambda one: (-one.count("/"), one)):
        wanted = tree.entry(path)
        if wanted is not None and wanted.kind is FileKind.DIRECTORY:
            writer.mend(path, wanted)
    return left_out


def _is_in(path: str, top: str) -> bool:
    return not top or path == top or path.startswith(f"{top}/")


class _Making:
    """Makes one file after the other, hard links among them as links."""

    def __init__(self, writer: Writer, tree: FileTree, links: Links) -> None:
        self._writer = writer
        self._tree = tree
        self._links = links
        self._first: dict[str, str] = {}

    def make(self, difference: Difference, entry: FileEntry) -> None:
        path = difference.path
        if entry.kind is FileKind.DIRECTORY:
            if difference.before is None or difference.before.kind is not FileKind.DIRECTORY:
                self._writer.make_directory(path)
            return
        linked = len(self._links.group(path)) > 1
        label = self._links.labels.get(path, "")
        if linked and label in self._first:
            self._writer.link(path, self._first[label])
        elif difference.before is not None and difference.aspects <= _METADATA and not linked:
            self._writer.mend(path, entry)
        else:
            self._writer.put(path, entry, self._tree)
            if linked:
                self._first[label] = path

    def join_links(self, made: Collection[str]) -> None:
        """Names that were as they should be, of files that were made anew under another name."""
        for label, first in self._first.items():
            for path in sorted(self._links.names[label] - set(made)):
                self._writer.link(path, first)
