"""What this process sees mounted, as Linux tells it (proc_pid_mountinfo(5))."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

_OCTAL = re.compile(r"\\([0-7]{3})")


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
        lines = os.fsdecode(file.read()).split("\n")  # a path may have other line ends in it
    return [_mount(line) for line in lines if line]


def _mount(line: str) -> Mount:
    before, _, after = line.partition(" - ")
    _, _, device, root, point, *_ = map(_plain, before.split(" "))
    kind, source, options = map(_plain, after.split(" ", 2))
    return Mount(device, root, point, kind, source, tuple(options.split(",")))


def _plain(field: str) -> str:
    """White space and backslashes stand there as octal numbers."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), field) if "\\" in field else field
