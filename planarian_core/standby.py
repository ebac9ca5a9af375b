"""Hot standby: copies of statepoints that are restored already and stand still, so that going there is a switch.

A copy is a sandbox of its own that nobody knows yet: own layer, own namespaces, frozen before its first instruction.
A fork takes it as it is; a rollback takes its layer and its processes over. Where processes can't be restored frozen
the files alone are kept ready. A copy belongs to the runtime that made it, which holds a lock for as long as it lives:
the next runtime that opens the home removes what a dead one left. Making a copy is a drill of its statepoint.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from planarian_core.errors import LineageError, PlanarianError, RestoreError, SandboxError
from planarian_core.faults import reach
from planarian_core.interfaces import Wakes
from planarian_core.model import Drill, LiveSandbox, SandboxRecord, Standby, Statepoint, Status, new_id, utc_now
from planarian_core.plugin_manager import PluginManager
from planarian_core.registry import Registry
from planarian_core.revival import restore_frozen
from planarian_core.sandbox_manager import SandboxManager, layer_of

_OF_THE_HOST = frozenset({"restore-no-space", "restore-no-copy"})
"""Codes of failures that say nothing of the statepoint."""


class StandbyManager:
    """The copies that this runtime made, and the removal of those of dead ones. Safe to share between threads."""

    def __init__(self, home: Path, registry: Registry, plugins: PluginManager, sandboxes: SandboxManager) -> None:
        self._home = home
        self._registry = registry
        self._plugins = plugins
        self._sandboxes = sandboxes
        self._guard = threading.Lock()
        self._ready: dict[str, Standby] = {}
        self._claim = -1
        self.runtime = new_id("rt")

    # --- making ---

    def build(self, source: SandboxRecord, statepoint: Statepoint) -> Standby:
        """Make a copy of a statepoint of ``source``. Takes about as long as a fork; nothing visible changes.

        Raises:
            SandboxError: ``standby-in-place``: the sandbox works in the user's own directory.
            RestoreError: the statepoint can't be restored, which its drill says from now on (unless it is the host
                that lacks something, such as disk space); nothing remains.
            LineageError: it was given up meanwhile; nothing remains.
        """
        if self._plugins.sandbox(source.spec.backend).capabilities.in_place:
            raise SandboxError(
                f"{source.id} works in place: there is no second place to keep a copy ready",
                code="standby-in-place",
                remedy="use the sandbox backend namespace",
            )
        started = time.monotonic()
        try:
            standby = self._build(source, statepoint)
        except RestoreError as error:
            if error.code not in _OF_THE_HOST and not self._drilled(statepoint, started, str(error)):
                raise _given_up(statepoint) from error
            raise
        if not self._drilled(statepoint, started, ""):
            self.drop(standby)
            raise _given_up(statepoint)
        with self._guard:
            self._ready[standby.id] = standby
        return standby

    def _drilled(self, statepoint: Statepoint, started: float, error: str) -> bool:
        """Note how it went; False, and nothing is noted, when the statepoint was pruned or removed meanwhile."""
        seconds = round(time.monotonic() - started, 3)
        with self._registry.transaction() as connection:
            current = self._registry.find(statepoint.id)
            if current is None or current.status is not Status.COMMITTED:
                return False
            self._registry.drills.put(statepoint.id, Drill(statepoint.id, error, seconds, utc_now()), connection)
        return True

    def _build(self, source: SandboxRecord, statepoint: Statepoint) -> Standby:
        self._live()
        assert statepoint.files is not None
        record = self._sandboxes.successor(source)
        standby = Standby(statepoint.id, self.runtime, record)
        self._registry.standbys.put(standby.id, standby)
        try:
            reach("standby.begun")
            if self._registry.statepoint(statepoint.id).status is not Status.COMMITTED:
                raise _given_up(statepoint)  # the entry, made before, keeps it from being pruned from here on
            if Path(record.spec.layer).is_relative_to(self._sandboxes.folder(record.id)):
                self._sandboxes.folder(record.id).mkdir(mode=0o700, parents=True)
            filesystem = self._plugins.filesystem(statepoint.files.backend)
            filesystem.stage(statepoint.files, layer_of(record.spec)).switch()
            reach("standby.staged")
            sandbox = self._plugins.sandbox(record.spec.backend)
            live = restore_frozen(self._home, self._plugins, record, statepoint)
            record = replace(record, live=live, base=sandbox.fingerprint(record.spec))
            memory = sandbox.memory(record.spec, live) if live and isinstance(sandbox, Wakes) else 0
            standby = replace(standby, record=record, memory=memory, ready=True)
            reach("standby.restored")
            self._registry.standbys.put(standby.id, standby)
        except BaseException as error:
            self.drop(standby)
            if isinstance(error, OSError):
                raise RestoreError(
                    f"no copy of {statepoint.id} can be made: {error}",
                    code="restore-no-copy",
                    state="nothing was changed",
                    remedy="free disk space, then: planarian drill",
                ) from error
            raise
        return standby

    def _live(self) -> None:
        """Hold the lock that tells others that this runtime's copies are in use."""
        with self._guard:
            if self._claim < 0:
                self._claim = os.open(self._lock(self.runtime), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                fcntl.flock(self._claim, fcntl.LOCK_EX)

    def _lock(self, runtime: str) -> Path:
        return self._home / "locks" / f"{runtime}.runtime"

    # --- using ---

    def copies(self, statepoint_id: str = "") -> list[Standby]:
        """This runtime's copies that are ready, of one statepoint or of all."""
        with self._guard:
            return [s for s in self._ready.values() if not statepoint_id or s.statepoint_id == statepoint_id]

    def take(self, source: SandboxRecord, statepoint: Statepoint) -> Standby | None:
        """A valid copy that nobody else gets, with its processes still frozen; the caller hands it over or drops it.

        One that is no longer what its statepoint says (its base changed, its processes are gone) is dropped.
        """
        while True:
            with self._guard:
                found = next((s for s in self._ready.values() if s.statepoint_id == statepoint.id), None)
                if found is None:
                    return None
                del self._ready[found.id]
            if self._valid(found, source):
                return found
            self.drop(found)

    def _valid(self, standby: Standby, source: SandboxRecord) -> bool:
        spec, live = standby.record.spec, standby.record.live
        same = replace(source.spec, id=spec.id, layer=spec.layer) == spec
        sandbox = self._plugins.sandbox(spec.backend)
        if not same or standby.record.base != sandbox.fingerprint(spec):
            return False
        return Path(spec.layer).is_dir() if live is None else sandbox.alive(spec, live)

    def wake(self, standby: Standby) -> LiveSandbox | None:
        """Let a taken copy's processes run; None where there are none, and they have to be started."""
        live = standby.record.live
        sandbox = self._plugins.sandbox(standby.record.spec.backend)
        if live is not None and isinstance(sandbox, Wakes):
            sandbox.wake(standby.record.spec, live)
        return live

    def remnant(self, record: SandboxRecord) -> Standby:
        """What a sandbox leaves when it takes a copy over: its old layer and processes, to be dropped as a copy is."""
        self._live()
        return Standby("", self.runtime, replace(record, spec=replace(record.spec, id=new_id("sb"))))

    # --- removing ---

    def tidy(self) -> None:
        """Remove what sandboxes left when they took copies over, and copies that could not be removed before."""
        for standby in self._registry.standbys.all().values():
            if standby.runtime == self.runtime and not standby.statepoint_id:
                with suppress(PlanarianError):  # the next time, or by whoever opens the home after us
                    self.drop(standby)

    def drop(self, standby: Standby) -> None:
        """End a copy that the caller has taken, or made, and remove it. Idempotent.

        One that can't be removed (its file system is gone for now) is a copy of nothing, for :meth:`tidy`.
        """
        record = standby.record
        try:
            self._sandboxes.clear(record)  # without ``live`` it finds what a killed runtime could not record
        except PlanarianError:
            self._registry.standbys.put(standby.id, replace(standby, statepoint_id="", ready=False))
            raise
        self._registry.standbys.remove(standby.id)

    def spare(self, standby: Standby) -> None:
        """Drop a copy unless somebody has taken it meanwhile."""
        with self._guard:
            if self._ready.pop(standby.id, None) is None:
                return
        self.drop(standby)

    def sweep(self) -> int:
        """Remove the copies of runtimes that are gone; how many there were."""
        removed = 0
        for runtime in {standby.runtime for standby in self._registry.standbys.all().values()} - {self.runtime}:
            with self._if_dead(runtime) as dead:
                if not dead:
                    continue
                removed += self._drop_all(runtime)
        return removed

    def _drop_all(self, runtime: str) -> int:
        """Remove the copies of a runtime whose lock is ours, and the lock; how many could be removed.

        The others, on a file system that is gone for now, stay for whoever opens the home next.
        """
        copies = [s for s in self._registry.standbys.all().values() if s.runtime == runtime]
        removed = 0
        for standby in copies:
            with suppress(PlanarianError):
                self.drop(standby)
                removed += 1
        if removed == len(copies):
            self._lock(runtime).unlink(missing_ok=True)
        return removed

    @contextmanager
    def _if_dead(self, runtime: str) -> Iterator[bool]:
        """Whether a runtime is gone: then its lock is held meanwhile, so that one of us alone clears up."""
        descriptor = os.open(self._lock(runtime), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Drop all copies of this runtime."""
        self._drop_all(self.runtime)
        with self._guard:
            self._ready.clear()
            if self._claim >= 0:
                os.close(self._claim)
                self._claim = -1


def _given_up(statepoint: Statepoint) -> LineageError:
    return LineageError(
        f"{statepoint.id} was pruned or removed meanwhile",
        code="statepoint-not-committed",
        state="nothing was changed",
        remedy="planarian log",
    )
