"""The files that a process uses without a descriptor: its program, libraries and other mappings, and its directory.

An image names them, and is good only while they are what they were: a statepoint may pair it with files of which others
have changed.
"""

from __future__ import annotations

import os
import re
import stat

from planarian_process.stillness_threads import Doubt

_LARGEST = 16 * 1024 * 1024
_MAPPED = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ (\S+ [1-9]\d*) ", re.MULTILINE)


def identity(status: os.stat_result) -> str:
    """Which file it is and, for what has content of its own, in which version. A directory's content isn't part of it.

    The time of its last change can't be set from inside.
    """
    kept = (status.st_dev, status.st_ino, status.st_mode, status.st_uid, status.st_gid)
    if stat.S_ISREG(status.st_mode):
        return repr((*kept, status.st_nlink, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return repr(kept)


def mappings(pid: int) -> bytes:
    """The text of a process's mappings, with the present names of files."""
    with open(f"/proc/{pid}/maps", "rb", buffering=0) as file:
        parts = []
        size = 0
        while piece := file.read(1 << 20):
            parts.append(piece)
            size += len(piece)
            if size > _LARGEST:
                raise Doubt(f"process {pid} has too many mappings")
    return b"".join(parts)


def used_files(pid: int, known: set[bytes]) -> list[bytes]:
    """What a process uses. ``known``: files that were looked at already, for other processes; added to."""
    maps = mappings(pid)
    found = [maps]
    for start, end, file in _MAPPED.findall(maps):
        if file not in known:
            known.add(file)
            status = os.stat(f"/proc/{pid}/map_files/{int(start, 16):x}-{int(end, 16):x}")
            found.append(identity(status).encode())
    found += [os.fsencode(os.readlink(f"/proc/{pid}/{name}")) for name in ("cwd", "root", "exe")]
    found.append(identity(os.stat(f"/proc/{pid}/cwd")).encode())
    return found
