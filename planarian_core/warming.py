"""Keeps copies of the statepoints ready that are most likely to be chosen, in the background, within a budget.

One thread per open runtime. It looks anew whenever a statepoint was taken or a copy was used: what is no longer wanted
is dropped, what is missing is made, the most wanted first. Where memory grows scarce all copies go.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Collection, Iterator
from contextlib import suppress

from planarian_core.config import Config
from planarian_core.errors import LineageError, PlanarianError
from planarian_core.model import SandboxRecord, Statepoint, Status
from planarian_core.registry import Registry
from planarian_core.sandbox_manager import SandboxManager
from planarian_core.standby import StandbyManager
from planarian_core.units import parse_size

_LOOK_SECONDS = 5.0
_SCARCE = 0.08
"""Of all memory: where less is available copies go."""
_OWN = 8 * 1024 * 1024
"""Bytes that a copy takes beside the memory of its processes, about."""

_log = logging.getLogger(__name__)


def memory() -> tuple[int, int]:
    """All memory and what is available of it, in bytes; zeros where the system doesn't say."""
    found = {"MemTotal": 0, "MemAvailable": 0}
    with suppress(OSError, ValueError), open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name in found:
                found[name] = int(value.split()[0]) * 1024
    return found["MemTotal"], found["MemAvailable"]


class Warmer:
    """Makes and drops copies as the configuration and :meth:`keep` say."""

    def __init__(self, registry: Registry, sandboxes: SandboxManager, standbys: StandbyManager) -> None:
        self._registry = registry
        self._sandboxes = sandboxes
        self._standbys = standbys
        self._pinned: dict[str, int] = {}
        self._active: dict[str, None] = {}
        self._forgotten: set[str] = set()
        self._work: queue.Queue[threading.Event | None] = queue.Queue()
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def _config(self) -> Config:
        return self._sandboxes.config

    # --- what others call ---

    def keep(self, statepoint: Statepoint, copies: int) -> None:
        """Keep so many copies of one statepoint from now on, whatever the policy; 0 leaves it to the policy."""
        with self._guard:
            self._pinned.pop(statepoint.id, None)
            if copies > 0:
                self._pinned[statepoint.id] = copies
        self._wake()

    def look(self, sandbox_id: str) -> None:
        """Something has changed in a sandbox, or a copy was used. Returns at once."""
        with self._guard:
            self._active.pop(sandbox_id, None)
            self._active[sandbox_id] = None
            needed = self._config.standby != "off" or bool(self._pinned) or self._thread is not None
        if needed:
            self._wake()

    def forget(self, statepoint_ids: Collection[str]) -> None:
        """Statepoints are about to go: drop their copies, and make no more."""
        with self._guard:
            for statepoint_id in statepoint_ids:
                self._pinned.pop(statepoint_id, None)
            self._forgotten.update(statepoint_ids)
        self.settle()
        for standby in self._standbys.copies():
            if standby.statepoint_id in statepoint_ids:
                self._standbys.spare(standby)

    def settle(self) -> None:
        """Wait until all that is wanted now has been made or given up."""
        done = threading.Event()
        with self._guard:  # so that nothing is put behind the end
            if self._thread is None:
                return
            self._work.put(done)
        done.wait()

    def close(self) -> None:
        """End the thread, after the copy that it is making; copies stay for the caller to drop."""
        with self._guard:
            self._closed = True
            thread, self._thread = self._thread, None
            self._work.put(None)
        if thread is not None:
            thread.join()

    def _wake(self) -> None:
        with self._guard:
            if self._closed:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="planarian-standby", daemon=True)
                self._thread.start()
            self._work.put(threading.Event())

    # --- the thread ---

    def _run(self) -> None:
        while True:
            waiting: list[threading.Event] = []
            with suppress(queue.Empty):
                waiting.append(self._work.get(timeout=_LOOK_SECONDS) or _END)
                while True:
                    waiting.append(self._work.get_nowait() or _END)
            if _END in waiting:
                for event in waiting:
                    event.set()
                return
            try:
                self._adjust(built := bool(waiting))
            except Exception:  # the thread must live on, and nobody waits for its result
                _log.exception("copies can't be kept ready (%s)", "after a change" if built else "while idle")
            for event in waiting:
                event.set()

    def _adjust(self, may_build: bool) -> None:
        self._standbys.tidy()
        total, available = memory()
        if total and available < total * _SCARCE:
            for standby in self._standbys.copies():
                self._standbys.spare(standby)
            return
        wanted = self._wanted()
        for standby in self._standbys.copies():
            unwanted = may_build and standby.statepoint_id not in wanted
            if unwanted or self._restorable(standby.statepoint_id) is None:
                self._standbys.spare(standby)
        if not may_build:
            return
        for statepoint_id, copies in wanted.items():
            for surplus in self._standbys.copies(statepoint_id)[copies:]:
                self._standbys.spare(surplus)
            self._build(statepoint_id, copies)

    def _restorable(self, statepoint_id: str) -> Statepoint | None:
        """The statepoint, unless it was given up; others may do that, too."""
        statepoint = self._registry.find(statepoint_id)
        return statepoint if statepoint is not None and statepoint.status is Status.COMMITTED else None

    def _build(self, statepoint_id: str, copies: int) -> None:
        while len(self._standbys.copies(statepoint_id)) < copies:
            statepoint = self._restorable(statepoint_id)
            if self._closed or statepoint_id in self._forgotten or statepoint is None:
                return
            if not self._affordable(statepoint):
                return
            try:
                self._standbys.build(self._registry.sandbox(statepoint.sandbox_id), statepoint)
            except LineageError:
                return  # it was given up just now
            except PlanarianError as error:
                if error.code != "standby-in-place":
                    _log.error("%s can't be restored: %s", statepoint_id, error)
                return

    def _affordable(self, statepoint: Statepoint) -> bool:
        used = sum(standby.memory + _OWN for standby in self._standbys.copies())
        needed = (statepoint.processes.logical if statepoint.processes else 0) + _OWN
        total, available = memory()
        limit = self._config.standby_memory
        budget = parse_size(limit) if limit else (available + used) // 4
        return used + needed <= budget and (not total or available - needed > total * _SCARCE)

    # --- what is wanted ---

    def _wanted(self) -> dict[str, int]:
        """Statepoint ids and how many copies of each, the most wanted first."""
        with self._guard:
            wanted = dict(self._pinned)
            active = list(reversed(self._active))
        if self._config.standby == "off":
            return wanted
        records = {record.id: record for record in self._registry.sandboxes()}
        for sandbox_id in active:
            record = records.get(sandbox_id)
            if record is not None and not record.closed:
                for statepoint_id in self._likely(record):
                    wanted.setdefault(statepoint_id, 1)
        return wanted

    def _likely(self, record: SandboxRecord) -> Iterator[str]:
        head = self._registry.branch(record.id).head
        if head is not None:
            yield head
        policy = self._config.standby
        if policy == "head":
            return
        committed = [s for s in self._registry.statepoints(record.id) if s.status is Status.COMMITTED]
        committed.reverse()
        if policy == "named":
            yield from (s.id for s in committed if s.name)
            return
        count = int(policy.removeprefix("best:"))
        yield from (s.id for s in sorted(committed, key=self._merit, reverse=True)[:count])

    def _merit(self, statepoint: Statepoint) -> tuple[int, bool]:
        """How well runs from a statepoint ended, and whether somebody named it; among equals the newest comes first."""
        merit = {"succeeded": 1, "failed": -1}
        return sum(merit.get(o.status, 0) for o in self._registry.outcomes(statepoint.id)), bool(statepoint.name)


_END = threading.Event()
