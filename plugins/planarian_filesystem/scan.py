"""Reading a layer into tree objects, at the cost of one stat per name that did not change."""

from __future__ import annotations

import errno
import json
import os
import stat
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from planarian_core.interfaces import Layer
from planarian_filesystem import host, metadata
from planarian_filesystem.descent import READ, WRITE, Descent, Unsettled, change_mode
from planarian_filesystem.exclusion import Exclusion
from planarian_filesystem.index import Index, Row
from planarian_filesystem.reading import Reader, described
from planarian_filesystem.sinks import Sink
from planarian_filesystem.store import Damaged
from planarian_filesystem.tree import (
    CHANGED,
    Entry,
    decode_entry,
    encode_entry,
    encode_root,
    encode_tree,
    has_gap,
    tree_lines,
)

_MASK = 0xFFFF_FFFF_FFFF_FFFF
_STAMP = 4
_CTIME = 3
MAX_GAPS = 1000


@dataclass
class Scanned:
    """What a scan found. ``root`` is the digest of the root object, ``top`` the layer's own entry."""

    root: str
    top: Entry
    seen: set[int] = field(default_factory=set)
    logical: int = 0
    hashed: int = 0
    gaps: list[tuple[str, str]] = field(default_factory=list)
    unread: set[str] = field(default_factory=set)
    """Paths of what was not captured at all; a restore spares it."""


@dataclass
class _Frame:
    """A directory that is being read."""

    inode: int
    before: tuple[int, int]
    names: list[str]
    stamps: array[int]
    subdirectories: list[str]
    below: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    next: int = 0


class Scanner:
    """Reads ``layer`` into ``sink``.

    ``floor`` is a stamp taken before the last sync of the layer's filesystem: an entry with an older ctime is clean
    from now on, a younger one is looked at again next time. With ``proof`` false stat proves nothing about the
    content of files. ``lenient``: what changes meanwhile is left for the next scan, instead of Unsettled.
    """

    def __init__(self, layer: Layer, index: Index, sink: Sink, floor: int, proof: bool, lenient: bool = False) -> None:
        self._layer = layer
        self._index = index
        self._sink = sink
        self._floor = floor
        self._proof = proof
        self._lenient = lenient
        self._exclusion = Exclusion(layer)
        self._mounts = host.mounts_below(layer.path)
        self._reader = Reader(index, sink, proof)
        self._device = 0
        self._widened: dict[int, int] = {}
        self.result = Scanned("", Entry("", 0))

    def run(self) -> Scanned:
        """Read everything once. Unsettled names what changed; what was read before it is kept in the index."""
        result = self.result = Scanned("", Entry("", 0))
        self._reader = Reader(self._index, self._sink, self._proof)
        self._widened = self._index.grants()
        with Descent(self._layer.path, READ, self._index) as descent:
            self._device = os.fstat(descent.fd).st_dev
            frames = [self._list(descent)]
            while True:
                frame = frames[-1]
                if frame.next < len(frame.subdirectories):
                    name = frame.subdirectories[frame.next]
                    frame.next += 1
                    inside = self._enter(descent, frame, name)
                    if inside is not None:
                        frames.append(inside)
                    continue
                digest = self._finish(descent, frame)
                frames.pop()
                if not frames:
                    break
                descent.up()
                parent = frames[-1]
                parent.below[parent.subdirectories[parent.next - 1]] = digest
            result.top = self._top(digest)
        result.hashed = self._reader.hashed
        result.root = self._sink.put(encode_root(result.top))
        return result

    def _top(self, tree: str) -> Entry:
        path = self._layer.path
        found = os.lstat(path)
        entry = replace(described("", found), content=tree, xattrs=metadata.read_xattrs(str(path)))
        gap = metadata.restorable(entry)
        if gap:
            self._note_gap(".", gap)
        return replace(entry, gap=gap)

    def _enter(self, descent: Descent, frame: _Frame, name: str) -> _Frame | None:
        """Step into a subdirectory; None when it can't be read, which ``frame.lost`` then explains."""
        if self._mounts and descent.path(name) in self._mounts:
            frame.lost[name] = "something else is mounted here"
            return None
        depth = descent.depth
        try:
            descent.down(name)
            return self._list(descent)
        except PermissionError as error:
            if descent.depth > depth:
                descent.up()
            frame.lost[name] = f"it can't be read: {error.strerror}"
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
            self._unsettled(descent.path(name), error)
            frame.lost[name] = CHANGED
        return None

    def _list(self, descent: Descent) -> _Frame:
        """Names and stamps of the directory that we are in."""
        fd = descent.fd
        own = os.fstat(fd)
        frame = _Frame(own.st_ino, (own.st_mtime_ns, own.st_ctime_ns), [], array("Q"), [])
        self.result.seen.add(own.st_ino)
        kept = self._exclusion.filter(descent)
        regular = 0
        for name in sorted(os.listdir(fd)):
            if kept is not None and not kept(name):
                continue
            try:
                found = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                self._unsettled(descent.path(name))
                continue
            if found.st_ino in self._widened:
                found = self._narrow(descent, name, found)
            kind = found.st_mode & 0o170000
            frame.names.append(name)
            frame.stamps.extend((found.st_ino, found.st_size, found.st_mtime_ns & _MASK, found.st_ctime_ns & _MASK))
            if found.st_dev != self._device:
                frame.lost[name] = "another filesystem is mounted here"
            elif kind == stat.S_IFDIR:
                frame.subdirectories.append(name)
            elif kind == stat.S_IFREG:
                regular += found.st_size
        self.result.logical += regular
        return frame

    def _narrow(self, descent: Descent, name: str, found: os.stat_result) -> os.stat_result:
        """Give back the mode that a scan before us, which was killed, had widened."""
        mode = self._widened.pop(found.st_ino)
        if not stat.S_ISLNK(found.st_mode) and stat.S_IMODE(found.st_mode) in (mode | READ, mode | WRITE, mode | 0o400):
            change_mode(descent.fd, name, mode)
        self._index.released(found.st_ino)
        return os.stat(name, dir_fd=descent.fd, follow_symlinks=False)

    def _finish(self, descent: Descent, frame: _Frame) -> str:
        """The tree of a directory whose subdirectories are done."""
        own = os.fstat(descent.fd)
        if (own.st_mtime_ns, own.st_ctime_ns) != frame.before:
            self._unsettled(descent.path())
        names = os.fsencode("\0".join(frame.names))
        below = "".join(frame.below[name] for name in frame.subdirectories if name in frame.below).encode()
        row = self._index.get(frame.inode)
        if (
            row
            and not frame.lost
            and row.names == names
            and row.below == below
            and row.stamps == frame.stamps.tobytes()
        ):
            self._repeat_gaps(descent, row)
            return row.tree
        lines, stamps = self._lines(descent, frame, row)
        gaps = [[entry.name, entry.gap, entry.unread] for entry in map(decode_entry, filter(has_gap, lines))]
        tree = self._sink.put_tree(encode_tree(lines))
        row = Row(names, stamps.tobytes(), below, tree, json.dumps(gaps) if gaps else "")
        self._index.changed[frame.inode] = row
        self._repeat_gaps(descent, row)
        return tree

    def _repeat_gaps(self, descent: Descent, row: Row) -> None:
        if row.gaps:
            for name, reason, unread in json.loads(row.gaps):
                path = descent.path(name)
                self._note_gap(path, reason)
                if unread and reason != CHANGED:
                    self.result.unread.add(path)

    def _note_gap(self, path: str, reason: str) -> None:
        if len(self.result.gaps) < MAX_GAPS:
            self.result.gaps.append((path, reason))
        elif len(self.result.gaps) == MAX_GAPS:
            self.result.gaps.append(("…", "there are more"))

    def _lines(self, descent: Descent, frame: _Frame, row: Row | None) -> tuple[list[bytes], array[int]]:
        """All lines of a directory, and its stamps with those zeroed that prove nothing next time."""
        known = self._known(row)
        current = next(known, None)
        lines: list[bytes] = []
        stamps = frame.stamps
        kept = array("Q", stamps)
        for number, name in enumerate(frame.names):
            stamp = stamps[number * _STAMP : (number + 1) * _STAMP]
            while current is not None and current[0] < name:
                current = next(known, None)
            if current is not None and current[0] == name and current[1] == stamp and name not in frame.lost:
                lines.append(_with_tree(current[2], frame.below.get(name)))
                continue
            entry, clean = self._entry(descent, frame, name, stamp)
            lines.append(encode_entry(entry))
            if not clean:
                kept[number * _STAMP + _CTIME] = 0
        return lines, kept

    def _known(self, row: Row | None) -> Iterator[tuple[str, array[int], bytes]]:
        """(name, stamp, line) of what the index knows of a directory; nothing where the store can't confirm it."""
        if row is None or not row.names:
            return
        try:
            lines = tree_lines(self._sink.read_tree(row.tree))
        except (Damaged, ValueError):
            return
        stamps = array("Q")
        stamps.frombytes(row.stamps)
        names = os.fsdecode(row.names).split("\0")
        if not len(names) == len(lines) == len(stamps) // _STAMP:
            return
        for number, name in enumerate(names):
            yield name, stamps[number * _STAMP : (number + 1) * _STAMP], lines[number]

    def _entry(self, descent: Descent, frame: _Frame, name: str, stamp: array[int]) -> tuple[Entry, bool]:
        """Read one entry; the flag says whether its stamp proves it from now on."""
        if name in frame.lost:
            found = os.stat(name, dir_fd=descent.fd, follow_symlinks=False)
            return Entry(name, found.st_mode, unread=True, gap=frame.lost[name]), False
        try:
            found = os.stat(name, dir_fd=descent.fd, follow_symlinks=False)
            same = (found.st_ino, found.st_ctime_ns & _MASK) == (stamp[0], stamp[_CTIME])
            if not same and not _opened_up(found):
                raise Unsettled(descent.path(name), CHANGED)
            entry, clean = self._reader.read(descent, name, found, frame.below.get(name, ""))
        except (FileNotFoundError, Unsettled) as error:
            self._unsettled(descent.path(name), error)
            return Entry(name, stat.S_IFREG, unread=True, gap=CHANGED), False
        return entry, clean and same and found.st_ctime_ns < self._floor

    def _unsettled(self, path: str, cause: Exception | None = None) -> None:
        if not self._lenient:
            raise Unsettled(path, CHANGED) from cause


def _opened_up(found: os.stat_result) -> bool:
    """Whether a directory had to be granted permissions to be read, which moved its ctime."""
    return stat.S_ISDIR(found.st_mode) and found.st_mode & READ != READ and os.geteuid() != 0


def _with_tree(line: bytes, tree: str | None) -> bytes:
    """The line of a directory whose own stamp is as it was, with the tree that it has now."""
    if tree is None or b'"content":"%s"' % tree.encode("ascii") in line:
        return line
    return encode_entry(replace(decode_entry(line), content=tree))
