"""Exact renames among the differences of two trees, found with bounded effort."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from planarian_core.comparison import Difference, is_directory
from planarian_core.content import content_digest
from planarian_core.file_tree import FileEntry, FileKind, FileTree

_HASHED_FILES, _HASHED_BYTES = 2000, 256 * 1024 * 1024
"""How much is read to find renamed files."""
_DEEPEST = 64
"""Directories in each other beyond which nothing is taken for renamed: only somebody who means harm nests them so."""


def with_renames(one: FileTree, other: FileTree, differences: Sequence[Difference]) -> list[Difference]:
    """The differences with exact renames found: what was deleted here and added there, the same in kind and content.

    Whole directories count as one. Only so much is read as :data:`_HASHED_BYTES` allows; what isn't found stays as a
    deletion and an addition.
    """
    near = [d for d in differences if d.path.count("/") < _DEEPEST]
    gone = {d.path: d for d in near if d.after is None}
    come = {d.path: d for d in near if d.before is None}
    moved = _by_identity(gone, come)
    _forget_below(gone, come, moved)
    moved |= _by_content(one, other, gone, come, moved)
    moved = _whole_directories(gone, come, moved)
    covered_old, covered_new = set(moved.values()), set(moved)
    left = []
    for difference in differences:
        path, created = difference.path, difference.before is None
        if path in moved:
            left.append(Difference(path, one.entry(moved[path]), difference.after, source=moved[path]))
        elif not _at_or_below(path, covered_old if difference.after is None else covered_new if created else ()):
            left.append(difference)
    return left


def _by_identity(gone: Mapping[str, Difference], come: Mapping[str, Difference]) -> dict[str, str]:
    """New path -> old path of what has one identity; the topmost directories alone."""
    known: dict[tuple[FileKind, str], list[str]] = defaultdict(list)
    for path, difference in gone.items():
        entry = difference.before
        if entry is not None and entry.identity and not _trivial(entry):
            known[entry.kind, entry.identity].append(path)
    moved: dict[str, str] = {}
    taken: set[str] = set()
    for path, difference in come.items():
        entry = difference.after
        if entry is None or not entry.identity or _at_or_below(path, moved):
            continue
        options = [old for old in known.get((entry.kind, entry.identity), ()) if not _at_or_below(old, taken)]
        if options:
            moved[path] = _likeliest(path, options)
            taken.add(moved[path])
    return moved


def _forget_below(gone: dict[str, Difference], come: dict[str, Difference], moved: Mapping[str, str]) -> None:
    for known, tops in ((gone, set(moved.values())), (come, set(moved))):
        for path in [path for path in known if path not in tops and _at_or_below(path, tops)]:
            del known[path]


def _by_content(
    one: FileTree,
    other: FileTree,
    gone: Mapping[str, Difference],
    come: Mapping[str, Difference],
    moved: Mapping[str, str],
) -> dict[str, str]:
    """New path -> old path of files and symlinks with the same content."""
    taken = set(moved.values())
    old = {p: d.before for p, d in gone.items() if d.before and p not in taken and _has_content(d.before)}
    new = {p: d.after for p, d in come.items() if d.after and p not in moved and _has_content(d.after)}
    sizes = {_likeness(entry) for entry in old.values()} & {_likeness(entry) for entry in new.values()}
    budget = _Budget()
    known: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for path, entry in old.items():
        if _likeness(entry) in sizes and (mark := budget.mark(one, path, entry)):
            known[mark].append(path)
    found: dict[str, str] = {}
    for path, entry in new.items():
        if _likeness(entry) in sizes and (mark := budget.mark(other, path, entry)) and known.get(mark):
            found[path] = _likeliest(path, known[mark])
            known[mark].remove(found[path])
    return found


def _whole_directories(
    gone: Mapping[str, Difference], come: Mapping[str, Difference], moved: Mapping[str, str]
) -> dict[str, str]:
    """Directories of which all was renamed alike count as one rename."""
    candidates: dict[str, str] = {}
    for new, old in moved.items():
        above_new, above_old = _parent(new), _parent(old)
        while above_new and above_old and above_new in come and above_old in gone and _name(new) == _name(old):
            candidates.setdefault(above_new, above_old)
            new, old = above_new, above_old
            above_new, above_old = _parent(new), _parent(old)
    result = dict(moved)
    for new, old in sorted(candidates.items()):
        if _at_or_below(new, result) or not _all_moved(new, old, gone, come, moved):
            continue
        for path in [path for path in result if path.startswith(f"{new}/")]:
            del result[path]
        result[new] = old
    return result


def _all_moved(
    new: str, old: str, gone: Mapping[str, Difference], come: Mapping[str, Difference], moved: Mapping[str, str]
) -> bool:
    mine = {path[len(old) :]: d.before for path, d in gone.items() if path.startswith(f"{old}/")}
    theirs = {path[len(new) :]: d.after for path, d in come.items() if path.startswith(f"{new}/")}
    if mine.keys() != theirs.keys():
        return False
    return all(
        moved.get(new + rest) == old + rest or (is_directory(entry) and is_directory(mine[rest]))
        for rest, entry in theirs.items()
    )


class _Budget:
    """Tells contents apart while there is reading left to do."""

    def __init__(self) -> None:
        self._files, self._bytes = _HASHED_FILES, _HASHED_BYTES

    def mark(self, tree: FileTree, path: str, entry: FileEntry) -> tuple[object, ...] | None:
        if entry.kind is FileKind.SYMLINK:
            return (entry.kind, entry.target)
        if self._files <= 0 or self._bytes < entry.size:
            return None
        self._files -= 1
        self._bytes -= entry.size
        return (entry.kind, content_digest(tree, path, entry.size))


def _trivial(entry: FileEntry) -> bool:
    """Too many of these are alike for it to mean anything."""
    return entry.kind not in (FileKind.FILE, FileKind.SYMLINK, FileKind.DIRECTORY) or (
        entry.kind is FileKind.FILE and entry.size == 0
    )


def _has_content(entry: FileEntry) -> bool:
    return entry.kind is not FileKind.DIRECTORY and not _trivial(entry)


def _likeness(entry: FileEntry) -> tuple[FileKind, int]:
    return (entry.kind, entry.size)


def _likeliest(path: str, options: Sequence[str]) -> str:
    """Among several that are the same: one with the same name, else the first."""
    return next((old for old in options if _name(old) == _name(path)), options[0])


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _at_or_below(path: str, tops: Iterable[str]) -> bool:
    """``tops`` are none deeper than :data:`_DEEPEST`."""
    known = tops if isinstance(tops, set | dict | frozenset) else set(tops)
    end = path.find("/")
    for _ in range(_DEEPEST):
        if end < 0:
            break
        if path[:end] in known:
            return True
        end = path.find("/", end + 1)
    return path in known
