"""File content between a layer and the store: read in bounded pieces with its holes, written back and checked."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from planarian_filesystem.sinks import Sink
from planarian_filesystem.store import Store, copy_blob
from planarian_filesystem.tree import CHUNK, Entry, Stretch, decode_map, encode_map


class Changing(Exception):
    """The file got shorter while it was read."""


def read_content(fd: int, size: int, sink: Sink) -> tuple[str, bool]:
    """Put an open file of ``size`` bytes into ``sink``; returns (digest, mapped), ("", False) for an empty one."""
    if size == 0:
        return "", False
    stretches = _data_stretches(fd, size)
    first = next(stretches, None)
    if first == (0, size):
        return _put(fd, 0, size, sink), False
    lines: list[bytes] = []
    while first is not None:
        offset, length = first
        lines.append(encode_map([Stretch(offset, length, _put(fd, offset, length, sink))]))
        first = next(stretches, None)
    return sink.put(b"".join(lines)), True


def _data_stretches(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """(offset, length) of the data, holes left out, cut at multiples of :data:`CHUNK`."""
    position = 0
    while position < size:
        try:
            start = os.lseek(fd, position, os.SEEK_DATA)
            end = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole up to the end
                return
            if error.errno != errno.EINVAL:
                raise
            start, end = position, size  # a filesystem that doesn't know holes
        while start < end:
            cut = min(end, (start // CHUNK + 1) * CHUNK)
            yield start, cut - start
            start = cut
        position = end


def _put(fd: int, offset: int, length: int, sink: Sink) -> str:
    shared = sink.put_range(fd, offset, length)
    if shared is not None:
        return shared
    data = os.pread(fd, length, offset)
    while len(data) < length:
        more = os.pread(fd, length - len(data), offset + len(data))
        if not more:
            raise Changing
        data += more
    return sink.put(data)


def write_content(store: Store, entry: Entry, fd: int) -> None:
    """Fill a new, empty file with an entry's content, holes included. Damaged names the blob that is not right."""
    if not entry.content:
        return
    if not entry.mapped:
        copy_blob(store, entry.content, entry.size, fd, 0)
        return
    os.ftruncate(fd, entry.size)
    for stretch in decode_map(store.read(entry.content)):
        copy_blob(store, stretch.digest, stretch.length, fd, stretch.offset)
