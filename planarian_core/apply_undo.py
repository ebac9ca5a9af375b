"""Taking an application back, whoever asks for it: the user, a failure, a crash; and what applying shares with that."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from planarian_core.applied_changes import Undone
from planarian_core.applied_store import AppliedStore
from planarian_core.apply_writing import mark_of
from planarian_core.directory_tree import DirectoryTree
from planarian_core.errors import ConfigurationError, LineageError, PlanarianError, RestoreError
from planarian_core.faults import reach
from planarian_core.locks import Held, SandboxLock
from planarian_core.model import Application, new_id
from planarian_core.registry import Operation
from planarian_core.statepoint_manager import StatepointManager

LAST = "last"
"""Names the newest application of a sandbox."""


class Undoer:
    """Takes applications back. The caller holds the sandbox's exclusive lock."""

    def __init__(self, manager: StatepointManager) -> None:
        self.manager = manager
        self.registry = manager.registry

    def find(self, sandbox_id: str, reference: str) -> Application:
        """An application by its id, or the last one of a sandbox."""
        every = self.registry.applications.all()
        own = [one for one in every.values() if one.sandbox_id == sandbox_id]
        found = (own[-1] if own else None) if reference == LAST else every.get(reference)
        if found is None or found.sandbox_id != sandbox_id:
            known = ", ".join(one.id for one in own[-8:]) or "none"
            raise LineageError(
                f"no application of {sandbox_id} is called {reference!r}; there are: {known}",
                code="application-unknown",
                remedy="planarian apply prints its id",
            )
        return found

    def undo(self, application: Application, *, skip_conflicts: bool) -> Undone:
        """Put back what an application replaced."""
        workspace = checked(application.workspace)
        store = AppliedStore(self.manager.home, application.id)
        with alone(self.manager):
            with DirectoryTree(workspace) as ours:
                changed = store.conflicts(ours)
            if changed and not skip_conflicts:
                raise RestoreError(
                    f"changed in the workspace since they were applied: {', '.join(changed[:8])}",
                    code="undo-conflict",
                    state="nothing was put back",
                    remedy=f"planarian apply --undo {application.id} --skip-conflicts leaves those as they are",
                )
            operation = journal(self.manager, application, "undoing")
            reach("apply.undoing")
            try:
                done = store.put_back(workspace, mark_of(application.id))
            except Exception as error:
                raise_clearly(
                    error, "apply-unfinished", "some of it is put back, the rest is kept: planarian recover goes on"
                )
            reach("apply.undone")
            self._forget(operation, store)
        return Undone(application.id, str(workspace), tuple(done.back), tuple(done.kept))

    def _forget(self, operation: Operation, store: AppliedStore) -> None:
        self.registry.applications.remove(store.id)
        self.registry.end(operation)
        store.discard()

    def finish(self, operation: Operation) -> str:
        """Finish what a killed runtime left; returns what became of it."""
        store = AppliedStore(self.manager.home, operation.details["application"])
        with alone(self.manager, 0):
            if operation.phase == "begun":
                self.registry.end(operation)
                store.discard()
                return "nothing had been written to the workspace"
            if operation.phase != "undoing" and self.registry.applications.get(store.id) is not None:
                self.registry.end(operation)
                return f"the changes were applied ({store.id})"
            workspace = Path(operation.details["workspace"])
            try:
                done = store.put_back(workspace, mark_of(store.id))
            except OSError as error:
                raise_clearly(error, "apply-unfinished", f"what was replaced is kept in {store.folder}")
            if done.kept and operation.phase != "undoing":
                self.registry.end(operation)
            else:
                self._forget(operation, store)
            return f"{workspace} is as it was before{kept_words(done.kept, store)}"


def finish(manager: StatepointManager, operation: Operation) -> str:
    """Finish an application, or the taking back of one, that a killed runtime left. The caller holds the lock."""
    return Undoer(manager).finish(operation)


def journal(manager: StatepointManager, application: Application, phase: str = "begun") -> Operation:
    """The journal's entry for an application, or for taking it back."""
    details = {"application": application.id, "workspace": application.workspace}
    made = Operation(new_id("op"), "apply", application.sandbox_id, application.statepoint_id, phase, details=details)
    return manager.registry.begin(made)


def alone(manager: StatepointManager, timeout: float | None = None) -> Held:
    """The right to write to workspaces, which one application has at a time; ``timeout`` as configured if None."""
    lock = SandboxLock(manager.home / "locks", "applications")
    return lock.acquire(exclusive=True, timeout=manager.sandboxes.config.lock_timeout if timeout is None else timeout)


def checked(workspace: str) -> Path:
    """The workspace, if it is still the directory that it was."""
    if os.path.realpath(workspace) == workspace and os.path.isdir(workspace):
        return Path(workspace)
    raise ConfigurationError(
        f"the workspace {workspace} is gone, or a symbolic link now",
        code="workspace-missing",
        state="nothing was written",
        remedy="put it back first",
    )


def kept_words(kept: Sequence[str], store: AppliedStore) -> str:
    if not kept:
        return ""
    return f", but for what somebody changed meanwhile: {', '.join(kept[:8])} (what was there: {store.folder})"


def raise_clearly(error: BaseException, code: str, state: str) -> NoReturn:
    """An error that says where things stand; our own keep their words."""
    if isinstance(error, PlanarianError) or not isinstance(error, Exception):
        if isinstance(error, PlanarianError):
            error.state = state
        raise error
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    raise RestoreError(
        f"the workspace can't be written: {error}",
        code=code,
        state=state,
        remedy="free disk space, then try again" if full else "mend the cause, then try again",
    ) from error
