"""Which paths differ between two subvolumes: asked of btrfs's own send where that is allowed, else by a walk."""

from __future__ import annotations

import os
import re
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import BinaryIO

from planarian_core.directory_tree import DirectoryTree
from planarian_core.errors import RestoreError
from planarian_core.file_tree import FileEntry, FileKind
from planarian_filesystem import btrfs_ioctl

MOST_PATHS = 1000
MOST_COMMANDS = 200_000
"""After so many commands of a stream the rest is not looked at: the count is then a least one."""

_MAGIC = b"btrfs-stream\0"
_COMMAND = struct.Struct("<IHI")
_ATTRIBUTE = struct.Struct("<HH")
_LONGEST = 4 * 1024 * 1024
_PATH, _PATH_TO = 15, 16
_SUBVOL, _SNAPSHOT, _RENAME, _UTIMES, _END = 1, 2, 9, 20, 21
_PASSING = re.compile(rb"o\d+-\d+-\d+")


class _Names:
    """The names that a stream touches, under those that they have in the end or, of what is removed, in the beginning.

    A stream makes new files, and puts away what goes, under passing names in the top directory (``o257-9-0``). A
    directory that is moved is told by its two names, not by all that is in it.
    """

    def __init__(self) -> None:
        self.changed: dict[bytes, None] = {}
        self.times: dict[bytes, None] = {}
        self._passing: dict[bytes, dict[bytes, None]] = {}
        self._before: dict[bytes, bytes] = {}

    def touch(self, path: bytes, *, only_times: bool = False) -> None:
        head, _, rest = path.partition(b"/")
        if _PASSING.fullmatch(head):
            self._passing.setdefault(head, {})[rest] = None
        elif only_times:
            self.times[path] = None
        else:
            self.changed[path] = None

    def rename(self, old: bytes, new: bytes) -> None:
        below = self._passing.pop(old, {})
        if _PASSING.fullmatch(new):
            self._before[new] = self._begun_as(old)
            self._passing.setdefault(new, {}).update(below)
        else:
            below[b""] = None
            for rest in below:
                self.touch(_join(new, rest))
        if not _PASSING.fullmatch(old):
            self.touch(old)

    def end(self) -> None:
        """What still has a passing name was removed under it."""
        for head, below in self._passing.items():
            if head in self._before:
                self.changed.update(dict.fromkeys(_join(self._before[head], rest) for rest in below))

    def _begun_as(self, path: bytes) -> bytes:
        head, _, rest = path.partition(b"/")
        return _join(self._before[head], rest) if head in self._before else path


def _join(path: bytes, rest: bytes) -> bytes:
    return path + b"/" + rest if rest else path


def changes(before: int, after: int) -> tuple[tuple[str, ...], int]:
    """Sorted paths, the first thousand, and how many there are, of what turning ``before`` into ``after`` changes.

    Both are top directories of read-only subvolumes. A directory counts when it is new, gone, or has other attributes,
    not when only names in it came and went.
    """
    try:
        names = _sent(before, after)
    except PermissionError:
        found = sorted(walked(before, after))
        return tuple(found[:MOST_PATHS]), len(found)
    names.end()
    times = [path for path in names.times if path not in names.changed]
    with DirectoryTree(after) as tree:
        for path in times:
            entry = tree.entry(os.fsdecode(path)) if path else None
            if entry is not None and entry.kind is not FileKind.DIRECTORY:
                names.changed[path] = None
    found = sorted(os.fsdecode(path) for path in names.changed if path)
    return tuple(found[:MOST_PATHS]), len(found)


def _sent(before: int, after: int) -> _Names:
    reading, writing = os.pipe2(os.O_CLOEXEC)
    failed: list[OSError] = []

    def send() -> None:
        try:
            btrfs_ioctl.send_changes(after, btrfs_ioctl.subvolume(before).id, writing)
        except OSError as error:
            failed.append(error)
        finally:
            os.close(writing)

    thread = threading.Thread(target=send, name="planarian-btrfs-send")
    thread.start()
    names = _Names()
    complete = False
    try:
        with open(reading, "rb") as stream:
            complete = _parse(stream, names)
    finally:
        thread.join()
    if failed and complete:
        raise failed[0]
    return names


def _parse(stream: BinaryIO, names: _Names) -> bool:
    """Read a stream to its end; False when it was longer than we care to read."""
    if stream.read(len(_MAGIC) + 4)[: len(_MAGIC)] != _MAGIC:
        return True
    for _ in range(MOST_COMMANDS):
        head = stream.read(_COMMAND.size)
        if len(head) < _COMMAND.size:
            return True
        length, command, _ = _COMMAND.unpack(head)
        if length > _LONGEST:
            raise ValueError("not a stream of btrfs send")
        body = stream.read(length)
        if command == _END:
            return True
        if command in (_SUBVOL, _SNAPSHOT):
            continue
        paths = dict(_attributes(body))
        if command == _RENAME:
            names.rename(paths.get(_PATH, b""), paths.get(_PATH_TO, b""))
        else:
            names.touch(paths.get(_PATH, b""), only_times=command == _UTIMES)
    return False


def _attributes(body: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _ATTRIBUTE.size <= len(body):
        kind, length = _ATTRIBUTE.unpack_from(body, at)
        at += _ATTRIBUTE.size
        yield kind, body[at : at + length]
        at += length


def walked(before: int, after: int) -> Iterator[str]:
    """The paths that differ, by looking at all; of files by size and time."""
    with DirectoryTree(before) as old, DirectoryTree(after) as new:
        todo = [""]
        while todo:
            path = todo.pop()
            here, there = _listed(old, path), _listed(new, path)
            for name in here.keys() | there.keys():
                below = f"{path}/{name}" if path else name
                one, other = here.get(name), there.get(name)
                if one is None or other is None or not _same(one, other):
                    yield below
                if FileKind.DIRECTORY in (one and one.kind, other and other.kind):
                    todo.append(below)


def _listed(tree: DirectoryTree, path: str) -> dict[str, FileEntry]:
    try:
        return {entry.name: entry for entry in tree.children(path)}
    except RestoreError:  # closed to this user: nothing can be told of what is in it
        return {}


def _same(one: FileEntry, other: FileEntry) -> bool:
    """Whether two entries look the same; of files by size and time, for this only tells people what goes."""
    if one.kind is FileKind.DIRECTORY:
        one, other = replace(one, mtime_ns=0), replace(other, mtime_ns=0)
    return replace(one, identity="", links="") == replace(other, identity="", links="")
