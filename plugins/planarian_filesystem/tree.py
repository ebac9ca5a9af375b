"""The objects of the store: what an entry of a directory is, and how directories, long files and roots are written.

A *tree* is one directory: a line of JSON per entry, sorted by name. A *map* is a long or sparse file: one line
``offset length digest`` per stretch of data; what lies between is a hole. A *root* is a layer: its own entry, whose
content is the top tree. Each is named by the SHA-256 of its bytes, so equal directories are one object.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

FORMAT = 1
CHUNK = 1024 * 1024
"""Longest stretch of a file in one blob, in bytes."""

CHANGED = "changed while it was read"

_ROOT = b"planarian-root"
_TREE = b"planarian-tree 1\n"


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a directory, with all that a restore needs.

    ``content`` is a digest: of the blob or (``mapped``) the map of a file, of the tree of a directory; empty for an
    empty file. ``link`` is the same for all names of one inode. ``gap`` says what of it could not be captured or
    can't be put back; with ``unread`` that is everything but its name.
    """

    name: str
    mode: int
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    size: int = 0
    content: str = ""
    mapped: bool = False
    target: str = ""
    rdev: int = 0
    link: str = ""
    xattrs: Mapping[str, bytes] = field(default_factory=dict)
    unread: bool = False
    gap: str = ""

    @property
    def vague(self) -> bool:
        """Whether it was only missed because it changed while it was read."""
        return self.gap == CHANGED

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    def unlinked(self) -> Entry:
        """The same without its link group, to compare what two names hold."""
        return dataclasses.replace(self, link="") if self.link else self


_DEFAULTS = {f.name: f.default for f in dataclasses.fields(Entry) if f.default is not dataclasses.MISSING}
_PLAIN = [f.name for f in dataclasses.fields(Entry) if f.name not in ("xattrs", "gap")]
_GAP_MARK = b',"gap":"'  # quotes inside JSON strings are escaped, so this can only be the key


def encode_entry(entry: Entry) -> bytes:
    """One line, without its newline. Equal entries give equal lines."""
    data: dict[str, Any] = {}
    for key in _PLAIN:
        value = getattr(entry, key)
        if value != _DEFAULTS.get(key):
            data[key] = value
    if entry.xattrs:
        data["xattrs"] = {name: base64.b64encode(entry.xattrs[name]).decode() for name in sorted(entry.xattrs)}
    if entry.gap:
        data["gap"] = entry.gap
    return json.dumps(data, separators=(",", ":")).encode("ascii")


def decode_entry(line: bytes) -> Entry:
    data = json.loads(line)
    if "xattrs" in data:
        data["xattrs"] = {name: base64.b64decode(value) for name, value in data["xattrs"].items()}
    return Entry(**data)


def has_gap(line: bytes) -> bool:
    return _GAP_MARK in line


def is_linked(line: bytes) -> bool:
    return b',"link":"' in line


def may_be_directory(line: bytes) -> bool:
    """True for every directory and for little else; spares decoding the files."""
    return b',"size":' not in line and b',"content":"' in line


def encode_tree(lines: Iterable[bytes]) -> bytes:
    return _TREE + b"".join(line + b"\n" for line in lines)


def tree_lines(data: bytes) -> list[bytes]:
    """The lines of a tree. ValueError when it isn't one."""
    if not data.startswith(_TREE):
        raise ValueError("not a tree object")
    return data[len(_TREE) :].splitlines()


def encode_root(entry: Entry) -> bytes:
    return _ROOT + b" %d\n" % FORMAT + encode_entry(entry) + b"\n"


def decode_root(data: bytes) -> Entry:
    """The entry of a layer's root. ValueError when it isn't one, or one of a newer format."""
    head, _, line = data.partition(b"\n")
    if head != _ROOT + b" %d" % FORMAT:
        raise ValueError("not a root object of this format")
    return decode_entry(line)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Data of a mapped file: ``length`` bytes at ``offset``, all in one blob."""

    offset: int
    length: int
    digest: str


def encode_map(stretches: Iterable[Stretch]) -> bytes:
    return b"".join(f"{s.offset} {s.length} {s.digest}\n".encode("ascii") for s in stretches)


def decode_map(data: bytes) -> Iterator[Stretch]:
    for line in data.splitlines():
        offset, length, digest = line.split(b" ")
        yield Stretch(int(offset), int(length), digest.decode("ascii"))
