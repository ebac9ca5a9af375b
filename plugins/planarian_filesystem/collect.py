"""Checking that an artefact is whole, and sweeping what no artefact needs: both walk the trees in the store."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator

from planarian_filesystem.index import remove_index, root_of_index
from planarian_filesystem.plan import walk
from planarian_filesystem.store import Damaged, Store, is_digest
from planarian_filesystem.tree import Entry, decode_entry, decode_map


def missing(store: Store, reference: str) -> tuple[str, Damaged] | None:
    """The first blob that an artefact lacks, as (path, what), None when all are there and have the right size.

    Trees and maps are read and checked; blobs are only looked at (a restore checks what it uses).
    """
    path = "."
    try:
        top = store.top(reference)
        for names, entry in walk(top.content, store.lines):
            if entry.is_dir or not entry.content:
                continue
            path = "/".join([*names, entry.name])
            for digest, size in _blobs(store, entry):
                if store.size(digest) != size:
                    gone = store.size(digest) is None
                    what = "is missing from the store" if gone else "is damaged: its size is wrong"
                    return path, Damaged(digest, what)
    except Damaged as error:
        return path, error
    return None


def _blobs(store: Store, entry: Entry) -> Iterator[tuple[str, int]]:
    """Digest and size of the blobs of a file, its map apart."""
    if not entry.mapped:
        yield entry.content, entry.size
        return
    for stretch in decode_map(store.read(entry.content)):
        yield stretch.digest, stretch.length


def collect(store: Store) -> int:
    """Remove all that no root and no layer's index leads to; returns the bytes freed.

    Damaged, with nothing removed, when a root can't be followed: what it needs can't be told then. A root that was
    never finished (its capture died) is dropped.
    """
    if not store.objects.is_dir():
        return 0
    with store.locked(alone=True):
        needed: set[bytes] = set()
        trees: set[str] = set()
        for digest in _starts(store):
            _mark(store, digest, needed, trees)
        freed = _sweep_pending(store)
        for part in os.scandir(store.objects):
            for blob in os.scandir(part.path):
                if bytes.fromhex(part.name + blob.name) not in needed:
                    freed += blob.stat().st_size
                    os.unlink(blob.path)
        return freed


def _starts(store: Store) -> Iterator[str]:
    for root in sorted(store.roots.iterdir()):
        try:
            digest = root.read_text()
        except FileNotFoundError:  # discarded at this moment
            continue
        if not is_digest(digest):
            root.unlink(missing_ok=True)  # torn by a crash: its capture never returned
        elif store.size(digest) is None:
            raise Damaged(digest, f"is missing from the store, the root of {root.name}")
        else:
            yield digest
    for index in sorted(store.indexes.glob("*.sqlite")):
        try:
            digest = root_of_index(index)
        except sqlite3.DatabaseError:
            remove_index(index)
            continue
        if digest and store.size(digest) is not None:
            yield digest
        elif digest:
            remove_index(index)


def _mark(store: Store, reference: str, needed: set[bytes], trees: set[str]) -> None:
    needed.add(bytes.fromhex(reference))
    todo = [store.top(reference).content]
    while todo:
        tree = todo.pop()
        if tree in trees:
            continue
        trees.add(tree)
        needed.add(bytes.fromhex(tree))
        for entry in map(decode_entry, store.lines(tree)):
            if entry.is_dir and entry.content:
                todo.append(entry.content)
            elif entry.content:
                needed.add(bytes.fromhex(entry.content))
                if entry.mapped:
                    needed.update(bytes.fromhex(digest) for digest, _ in _blobs(store, entry))


def _sweep_pending(store: Store) -> int:
    """Remove what dead captures left; nobody else is at work while we hold the lock alone."""
    freed = 0
    for left in os.scandir(store.pending):
        if left.is_dir(follow_symlinks=False):
            freed += sum(blob.stat().st_size for blob in os.scandir(left.path))
            shutil.rmtree(left.path)
        else:
            os.unlink(left.path)
    return freed
