"""A :class:`planarian_core.file_tree.FileTree` straight from the store: nothing is written anywhere to look at it."""

from __future__ import annotations

import contextlib
import hashlib
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from planarian_core.directory_tree import KINDS
from planarian_core.errors import RestoreError
from planarian_core.file_tree import FileEntry, FileKind
from planarian_filesystem.errors import restore_errors
from planarian_filesystem.store import Damaged, Store
from planarian_filesystem.tree import CHUNK, Entry, Stretch, decode_entry, decode_map, encode_entry

_KEPT = 256
_STATE = "nothing was changed"


class StoredTree:
    """What one root of the store holds; every method checks what it reads against its digest.

    An entry's identity is the digest of all that is stored of it but its name, and so, by the digest of its content, of
    all that is below it. One that could not be read when it was captured has none.
    """

    def __init__(self, store: Store, reference: str) -> None:
        """RestoreError when ``reference`` is no root that is whole."""
        self._store = store
        self._list = lru_cache(_KEPT)(self._read_directory)
        with restore_errors(store, _STATE):
            self._top = replace(store.top(reference), name="")

    def entry(self, path: str) -> FileEntry | None:
        found = self._find(path)
        return None if found is None else _shown(found)

    def children(self, path: str) -> Sequence[FileEntry]:
        found = self._find(path)
        if found is None or not found.is_dir or found.unread:
            return ()
        return [_shown(entry) for entry in self._list(found.content).values()]

    def read(self, path: str) -> Iterator[bytes]:
        found = self._file(path)
        position = 0
        for offset, data in self.stretches(path):
            yield from _hole(position, offset)
            yield data
            position = offset + len(data)
        yield from _hole(position, found.size)

    def stretches(self, path: str) -> Iterator[tuple[int, bytes]]:
        """The content without its holes; see :class:`planarian_core.file_tree.ReadsHoles`."""
        found = self._file(path)
        with restore_errors(self._store, _STATE):
            for stretch in self._stretches(found):
                yield stretch.offset, self._blob(stretch)

    def _file(self, path: str) -> Entry:
        found = self._find(path)
        if found is None or not found.is_file or found.unread:
            why = "could not be read when it was captured" if found and found.unread else "is no regular file"
            raise RestoreError(f"{path or '.'} {why}.", code="tree-no-file", remedy="name a file")
        return found

    def _find(self, path: str) -> Entry | None:
        entry: Entry | None = self._top
        for name in path.split("/") if path else []:
            if entry is None or not entry.is_dir or entry.unread:
                return None
            entry = self._list(entry.content).get(name)
        return entry

    def _read_directory(self, digest: str) -> dict[str, Entry]:
        with restore_errors(self._store, _STATE):
            entries = [decode_entry(line) for line in self._store.lines(digest)] if digest else []
        return {entry.name: entry for entry in sorted(entries, key=lambda entry: entry.name)}

    def _stretches(self, entry: Entry) -> Iterator[Stretch]:
        if entry.mapped:
            yield from decode_map(self._store.read(entry.content))
        elif entry.content:
            yield Stretch(0, entry.size, entry.content)

    def _blob(self, stretch: Stretch) -> bytes:
        data = self._store.read(stretch.digest)
        if len(data) != stretch.length:
            raise Damaged(stretch.digest, "is damaged: its size is wrong")
        return data


@contextlib.contextmanager
def open_stored(store: Store, reference: str) -> Iterator[StoredTree]:
    """The tree of a root; there is nothing to give back."""
    yield StoredTree(store, reference)


def _hole(start: int, end: int) -> Iterator[bytes]:
    zeros = bytes(CHUNK) if end - start >= CHUNK else b""
    while start < end:
        length = min(CHUNK, end - start)
        yield zeros if length == CHUNK else bytes(length)
        start += length


def _shown(entry: Entry) -> FileEntry:
    kind = KINDS[stat.S_IFMT(entry.mode)]
    regular = kind is FileKind.FILE
    return FileEntry(
        name=entry.name,
        kind=kind,
        mode=stat.S_IMODE(entry.mode),
        uid=entry.uid,
        gid=entry.gid,
        size=entry.size if regular else 0,
        mtime_ns=entry.mtime_ns,
        target=entry.target,
        device=entry.rdev if kind in (FileKind.CHARACTER, FileKind.BLOCK) else 0,
        xattrs=entry.xattrs,
        identity="" if entry.unread else hashlib.sha256(encode_entry(replace(entry, name=""))).hexdigest(),
        links=entry.link if regular else "",
    )
