"""Teaching the index what a restore just wrote, so that the next capture need not read it again."""

from __future__ import annotations

import json
import os
import stat
from array import array
from collections.abc import Collection
from dataclasses import dataclass, field

from planarian_filesystem.descent import Descent
from planarian_filesystem.exclusion import Exclusion
from planarian_filesystem.index import Index, Row
from planarian_filesystem.store import Damaged, Store
from planarian_filesystem.tree import Entry, decode_entry

_MASK = 0xFFFF_FFFF_FFFF_FFFF


@dataclass
class _Frame:
    inode: int
    row: Row
    below: list[tuple[str, str]]
    next: int = 0


@dataclass
class Adoption:
    """Walks a restored tree beside its tree objects. Only for what nobody else could write meanwhile.

    ``fixed``: inodes of files whose metadata the switch set. A file that was there before and isn't one of them is
    only clean if the index said so.
    """

    store: Store
    index: Index
    exclusion: Exclusion
    proof: bool
    fixed: Collection[int] = ()
    labels: dict[str, str] = field(default_factory=dict)

    def walk(self, descent: Descent, tree: str) -> None:
        """Write rows for the directory that ``descent`` is in and all below it that the index doesn't know as such."""
        frames = [frame] if (frame := self._frame(descent, tree)) else []
        while frames:
            frame = frames[-1]
            if frame.next == len(frame.below):
                self.index.changed[frame.inode] = frame.row
                frames.pop()
                if frames:
                    descent.up()
                continue
            name, digest = frame.below[frame.next]
            frame.next += 1
            descent.down(name)
            inside = self._frame(descent, digest)
            if inside is None:
                descent.up()
            else:
                frames.append(inside)

    def _frame(self, descent: Descent, tree: str) -> _Frame | None:
        """The row of a directory; None where there is nothing to learn, or it isn't what it should be."""
        inode = os.fstat(descent.fd).st_ino
        before = self.index.get(inode)
        if before is not None and before.tree == tree:
            return None
        try:
            entries = [decode_entry(line) for line in self.store.lines(tree)]
        except Damaged:
            return None
        kept = self.exclusion.filter(descent)
        names = sorted(name for name in os.listdir(descent.fd) if kept is None or kept(name))
        if names != [entry.name for entry in entries]:
            return None
        old = _stamps(before)
        stamps = array("Q")
        for entry in entries:
            found = os.stat(entry.name, dir_fd=descent.fd, follow_symlinks=False)
            ctime = found.st_ctime_ns & _MASK if self._clean(entry, found, old.get(entry.name)) else 0
            stamps.extend((found.st_ino, found.st_size, found.st_mtime_ns & _MASK, ctime))
            if entry.link:
                self.labels[f"{found.st_ino}-{found.st_ctime_ns}"] = entry.link
        below = [(entry.name, entry.content) for entry in entries if entry.is_dir and not entry.unread]
        gaps = [[entry.name, entry.gap, entry.unread] for entry in entries if entry.gap]
        digests = "".join(digest for _, digest in below).encode()
        row = Row(os.fsencode("\0".join(names)), stamps.tobytes(), digests, tree, json.dumps(gaps) if gaps else "")
        return _Frame(inode, row, below)

    def _clean(self, entry: Entry, found: os.stat_result, old: tuple[int, int] | None) -> bool:
        if entry.unread or found.st_mode != entry.mode or found.st_mtime_ns != entry.mtime_ns:
            return False
        if (found.st_uid, found.st_gid) != (entry.uid, entry.gid):
            return False
        if stat.S_ISREG(found.st_mode) and found.st_size != entry.size:
            return False
        if stat.S_ISREG(found.st_mode) and found.st_size and not self.proof:
            return False
        if old is None or old[0] != found.st_ino or stat.S_ISDIR(found.st_mode):
            return True
        return old[1] == found.st_ctime_ns & _MASK or (old[1] != 0 and found.st_ino in self.fixed)


def _stamps(row: Row | None) -> dict[str, tuple[int, int]]:
    """Inode and ctime by name, of what a directory held before."""
    if row is None or not row.names:
        return {}
    stamps = array("Q")
    stamps.frombytes(row.stamps)
    names = os.fsdecode(row.names).split("\0")
    return {name: (stamps[4 * number], stamps[4 * number + 3]) for number, name in enumerate(names)}
