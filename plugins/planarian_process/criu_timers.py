"""Puts right what CRIU 4.2 writes about an interval timer (timerfd) that has fired and was not read yet.

The kernel shows no time left for such a timer, CRIU writes that down as it is, and a timer restored with no time left
is switched off: it never fires again. Here it gets its interval as the time left.
"""

from __future__ import annotations

import os
import struct
from functools import cache
from pathlib import Path
from typing import Any

_FILES = "files.img"
_COMMON_MAGIC, _FILES_MAGIC = 0x54564319, 0x56303138
_LENGTH = struct.Struct("<I")
_TIMER_FIELDS = {"ticks": 5, "seconds": 7, "nanoseconds": 8, "interval_seconds": 9, "interval_nanoseconds": 10}


@cache
def _entry_class() -> Any:
    """CRIU's ``file_entry`` with the few fields that matter; protobuf keeps the others as they are.

    Made in a pool of its own, so that it meets neither pycriu's nor anybody else's files of these names.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # a dependency on Linux alone

    file = descriptor_pb2.FileDescriptorProto(name="planarian/criu_timers.proto", package="planarian.criu")
    timer = file.message_type.add(name="Timer")
    for name, number in _TIMER_FIELDS.items():
        timer.field.add(name=name, number=number, type=4, label=1)  # optional uint64
    entry = file.message_type.add(name="Entry")
    entry.field.add(name="timer", number=12, type=11, label=1, type_name=".planarian.criu.Timer")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("planarian.criu.Entry"))


def revive_timers(images: Path) -> int:
    """Mend the image in place; how many timers there were to mend. An image of another format is left alone."""
    path = images / _FILES
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return 0
    if content[:8] != struct.pack("<II", _COMMON_MAGIC, _FILES_MAGIC):
        return 0
    parts, position, mended = [content[:8]], 8, 0
    while position + _LENGTH.size <= len(content):
        (length,) = _LENGTH.unpack_from(content, position)
        start = position + _LENGTH.size
        position = start + length
        raw = content[start:position]
        entry = _entry_class().FromString(raw)
        if entry.HasField("timer") and _stuck(entry.timer):
            entry.timer.seconds = entry.timer.interval_seconds
            entry.timer.nanoseconds = entry.timer.interval_nanoseconds
            raw = entry.SerializeToString()
            mended += 1
        parts += [_LENGTH.pack(len(raw)), raw]
    if mended:
        draft = images / f"{_FILES}.new"
        draft.write_bytes(b"".join(parts))
        os.replace(draft, path)
    return mended


def _stuck(timer: Any) -> bool:
    """Fired, not read, periodic: a timer that was switched off has no ticks."""
    left = timer.seconds or timer.nanoseconds
    return bool(timer.ticks and not left and (timer.interval_seconds or timer.interval_nanoseconds))
