"""What can be learned from outside about a sandbox's processes: what they are, and what it takes to start them again.

Linux: from ``/proc``; the links there give paths as the sandbox sees them. Elsewhere: what psutil tells. Everything
read was written by the sandbox, so it is bounded and never opened as a path.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import psutil

_LARGEST = 1024 * 1024
"""Bytes of an argument list or environment that are read; a longer one counts as unknown."""
_MOST_DESCRIPTORS = 4096
_PF_FORKNOEXEC = 0x40


@dataclass(frozen=True)
class Seen:
    """One process. ``pid`` is the inside one, ``parent`` the inside pid of its parent or 0 when that is outside.

    ``inputs`` and ``outputs``: what its descriptors 0, and 1 and 2, are (link texts of ``/proc/PID/fd``; empty when
    closed or unknown). ``reads``: the pipes and files that it has open for reading. ``forked``: it never replaced its
    program, so its argument list is that of a forebear. ``mounts`` tells mount namespaces apart. ``unknown`` says what
    could not be read.
    """

    host_pid: int
    pid: int
    parent: int
    started: float
    argv: tuple[str, ...] = ()
    cwd: str = ""
    state: str = ""
    executable: str = ""
    root: str = ""
    mounts: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    uid: int = 0
    gid: int = 0
    inputs: str = ""
    outputs: tuple[str, str] = ("", "")
    reads: frozenset[str] = frozenset()
    forked: bool = False
    unknown: str = ""
    host_parent: int = field(default=0, repr=False)


def observe(host_pids: Iterable[int]) -> tuple[Seen, ...]:
    """All living processes of ``host_pids``, oldest first."""
    read = _read_linux if sys.platform == "linux" else _read_elsewhere
    seen = [found for pid in host_pids if (found := read(pid)) is not None]
    inside = {process.host_pid: process.pid for process in seen}
    seen = [replace(process, parent=inside.get(process.host_parent, 0)) for process in seen]
    return tuple(sorted(seen, key=lambda process: (process.started, process.pid)))


def _read_linux(pid: int) -> Seen | None:
    try:
        fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].decode().split()
        status = _read(f"/proc/{pid}/status").decode("utf-8", "replace")
    except OSError:
        return None
    if len(fields) < 20 or fields[0] in "ZX":
        return None
    lines = dict(re.findall(r"^(\w+):\t(.*)$", status, re.MULTILINE))
    seen = Seen(
        host_pid=pid,
        pid=int(lines.get("NSpid", str(pid)).split()[-1]),
        parent=0,
        host_parent=int(fields[1]),
        started=float(fields[19]),
        state=fields[0],
        forked=bool(int(fields[6]) & _PF_FORKNOEXEC),
        uid=int(lines["Uid"].split()[1]),
        gid=int(lines["Gid"].split()[1]),
    )
    try:
        return replace(
            seen,
            argv=_strings(_read(f"/proc/{pid}/cmdline")),
            cwd=os.readlink(f"/proc/{pid}/cwd"),
            root=os.readlink(f"/proc/{pid}/root"),
            mounts=os.readlink(f"/proc/{pid}/ns/mnt"),
            executable=os.readlink(f"/proc/{pid}/exe"),
            environment=_variables(_read(f"/proc/{pid}/environ")),
            inputs=_descriptor(pid, 0),
            outputs=(_descriptor(pid, 1), _descriptor(pid, 2)),
            reads=frozenset(_read_by(pid)),
        )
    except (OSError, ValueError) as error:
        with contextlib.suppress(OSError, ValueError):
            seen = replace(seen, argv=_strings(_read(f"/proc/{pid}/cmdline")))
        return replace(seen, unknown=str(error))


def _read(path: str) -> bytes:
    with open(path, "rb") as stream:
        data = stream.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise ValueError(f"{os.path.basename(path)} is larger than {_LARGEST} bytes")
    return data


def _strings(data: bytes) -> tuple[str, ...]:
    return tuple(os.fsdecode(item) for item in data.removesuffix(b"\0").split(b"\0")) if data else ()


def _variables(data: bytes) -> tuple[tuple[str, str], ...]:
    pairs = (item.partition("=") for item in _strings(data))
    return tuple((name, value) for name, equals, value in pairs if name and equals)


def _descriptor(pid: int, number: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{number}")
    except FileNotFoundError:
        return ""


def _read_by(pid: int) -> Iterator[str]:
    """Links only: to look at a file itself could hang on a file system that the stopped sandbox serves."""
    with os.scandir(f"/proc/{pid}/fd") as entries:
        for _, entry in zip(range(_MOST_DESCRIPTORS), entries, strict=False):
            with contextlib.suppress(FileNotFoundError):
                link = os.readlink(entry.path)
                if link.startswith(("pipe:", "/")):
                    flags = re.search(rb"^flags:\s*(\d+)", _read(f"/proc/{pid}/fdinfo/{entry.name}"), re.MULTILINE)
                    if flags and int(flags[1], 8) & os.O_ACCMODE != os.O_WRONLY:
                        yield link


def _read_elsewhere(pid: int) -> Seen | None:
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        seen = Seen(pid, pid, 0, process.create_time(), host_parent=process.ppid(), state=process.status())
        try:
            return replace(
                seen,
                argv=tuple(process.cmdline()),
                cwd=process.cwd(),
                executable=process.exe(),
                environment=tuple(process.environ().items()),
                uid=process.uids().effective,
                gid=process.gids().effective,
            )
        except (psutil.AccessDenied, OSError) as error:
            return replace(seen, unknown=str(error))
    except psutil.Error:
        return None
