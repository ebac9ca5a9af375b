"""Finishes what a killed runtime left behind: the journal's entries whose owner is gone.

An operation holds its sandbox's exclusive lock from beginning to end, and the kernel drops the lock of a dead process.
So an entry whose lock can be had is nobody's, and may be finished here; one whose lock is held is under way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from planarian_core.errors import LineageError, PlanarianError, SandboxError
from planarian_core.interfaces import RunningSandbox, Thaws
from planarian_core.model import SandboxRecord, Status
from planarian_core.registry import Operation, Registry
from planarian_core.sandbox_manager import SandboxManager
from planarian_core.statepoint_manager import StatepointManager


@dataclass(frozen=True)
class Recovered:
    """One journal entry and what became of it; ``error`` is empty when it was finished."""

    operation: str
    sandbox_id: str
    result: str
    error: str = ""


class Recovery:
    """Finishes journaled operations; each step may itself be cut off and be repeated by the next."""

    def __init__(
        self, registry: Registry, sandboxes: SandboxManager, statepoints: StatepointManager, *, files_only: bool = False
    ) -> None:
        """``files_only``: let processes start anew where a rollback is to be finished."""
        self.files_only = files_only
        self.registry = registry
        self.sandboxes = sandboxes
        self.statepoints = statepoints

    def run(self) -> list[Recovered]:
        """Finish all that can be finished now. Snapshots first: a rollback's safety statepoint is one of them."""
        done: list[Recovered] = []
        for operation in sorted(self.registry.operations(), key=lambda o: o.kind != "snapshot"):
            try:
                held = self.sandboxes.lock(operation.sandbox_id).acquire(exclusive=True, timeout=0)
            except SandboxError:
                continue  # under way in another process
            with held:
                if all(left.id != operation.id for left in self.registry.operations(operation.sandbox_id)):
                    continue  # it ended while we asked for the lock
                try:
                    result = self._finish(operation)
                    done.append(Recovered(operation.kind, operation.sandbox_id, result))
                except PlanarianError as error:
                    done.append(Recovered(operation.kind, operation.sandbox_id, "left as it is", str(error)))
        return done

    def _finish(self, operation: Operation) -> str:
        if operation.kind == "snapshot":
            return self._snapshot(operation)
        if operation.kind == "rollback":
            return self._rollback(operation)
        if operation.kind == "prune":
            from planarian_core.reclaim import Reclaimer  # each of these only where something is left of it

            return Reclaimer(self.statepoints).finish(operation)
        if operation.kind == "import":
            from planarian_core import bundle_reading  # it needs a compression library that few recoveries do

            bundle_reading.clear(self.sandboxes, operation)
            return "nothing was imported"
        if operation.kind == "restore":
            from planarian_core import restore_paths

            return restore_paths.finish(self.statepoints, operation)
        if operation.kind == "apply":
            from planarian_core import apply_undo

            return apply_undo.finish(self.statepoints, operation)
        return self._remove_unborn(operation)

    def _snapshot(self, operation: Operation) -> str:
        """A statepoint that was not committed never existed; the sandbox runs on."""
        record = self.registry.sandbox(operation.sandbox_id)
        self.thaw(record)
        try:
            statepoint = self.registry.statepoint(operation.statepoint_id)
        except LineageError:
            self.registry.end(operation)
            return "nothing had been begun"
        if statepoint.status is Status.COMMITTED:
            self.registry.end(operation)
            return f"{statepoint.id} was committed"
        self.statepoints.drop_artefacts(record, statepoint)
        self.registry.discard(statepoint, "the runtime was killed during the snapshot", operation)
        return f"{statepoint.id} was discarded"

    def thaw(self, record: SandboxRecord) -> None:
        """Let a sandbox run on that a killed runtime had stopped for an instant."""
        if record.live is None:
            return
        plugins = self.sandboxes.plugins
        stopped = RunningSandbox.of(plugins.sandbox(record.spec.backend), record.spec, record.live)
        for backend in (plugins.process(record.process), plugins.process("none")):
            if isinstance(backend, Thaws):
                backend.thaw(stopped)

    def _rollback(self, operation: Operation) -> str:
        record = self.registry.sandbox(operation.sandbox_id)
        operation = replace(operation, files_only=operation.files_only or self.files_only)
        if operation.phase in ("begun", "safe"):
            self.registry.end(operation)
            return "the rollback had changed nothing"
        statepoint = self.registry.statepoint(operation.statepoint_id)
        # What runs now, if anything, was begun by the dead runtime and is known to nobody.
        self.sandboxes.plugins.sandbox(record.spec.backend).stop(record.spec, record.live)
        self.sandboxes.plugins.sandbox(record.spec.backend).stop(record.spec, None)
        record = replace(record, live=None)
        self.registry.update_sandbox(record)
        try:
            self.statepoints.check_restorable(record, statepoint, files_only=operation.files_only)
            destination = self.statepoints.by_files(record, statepoint, files_only=operation.files_only)
        except PlanarianError:
            if operation.safety_id is None:
                raise
            self.statepoints.return_to_safety(operation, record)
            return f"the rollback to {statepoint.id} was undone"
        try:
            self.statepoints.go_back(operation, record, statepoint, destination)
        finally:
            destination.finish()
        return f"the rollback to {statepoint.id} was finished"

    def _remove_unborn(self, operation: Operation) -> str:
        """A sandbox whose creation, fork or removal was cut off is removed; a fork's source was not touched."""
        try:
            record = self.registry.sandbox(operation.sandbox_id)
        except LineageError:
            self.registry.end(operation)
        else:
            self.sandboxes.plugins.sandbox(record.spec.backend).stop(record.spec, None)
            self.statepoints.remove(record, operation)
        return f"{operation.sandbox_id} was removed"
