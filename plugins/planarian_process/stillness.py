"""The proof that nothing in a sandbox has moved since its processes were captured.

What runs after a capture is in the state that the capture holds when three things are so:

1. *From the instant to the baseline* each thread only took up the wait again that the capture had cut off
   (:func:`planarian_process.stillness_threads.resumed`), as it does in every restored copy.
2. *Since the baseline* no thread has run: the scheduler's counters are as they were, of the same threads.
3. Nobody did to them what can be done to a process that doesn't run: signals, limits, priorities, a terminal's
   settings, data in pipes and sockets (:mod:`planarian_process.stillness_holdings`), changes to files that they use
   (:mod:`planarian_process.stillness_files`; other files may have changed). What could be done without a trace, or
   happens by itself, is ruled out after the capture (:mod:`planarian_process.stillness_doubts`).

The counters are read before and after everything else, so that all of it is true at one moment. The sandbox's own init
runs in every tool call: of it only what its children get from it counts, and that it waits for the next call.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from planarian_core.interfaces import RunningSandbox
from planarian_core.model import Artefact, Network
from planarian_process.stillness_doubts import refuse_doubtful
from planarian_process.stillness_files import used_files
from planarian_process.stillness_holdings import holdings, refuse_shared_memory
from planarian_process.stillness_threads import (
    Doubt,
    Pause,
    init_evidence,
    numbers_inside,
    pauses,
    process_evidence,
    read,
    resumed,
    run_times,
    start_time,
    thread_evidence,
    threads,
)

DETAIL = "stillness"
"""Where the details of a process artefact keep the baseline."""
_PATIENCE = 0.02
"""Seconds that threads have to wait again after an instant, and the init after a call."""
_UNREADABLE = (OSError, ValueError, LookupError, Doubt)
_Found = TypeVar("_Found")


@dataclass(frozen=True)
class Halt:
    """How every thread stood in the instant, by process; ``doubt`` says why that is not known."""

    pauses: dict[int, dict[str, Pause]] = field(default_factory=dict)
    doubt: str = ""


def halt(sandbox: RunningSandbox) -> Halt:
    """Read how the threads stand. Called in the instant; it never fails, but may doubt."""
    try:
        if sandbox.in_flight:
            raise Doubt("a tool call was under way")
        return Halt({pid: pauses(pid) for pid in _others(sandbox)})
    except _UNREADABLE as failure:
        return Halt(doubt=_said(failure))


def baseline(sandbox: RunningSandbox, before: Halt, images: Path | None = None) -> dict[str, Any]:
    """What :func:`still` needs, for the artefact's details; read when all waits again after the instant.

    With a doubt it holds nothing but that (``doubt``), and the next snapshot captures anew.

    Args:
        images: the directory of CRIU's image, where memory was captured; None where only what runs was noted.
    """
    try:
        if before.doubt:
            raise Doubt(before.doubt)
        _patiently(lambda: _resumed(sandbox, before))
        if images is not None:
            refuse_doubtful(_init(sandbox), _others(sandbox), images)
        found = _evidence(sandbox, memory=images is not None)
        _resumed(sandbox, before)
        return {"digest": found, "memory": images is not None}
    except _UNREADABLE as failure:
        return {"doubt": _said(failure)}


def still(sandbox: RunningSandbox, artefact: Artefact) -> bool:
    """Whether nothing has moved since the baseline in ``artefact``; False where it has none."""
    recorded = artefact.details.get(DETAIL)
    if not isinstance(recorded, dict) or not recorded.get("digest"):
        return False
    try:
        return bool(_evidence(sandbox, memory=bool(recorded["memory"])) == recorded["digest"])
    except _UNREADABLE:
        return False


def idle(sandbox: RunningSandbox) -> bool:
    """Whether nothing runs besides the sandbox's own init, which waits for a call."""
    try:
        if _init(sandbox):
            _patiently(lambda: init_evidence(_init(sandbox)))
        return not _others(sandbox)
    except _UNREADABLE:
        return False


def _evidence(sandbox: RunningSandbox, memory: bool) -> str:
    """All that has to stay the same, as one digest. ``memory``: with what others can change of a waiting process."""
    init, pids = _init(sandbox), _others(sandbox)
    if not pids and not init:
        return _digest([])
    if sys.platform != "linux":
        raise Doubt("this system does not tell what has run")
    found = [_boot()]
    if init:
        found += _patiently(lambda: init_evidence(init))
    listed = [(pid, threads(pid)) for pid in pids]
    for pid, ours in listed:
        found += [repr((pid, ours)).encode(), start_time(pid)]
        for thread in ours:
            found += thread_evidence(thread)
    if memory:
        private = sandbox.spec.network is Network.NONE
        known: set[bytes] = set()
        for pid in pids:
            found += [*process_evidence(pid), *holdings(pid, private), *used_files(pid, known)]
        found += process_evidence(init)
        refuse_shared_memory(init)
    found += [run_times(thread) for _, ours in listed for thread in ours]
    return _digest(found)


def _resumed(sandbox: RunningSandbox, before: Halt) -> None:
    """Doubt unless there are the same threads as in the instant and each only took up its wait again."""
    now = {pid: pauses(pid) for pid in _others(sandbox)}
    if {pid: list(found) for pid, found in now.items()} != {pid: list(found) for pid, found in before.pauses.items()}:
        raise Doubt("something began or ended right after the capture")
    for pid, found in now.items():
        for thread, pause in found.items():
            if not resumed(before.pauses[pid][thread], pause):
                raise Doubt(f"process {pid} went on right after the capture")


def _patiently(attempt: Callable[[], _Found]) -> _Found:
    """Try until there is no doubt, for a moment: what was just woken soon waits again."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return attempt()
        except Doubt:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.0002)


def _init(sandbox: RunningSandbox) -> int:
    """Host pid of the sandbox's own init; 0 where it has none."""
    return sandbox.live.init_pid


def _others(sandbox: RunningSandbox) -> list[int]:
    """Host pids of what counts: all but the init and what belongs to a tool call that asks right now."""
    pids = sorted(set(sandbox.tasks()) - {_init(sandbox)})
    if not sandbox.in_flight:
        return pids
    inside = numbers_inside(pids)
    return [pid for pid in pids if inside[pid] not in sandbox.in_flight]


@cache
def _boot() -> bytes:
    return read("/proc/sys/kernel/random/boot_id")


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _said(failure: Exception) -> str:
    return (str(failure) or type(failure).__name__)[:200]
