"""The content of files in trees, holes and all: in blocks that are the same however a file happens to be stored.

A file of a terabyte that holds a few bytes costs those few: what is known to be a hole is never read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import zip_longest

from planarian_core.file_tree import FileTree, ReadsHoles

BLOCK = 4096
_ZEROS = bytes(BLOCK)


def stretches(tree: FileTree, path: str) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of a file in order; without its holes where the tree knows them."""
    if isinstance(tree, ReadsHoles):
        yield from tree.stretches(path)
        return
    offset = 0
    for piece in tree.read(path):
        yield offset, piece
        offset += len(piece)


def blocks(tree: FileTree, path: str) -> Iterator[tuple[int, bytes]]:
    """(offset, :data:`BLOCK` bytes) of a file in order, without blocks of zeros; the last is filled up with them."""
    at, block = -1, bytearray(BLOCK)
    for start, piece in stretches(tree, path):
        view, offset = memoryview(piece), start
        while view:
            base = offset - offset % BLOCK
            if base != at:
                if at >= 0 and block != _ZEROS:
                    yield at, bytes(block)
                at, block = base, bytearray(BLOCK)
            length = min(len(view), base + BLOCK - offset)
            block[offset - base : offset - base + length] = view[:length]
            view, offset = view[length:], offset + length
    if at >= 0 and block != _ZEROS:
        yield at, bytes(block)


def same_blocks(one: FileTree, other: FileTree, path: str) -> bool:
    """Whether two files of one size and path hold the same."""
    return all(mine == theirs for mine, theirs in zip_longest(blocks(one, path), blocks(other, path)))


def content_digest(tree: FileTree, path: str, size: int) -> str:
    """Tells contents apart; no digest of the plain bytes, for holes are left out."""
    digest = hashlib.sha256(b"%d" % size)
    for offset, block in blocks(tree, path):
        digest.update(b"\n%d\n" % offset)
        digest.update(block)
    return digest.hexdigest()
