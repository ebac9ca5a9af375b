"""Reads a part of a bundle that holds files: frames in, names in order and pieces of content out.

Whatever the frames say, nothing comes out that isn't a plain name in the directory that was entered last, later than
the one before it, of a kind that the part may hold, and within the size that the bundle's first record announced.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from planarian_core.bundle_format import Frame, Kind, damaged
from planarian_core.bundle_packing import DEEPEST, Progress
from planarian_core.bundle_records import PartSize
from planarian_core.file_tree import FileEntry, FileKind

_LONGEST_NAME, _LONGEST_TARGET, _LARGEST_ATTRIBUTE = 255, 4095, 65536
_LARGEST = 2**62
_HIGHEST_ID = 2**32 - 2

Examine = Callable[[str, FileEntry], None]
"""Looks at a name, given its path in the tree, and raises what is wrong with it."""


class TreeSink(Protocol):
    """Where the files of a part go."""

    def enter(self, entry: FileEntry) -> None:
        """A directory; what follows is in it, until :meth:`leave`. The first one is the tree's own."""

    def leave(self, entry: FileEntry) -> None: ...

    def begin(self, entry: FileEntry) -> None:
        """A regular file; its content follows by :meth:`piece`."""

    def piece(self, offset: int, data: bytes) -> None: ...

    def end(self, entry: FileEntry) -> None: ...

    def link(self, entry: FileEntry, first: tuple[str, ...]) -> None:
        """One more name of a file that came before, at the names ``first`` from the tree's top."""

    def node(self, entry: FileEntry) -> None:
        """A symlink, fifo, socket or device."""


class Nowhere:
    """A sink for those who only check."""

    def enter(self, entry: FileEntry) -> None:
        return

    leave = begin = end = node = enter

    def piece(self, offset: int, data: bytes) -> None:
        return

    def link(self, entry: FileEntry, first: tuple[str, ...]) -> None:
        return


class TreeReader:
    """Takes the frames of one part; :attr:`done` when the tree is complete."""

    def __init__(self, size: PartSize, sink: TreeSink, examine: Examine, progress: Progress) -> None:
        self._left = size
        self._sink = sink
        self._examine = examine
        self._progress = progress
        self._open: list[FileEntry] = []
        self._last: list[str] = []
        self._file: FileEntry | None = None
        self._end = 0
        self._groups: dict[int, tuple[tuple[str, ...], FileEntry]] = {}
        self.done = False

    def feed(self, frame: Frame) -> None:
        """Take the next frame; BundleError when it can't be the next."""
        if self.done:
            raise damaged("something follows the end of a tree")
        if frame.kind is Kind.DATA:
            self._piece(*frame.piece())
        elif frame.kind is Kind.ENTRY:
            self._finish_file()
            self._entry(frame.record())
        elif frame.kind is Kind.UP and self._open:
            self._finish_file()
            self._sink.leave(self._open.pop())
            self._last.pop()
            self.done = not self._open
        else:
            raise damaged("a frame where none of its kind can be")

    def _entry(self, data: Any) -> None:
        entry, group = decode_entry(data, top=not self._open)
        self._left = PartSize(self._left.entries - 1, self._left.bytes)
        if self._left.entries < 0:
            raise damaged("it holds more files than it says")
        names = self._names(entry)
        self._examine("/".join(names), entry)
        if not self._open and entry.kind is not FileKind.DIRECTORY:
            raise damaged("a tree that is no directory")
        if entry.kind is FileKind.DIRECTORY:
            if len(self._open) > DEEPEST:
                raise damaged("directories lie too deep in each other")
            self._open.append(entry)
            self._last.append("")
            self._sink.enter(entry)
        elif group is not None and group in self._groups:
            first, known = self._groups[group]
            if known.kind is not entry.kind:
                raise damaged("names of one file that are of two kinds")
            self._sink.link(entry, first)
        else:
            if group is not None:
                self._groups[group] = (names, entry)
            self._new(entry)

    def _new(self, entry: FileEntry) -> None:
        if entry.kind is FileKind.FILE:
            self._file, self._end = entry, 0
            self._sink.begin(entry)
        else:
            self._sink.node(entry)

    def _names(self, entry: FileEntry) -> tuple[str, ...]:
        """The names from the top to this one, which comes later than the one before it: so none comes twice."""
        if not self._open:
            return ()
        if entry.name <= self._last[-1]:
            raise damaged("names come twice, or not in order")
        self._last[-1] = entry.name
        return (*(above.name for above in self._open[1:]), entry.name)

    def _piece(self, offset: int, data: bytes) -> None:
        if self._file is None or offset < self._end or offset + len(data) > self._file.size:
            raise damaged("a piece of a file where there can't be one")
        self._left = PartSize(self._left.entries, self._left.bytes - len(data))
        if self._left.bytes < 0:
            raise damaged("it holds more bytes than it says")
        self._end = offset + len(data)
        self._sink.piece(offset, data)
        self._progress(len(data))

    def _finish_file(self) -> None:
        if self._file is not None:
            self._sink.end(self._file)
            self._file = None


def decode_entry(data: Any, *, top: bool) -> tuple[FileEntry, int | None]:
    """A name from plain data, and the number of its group; BundleError unless all of it can be."""
    if not isinstance(data, Mapping):
        raise damaged("a file's record of the wrong form")
    try:
        kind = FileKind(data["k"])
    except (KeyError, ValueError) as error:
        raise damaged("a file of an unknown kind") from error
    entry = FileEntry(
        name=_name(data, top),
        kind=kind,
        mode=_number(data, "m", 0o7777),
        uid=_number(data, "u", _HIGHEST_ID),
        gid=_number(data, "g", _HIGHEST_ID),
        size=_number(data, "s", _LARGEST) if kind is FileKind.FILE else 0,
        mtime_ns=_number(data, "t", _LARGEST, least=-_LARGEST),
        target=_target(data) if kind is FileKind.SYMLINK else "",
        device=_number(data, "d", _LARGEST) if "d" in data else 0,
        xattrs=_xattrs(data.get("x", {})),
    )
    if entry.device and kind not in (FileKind.CHARACTER, FileKind.BLOCK):
        raise damaged("a device number of what is no device")
    return entry, _number(data, "h", _LARGEST) if "h" in data else None


def _number(data: Mapping[str, Any], key: str, most: int, least: int = 0) -> int:
    value = data.get(key)
    if type(value) is not int or not least <= value <= most:
        raise damaged("a file's record with a number that can't be")
    return value


def _text(value: Any, longest: int) -> str:
    """Text that the operating system takes, of at most so many bytes."""
    if not isinstance(value, str) or "\0" in value:
        raise damaged("a file's record with a text that can't be")
    try:
        encoded = os.fsencode(value)
    except UnicodeEncodeError as error:
        raise damaged("a name that no file can have") from error
    if not 0 < len(encoded) <= longest or os.fsdecode(encoded) != value:
        raise damaged("a name that no file can have")
    return value


def _name(data: Mapping[str, Any], top: bool) -> str:
    if top:
        if data.get("n") != "":
            raise damaged("the top of a tree has a name")
        return ""
    name = _text(data.get("n"), _LONGEST_NAME)
    if name in (".", "..") or "/" in name:
        raise damaged(f"{name[:80]!a} is no name of a file")
    return name


def _target(data: Mapping[str, Any]) -> str:
    return _text(data.get("l"), _LONGEST_TARGET)


def _xattrs(data: Any) -> dict[str, bytes]:
    if not isinstance(data, Mapping):
        raise damaged("attributes of the wrong form")
    found = {}
    for name, value in data.items():
        _text(name, _LONGEST_NAME)
        if not isinstance(value, str) or len(value) > 2 * _LARGEST_ATTRIBUTE:
            raise damaged("an attribute of the wrong form")
        try:
            found[name] = base64.b64decode(value, validate=True)
        except ValueError as error:
            raise damaged("an attribute of the wrong form") from error
    return found
