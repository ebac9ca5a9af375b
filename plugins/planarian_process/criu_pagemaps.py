"""Reads and writes which pages of a process's memory an image has, and finds a page in an image and its parents."""

from __future__ import annotations

import bisect
import contextlib
import mmap
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from planarian_process.criu_images import PARENT

PAGE = 4096
_PAGEMAP = re.compile(r"pagemap-(\d+)\.img")  # of what processes alone have; the shared kind is pagemap-shmem-…
_HEAD = struct.pack("<II", 0x54564319, 0x56084025)
_LENGTH = struct.Struct("<I")
_IN_PARENT, _PRESENT = 1, 4


@dataclass(frozen=True)
class Run:
    """``count`` pages from an address on; ``kept``: in the image's own file, from ``offset`` bytes on."""

    address: int
    count: int
    kept: bool
    offset: int = 0

    @property
    def end(self) -> int:
        return self.address + self.count * PAGE


@cache
def _classes() -> tuple[Any, Any]:
    """CRIU's ``pagemap_head`` and ``pagemap_entry``, made in a pool of their own."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # a dependency on Linux alone

    file = descriptor_pb2.FileDescriptorProto(name="planarian/criu_pagemaps.proto", package="planarian.criu")
    head = file.message_type.add(name="Head")
    head.field.add(name="pages", number=1, type=13, label=1)  # optional uint32
    entry = file.message_type.add(name="Entry")
    for name, number, kind in (("address", 1, 4), ("few", 2, 13), ("parent", 3, 8), ("flags", 4, 13), ("many", 5, 4)):
        entry.field.add(name=name, number=number, type=kind, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = (pool.FindMessageTypeByName(f"planarian.criu.{name}") for name in ("Head", "Entry"))
    first, second = map(message_factory.GetMessageClass, found)
    return first, second


@dataclass(frozen=True)
class Pagemap:
    """One process's. ``pages`` is the name of the file that has its pages."""

    name: str
    head: bytes
    pages: str
    runs: tuple[Run, ...]

    @classmethod
    def read(cls, path: Path) -> Pagemap:
        """Raises ValueError when it is none that we know."""
        head, *records = _records(path)
        make_entry = _classes()[1]
        runs, offset = [], 0
        for record in records:
            entry = make_entry.FromString(record)
            flags = entry.flags if entry.HasField("flags") else _IN_PARENT if entry.parent else _PRESENT
            run = Run(entry.address, entry.many or entry.few, bool(flags & _PRESENT), offset)
            offset += run.count * PAGE if run.kept else 0
            runs.append(run)
        return cls(path.name, head, _pages_name(head), tuple(runs))

    def with_runs(self, runs: Iterable[Run]) -> bytes:
        """The file's content when the pages are these; as CRIU 4.2 writes it."""
        parts = [_HEAD, _LENGTH.pack(len(self.head)), self.head]
        for run in runs:
            flags = _PRESENT if run.kept else _IN_PARENT
            record = _classes()[1](address=run.address, few=0, flags=flags, many=run.count).SerializeToString()
            parts += [_LENGTH.pack(len(record)), record]
        return b"".join(parts)


def pid_of(name: str) -> str:
    """The pid inside whose map a file is; empty where it is none."""
    match = _PAGEMAP.fullmatch(name)
    return match[1] if match else ""


def pages_of(path: Path) -> str:
    """The name of the file that has the pages of a map. ValueError when it is none that we know."""
    with path.open("rb") as file:
        content = file.read(64)
    (length,) = _LENGTH.unpack_from(content.ljust(len(_HEAD) + _LENGTH.size, b"\0"), len(_HEAD))
    start = len(_HEAD) + _LENGTH.size
    if not content.startswith(_HEAD) or not 0 < length <= len(content) - start:
        raise ValueError(f"{path} has an unknown form")
    return _pages_name(content[start : start + length])


def _pages_name(head: bytes) -> str:
    return f"pages-{_classes()[0].FromString(head).pages}.img"


def pagemaps(names: Iterable[str]) -> list[str]:
    """Those of names of files that are a process's."""
    return sorted(name for name in names if _PAGEMAP.fullmatch(name))


def _records(path: Path) -> list[bytes]:
    content = path.read_bytes()
    position, found = len(_HEAD), []
    while content[: len(_HEAD)] == _HEAD and position + _LENGTH.size <= len(content):
        (length,) = _LENGTH.unpack_from(content, position)
        position += _LENGTH.size + length
        found.append(content[position - length : position])
    if not found or position != len(content):
        raise ValueError(f"{path} has an unknown form")
    return found


class Chain:
    """The pages of one process in an image and all that it is built on. A context manager."""

    def __init__(self, images: Path, name: str) -> None:
        """``name`` is that of the process's map. Raises OSError, ValueError: something of it can't be read."""
        self._open = contextlib.ExitStack()
        self._levels: list[tuple[tuple[Run, ...], list[int], mmap.mmap | None]] = []
        with self._open as undone:
            while (images / name).is_file():
                found = Pagemap.read(images / name)
                content = undone.enter_context(mapped(images / found.pages))
                runs = tuple(sorted(found.runs, key=lambda run: run.address))
                self._levels.append((runs, [run.address for run in runs], content))
                images = images / PARENT
            self._open = undone.pop_all()

    def __enter__(self) -> Chain:
        return self

    def __exit__(self, *unused: object) -> None:
        self._open.close()

    def pieces(self, run: Run) -> Iterator[tuple[Run, mmap.mmap | None]]:
        """A run's pages in pieces, each with the file that has it and its offset there; None: not to be found."""
        address = run.address
        while address < run.end:
            found, content = self._find(0, address, (run.end - address) // PAGE)
            yield found, content
            address = found.end

    def _find(self, level: int, address: int, most: int) -> tuple[Run, mmap.mmap | None]:
        if level == len(self._levels):
            return Run(address, most, False), None
        runs, starts, content = self._levels[level]
        index = bisect.bisect_right(starts, address) - 1
        if index < 0 or runs[index].end <= address:
            after = starts[index + 1] if index + 1 < len(starts) else address + most * PAGE
            return Run(address, min(most, (after - address) // PAGE), False), None
        there = runs[index]
        count = min(most, (there.end - address) // PAGE)
        if not there.kept:
            return self._find(level + 1, address, count)
        return Run(address, count, True, there.offset + address - there.address), content


@contextlib.contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap | None]:
    """A file's content; None where it is empty or isn't there, as of a process without pages of its own."""
    if not path.is_file() or not path.stat().st_size:
        yield None
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        yield content
