"""The present names of files that a process watches (inotify): an image names them, and a restore looks them up anew.

A watch is of a file, whatever its name is. A change of the name of a directory above it is none of the file itself, so
nothing shows at the process.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys

from planarian_process.stillness_threads import Doubt, read

_WATCH = re.compile(
    rb"^inotify wd:\S+ ino:\S+ sdev:([0-9a-f]+) "
    rb".*fhandle-bytes:([0-9a-f]+) fhandle-type:([0-9a-f]+) f_handle:([0-9a-f]+)",
    re.MULTILINE,
)
_MOUNT = re.compile(rb"^\d+ \d+ (\d+):(\d+) /(?: |\S* )(\S+) ", re.MULTILINE)
_MINOR_BITS = 20
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def watched(pid: int, number: int) -> list[bytes]:
    """The names of what the descriptor ``number`` of a process watches. Doubt where one of them can't be told."""
    text = read(f"/proc/{pid}/fdinfo/{number}")
    watches = _WATCH.findall(text)
    if len(watches) != text.count(b"inotify wd:"):
        raise Doubt("a watch whose file can't be told")
    places = _places(pid) if watches else {}
    return [
        _name(places.get(int(device, 16)), int(kind, 16), handle, int(size, 16))
        for device, size, kind, handle in watches
    ]


def _places(pid: int) -> dict[int, str]:
    """A mount point of each file system that a process sees, by the device's number as the kernel has it."""
    with open(f"/proc/{pid}/mountinfo", "rb") as file:
        found = _MOUNT.findall(file.read())
    places: dict[int, str] = {}
    for major, minor, place in found:
        if b"\\" not in place:
            places.setdefault(int(major) << _MINOR_BITS | int(minor), f"/proc/{pid}/root{os.fsdecode(place)}")
    return places


def _name(place: str | None, kind: int, handle: bytes, size: int) -> bytes:
    content = bytes.fromhex(handle.decode("ascii"))[:size]
    if place is None or _LIBC is None or len(content) != size:
        raise Doubt("a watch in an unknown file system")
    record = size.to_bytes(4, sys.byteorder) + kind.to_bytes(4, sys.byteorder) + content
    mount = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        descriptor = _LIBC.open_by_handle_at(mount, record, os.O_PATH | os.O_CLOEXEC)
    finally:
        os.close(mount)
    if descriptor < 0:
        raise Doubt("a watch whose file can't be found")
    try:
        return os.fsencode(os.readlink(f"/proc/self/fd/{descriptor}"))
    finally:
        os.close(descriptor)
