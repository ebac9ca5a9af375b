"""What git on the host would make of files that came out of a sandbox: which directories are repositories to it, and
where the names in an index lead.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

from planarian_core.file_tree import FileKind, FileTree

_IGNORED = dict.fromkeys([*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF])
"""Characters that a file system of macOS doesn't see in a name."""
_LARGEST_INDEX = 64 * 1024 * 1024
_HEADER = struct.Struct(">4sII")
_FIXED, _HASH = 62, 20
_EXTENDED, _LONG = 0x4000, 0xFFF
_EXTENSIONS = frozenset({b"TREE", b"REUC", b"UNTR", b"FSMN", b"EOIE"})
"""Those that lead to no other file and to no other reading of the entries."""


def as_seen(name: str) -> str:
    """A name as the most forgiving file system takes it."""
    folded = name.translate(_IGNORED).casefold().rstrip(". ")
    return ".git" if folded == "git~1" else folded


def is_repository(directory: str, *trees: FileTree | None) -> bool:
    """Whether git takes a directory of trees that are laid over each other for a repository, whatever its name.

    Its parts may be symlinks, and ``commondir`` says that the rest of them lie elsewhere.
    """

    def has(name: str) -> bool:
        path = f"{directory}/{name}" if directory else name
        found = (tree.entry(path) for tree in trees if tree is not None)
        return any(entry is not None and (name != "HEAD" or entry.kind is not FileKind.DIRECTORY) for entry in found)

    return has("HEAD") and (has("commondir") or (has("objects") and has("refs")))


def leads_out(tree: FileTree, path: str) -> bool:
    """Whether a checkout of this index could write into ``.git``, or beside the work tree.

    git believes the names in an index. One that isn't understood here counts as if it did: of format 4, of a
    repository with longer hashes, sparse or split.
    """
    entry = tree.entry(path)
    if entry is None:
        return False
    if entry.kind is not FileKind.FILE or entry.size > _LARGEST_INDEX:
        return True
    try:
        return any(_is_astray(name) for name in _names(b"".join(tree.read(path))))
    except (ValueError, struct.error):
        return True


def _is_astray(name: bytes) -> bool:
    return any(part in (b"", b".", b"..") or as_seen(os.fsdecode(part)) == ".git" for part in name.split(b"/"))


def _names(index: bytes) -> Iterator[bytes]:
    """The names in an index of format 2 or 3; ValueError or struct.error when it isn't such a one to its end."""
    magic, version, count = _HEADER.unpack_from(index)
    if magic != b"DIRC" or version not in (2, 3):
        raise ValueError
    at = _HEADER.size
    for _ in range(count):
        (flags,) = struct.unpack_from(">H", index, at + _FIXED - 2)
        start = at + _FIXED + (2 if version == 3 and flags & _EXTENDED else 0)
        end = index.index(b"\0", start)
        if flags & _LONG != min(end - start, _LONG) or (version == 2 and flags & _EXTENDED):
            raise ValueError
        yield index[start:end]
        at += (end - at + 8) & ~7
    while at < len(index) - _HASH:
        kind, size = struct.unpack_from(">4sI", index, at)
        if kind not in _EXTENSIONS:
            raise ValueError
        at += 8 + size
    if at != len(index) - _HASH:
        raise ValueError
