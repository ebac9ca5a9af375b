"""What a tree of files looks like to those who compare, pick from or pack it, whatever stores it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable


class FileKind(StrEnum):
    """What a name in a tree is."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    FIFO = "fifo"
    SOCKET = "socket"
    CHARACTER = "character"
    BLOCK = "block"


@dataclass(frozen=True)
class FileEntry:
    """One name in a tree of files. ``mode`` are the permission bits (07777), ``size`` bytes, ``target`` a symlink's.

    ``identity``: two entries of trees of one backend whose identities are equal, and not empty, are equal in all but
    perhaps their names: in content, and below them too. ``links``: names with one non-empty value are hard links of
    each other.
    """

    name: str
    kind: FileKind
    mode: int
    uid: int
    gid: int
    size: int = 0
    mtime_ns: int = 0
    target: str = ""
    device: int = 0
    xattrs: Mapping[str, bytes] = field(default_factory=dict)
    identity: str = ""
    links: str = ""


class FileTree(Protocol):
    """Files to look at: of an artefact, a layer, a directory of the host. Never follows a symlink.

    Paths are relative to the tree's root, ``/`` between names, ``""`` for the root; undecodable bytes are surrogates
    (:func:`os.fsdecode`).
    """

    def entry(self, path: str) -> FileEntry | None:
        """What is at a path; None when nothing is, or when something above it is no directory."""

    def children(self, path: str) -> Sequence[FileEntry]:
        """What is in a directory, sorted by name; empty for anything else."""

    def read(self, path: str) -> Iterator[bytes]:
        """The content of a file in pieces of at most a MiB.

        Raises:
            RestoreError: it is damaged, or no file.
        """


@runtime_checkable
class ReadsHoles(Protocol):
    """A tree that knows which parts of a file are holes: ranges that take no room and read as zeros."""

    def stretches(self, path: str) -> Iterator[tuple[int, bytes]]:
        """The content of a file without its holes: (offset, bytes) in order, each at most a MiB.

        Raises:
            RestoreError: it is damaged, or no file.
        """
