"""What CRIU itself counts of a dump, in the file ``stats-dump`` of its working directory."""

from __future__ import annotations

import struct
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

NAME = "stats-dump"
_HEAD = struct.Struct("<III")
_MAGICS = (0x55105940, 0x57093306)
_FIELDS = ("freezing", "frozen", "memory", "writing", "scanned", "in_parent", "written")
"""CRIU's, numbered from 1: the first four are microseconds (the fourth is part of the third), the others pages."""
_MICRO = 1e-6


@dataclass(frozen=True)
class Statistics:
    """``standstill``: seconds from the first process that was stopped until all ran on. ``memory``: those of them in
    which it looked for pages, read and wrote them. ``pages``: how many it wrote, of 4 kB.
    """

    standstill: float
    memory: float
    pages: int

    def details(self) -> dict[str, Any]:
        return asdict(self)


@cache
def _entry_class() -> Any:
    """CRIU's ``stats_entry``, in a pool of its own; see :mod:`planarian_process.criu_inventory`."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # a dependency on Linux alone

    file = descriptor_pb2.FileDescriptorProto(name="planarian/criu_statistics.proto", package="planarian.criu")
    dump = file.message_type.add(name="Dump")
    for number, name in enumerate(_FIELDS, 1):
        dump.field.add(name=name, number=number, type=4, label=1)  # optional, a whole number
    entry = file.message_type.add(name="Statistics")
    entry.field.add(name="dump", number=1, type=11, label=1, type_name=".planarian.criu.Dump")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("planarian.criu.Statistics"))


def statistics(content: bytes) -> Statistics | None:
    """What the file says; None where it isn't one that we know: nothing depends on it."""
    from google.protobuf.message import DecodeError

    if len(content) < _HEAD.size:
        return None
    *magics, length = _HEAD.unpack_from(content)
    if tuple(magics) != _MAGICS or len(content) != _HEAD.size + length:
        return None
    try:
        dump = _entry_class().FromString(content[_HEAD.size :]).dump
    except DecodeError:
        return None
    return Statistics((dump.freezing + dump.frozen) * _MICRO, dump.memory * _MICRO, int(dump.written))
