"""Turns CRIU's log into a cause, the process it is about and a remedy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from planarian_core.model import Domain, Gap
from planarian_process.criu_engine import EngineFailure
from planarian_process.criu_tasks import Task

_LINES = 6
_LINE_LIMIT = 240
_ERROR = re.compile(r"\bError \([^)]*\): ?(.*)")
_ABOUT = re.compile(r"Dumping task \(pid: (\d+) ")
_TRY_AGAIN = "try again; planarian doctor tries CRIU on its own"
_NOISE = (
    "rlimit: Can't setup RLIMIT_NOFILE",
    "Dumping FAILED",
    "Restoring FAILED",
    "Unable to get $HOME",
    "No parent image found, though",  # of a process that is new since
    "Unable to detach from",  # what it had stopped already, after something else failed
)
_UNFIT = re.compile(r"in parent pagemap|not found in parent|Pid-reuse detection failed|Invalid parent image")


@dataclass(frozen=True)
class Diagnosis:
    """What a failed run of CRIU means. ``lines`` are its own error lines, bounded."""

    cause: str
    remedy: str
    lines: tuple[str, ...]


# The first that matches wins; {0} and {1} are the pattern's groups.
_MEANINGS: tuple[tuple[str, str, str], ...] = (
    (r"No space left on device|ENOSPC", "the disk that holds the images is full", "free some space"),
    (r"Disk quota exceeded", "the disk quota is used up", "free some space, or raise the quota"),
    (r"Unseizable non-zombie (\d+) found", "a process is traced, or can't be stopped", "end its debugger or tracer"),
    (
        r"Timeout reached|Unable to freeze|Can't freeze",
        "a process could not be stopped within 10 seconds (it waits in the kernel)",
        "wait for its input or output to end",
    ),
    (
        r"Can't lookup mount|Can't find mount|doesn't have a proper root mount",
        "a descriptor leads out of the sandbox",
        "end the process that holds it",
    ),
    (
        r"external (pipe|stream|unix)|Can't dump half of (stream|pipe)|peer .* outside",
        "a pipe or socket leads out of the sandbox",
        "end the process that holds it",
    ),
    (
        r"ctty inheritance detected",
        "it holds its terminal open as /dev/tty, which CRIU can't capture (a plain sh in a terminal does that)",
        "use bash in terminals, or end it",
    ),
    (r"In-flight connection", "a TCP connection is being set up", "take the snapshot again"),
    (
        r"Can't get \S+ opt: Operation not supported|MPTCP|kTLS",
        "this CRIU can't read a TCP socket on this kernel",
        "install CRIU 4.2 or newer",
    ),
    (
        r"Can't dump file (\d+) of that type \[\S+\] \(([^)]*)\)",
        "descriptor {0} is of a kind that can't be captured ({1})",
        "end the process that holds it",
    ),
    (r"Can't dump nested (\w+) namespace", "a process runs in a nested {0} namespace", "end it before the snapshot"),
    (r"more than one netns", "a process runs in a nested network namespace", "end it before the snapshot"),
    (
        r"Can't dump ghost file (\S+) of (\d+) size",
        "the deleted file {0} is open and too large ({1} bytes)",
        "close it, or end its process",
    ),
    (
        r"Can't dump that handle",
        "a file watch is on a file that can't be found again",
        "end the process that watches",
    ),
    (
        r"io_uring|userfaultfd|perf_event|bpf",
        "a process uses a kernel object that can't be captured",
        "end it before the snapshot",
    ),
    (
        r"File (\S+) has bad (size|build-ID|mode|checksum)",
        "the file {0} is not the one that the image was taken with",
        "the host was changed: use a newer statepoint",
    ),
    (
        r"Can't open file (\S+) on restore|Can't open (?:file )?(\S+): No such file",
        "the file {0} is missing",
        "restore the files and the processes of the same statepoint",
    ),
    (
        r"Can't get owner of link remap",
        "a deleted file that was open is missing from the files",
        "restore the files and the processes of the same statepoint",
    ),
    (
        r"Address already in use|Can't bind (inet )?socket",
        "a port or address is in use by another program",
        "free the port, or use a sandbox with its own network",
    ),
    (
        r"Can't fork for|Resource temporarily unavailable|Cannot allocate memory",
        "the host has no memory or no room for processes left",
        "free memory, or raise the sandbox's limits",
    ),
    (
        r"No such process|Process \d+ (?:not found|exited)|is not alive",
        "a process ended during the capture",
        "take the snapshot again",
    ),
    (r"action scripts failed", "what CRIU asks at the instant failed or was killed", _TRY_AGAIN),
    (r"Operation not permitted|Permission denied", "the kernel refused CRIU", "planarian doctor"),
)


def error_lines(log: str) -> tuple[str, ...]:
    """CRIU's own error lines, first first, bounded in number and length."""
    found = dict.fromkeys(match[1] for line in log.splitlines() if (match := _ERROR.search(line)))
    return tuple(_bounded(line) for line in found if not line.startswith(_NOISE))[:_LINES]


def unfit_parent(failure: EngineFailure) -> str:
    """CRIU's own words when a dump failed because what it was to be built on doesn't fit; else empty."""
    return next((line for line in error_lines(failure.log) if _UNFIT.search(line)), "")


def _bounded(line: str) -> str:
    """Names that a sandbox chose are in it: no control characters, no great length."""
    return "".join(c if c.isprintable() else "?" for c in line[:_LINE_LIMIT])


def diagnose(failure: EngineFailure, tasks: Sequence[Task] = ()) -> Diagnosis:
    """Read a failed run's log. ``tasks`` are those that were to be captured: they turn host pids into names."""
    lines = error_lines(failure.log)
    for line in lines:
        for pattern, cause, remedy in _MEANINGS:
            match = re.search(pattern, line)
            if match:
                groups = [group for group in match.groups() if group] or [""]
                return Diagnosis(_about(failure.log, line, tasks) + cause.format(*groups), remedy, lines)
    if lines:
        return Diagnosis(_about(failure.log, lines[0], tasks) + lines[0], _TRY_AGAIN, lines)
    quoted = tuple(_bounded(line) for line in failure.errors.splitlines() if line.strip())[-_LINES // 2 :]
    return Diagnosis(str(failure), _TRY_AGAIN, quoted)


def _about(log: str, line: str, tasks: Sequence[Task]) -> str:
    """``process 7 (python3 x.py): `` for the task that CRIU was busy with when it wrote ``line``.

    In a restore (no ``tasks``) CRIU itself says which pid of the sandbox it is about.
    """
    before, found, _ = log.partition(line)
    if not found:
        return ""
    if not tasks:
        own = re.search(r"\)\s+(\d+): Error \([^)]*\): ?$", before)
        return f"process {own[1]}: " if own else ""
    by_host = {task.host: task for task in tasks}
    named = [by_host[int(number)] for number in re.findall(r"\b\d+\b", line) if int(number) in by_host]
    busy = [by_host[int(pid)] for pid in _ABOUT.findall(before) if int(pid) in by_host]
    chosen = named or busy[-1:]
    return f"{chosen[0].label}: " if chosen else ""


_LOST: tuple[tuple[str, bool, str, str], ...] = (
    # CRIU's words, whether only in the host's network, what of the process is meant, what becomes of it
    ("Skipping in-flight connection", False, "TCP connections that it has not accepted", "reset after a restore"),
    ("Read queue is dropped for socket", False, "UDP datagrams that it has not read", "not in the statepoint"),
    ("tcp: Dumping TCP connection", True, "TCP connections in the host's network", "closed after a restore"),
)


def log_gaps(log: str, tasks: Sequence[Task], host_network: bool) -> tuple[Gap, ...]:
    """What a successful dump left out, or a restore will not bring back, by CRIU's own word."""
    by_host = {task.host: task for task in tasks}
    owner, found = "", dict[tuple[str, str], None]()
    for line in log.splitlines():
        if match := _ABOUT.search(line):
            pid = int(match[1])
            owner = by_host[pid].label if pid in by_host else f"process {pid} (host)"
        for words, host_only, subject, reason in _LOST:
            if words in line and (host_network or not host_only):
                found[f"{owner}: {subject}", reason] = None
    return tuple(Gap(Domain.PROCESSES, subject, reason) for subject, reason in found)
