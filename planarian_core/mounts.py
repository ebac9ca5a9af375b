"""What this process sees mounted, as Linux tells it (proc_pid_mountinfo(5))."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

_OCTAL = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    """``device``: of the file system, ``major:minor``; ``root``: the directory of it that is seen at ``point``;
    ``kind`` and ``source``: as in ``mount -t KIND SOURCE``; ``options``: of the file system, not of this mount.
    """

    device: str
    root: str
    point: str
    kind: str
    source: str
    options: tuple[str, ...]


def mounts() -> list[Mount]:
    """In the order of mounting: the last is seen where several have one point. OSError where the host isn't Linux."""
    with open("/proc/self/mountinfo", "rb") as file:
        return [_mount(line) for line in file.read().split(b"\n") if line]  # a path may have other line ends in it


def _mount(line: bytes) -> Mount:
    before, _, after = line.partition(b" - ")
    _, _, device, root, point, *_ = map(_plain, before.split(b" "))
    kind, source, options = map(_plain, after.split(b" ", 2))
    return Mount(device, root, point, kind, source, tuple(options.split(",")))


def _plain(field: bytes) -> str:
    """White space and backslashes stand there as octal numbers."""
    return os.fsdecode(_OCTAL.sub(lambda match: bytes([int(match[1], 8)]), field))
