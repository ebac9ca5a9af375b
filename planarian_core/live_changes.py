"""How the files of a sandbox differ from a statepoint, found out without changing anything."""

from __future__ import annotations

from planarian_core.interfaces import ProvesUnchanged
from planarian_core.model import SandboxRecord, Statepoint
from planarian_core.sandbox_manager import layer_of
from planarian_core.statepoint_manager import StatepointManager


def changed_files(
    statepoints: StatepointManager, record: SandboxRecord, statepoint: Statepoint
) -> tuple[int | None, tuple[str, ...]]:
    """How many files differ, and a sample of their names inside; None where only that they may is known.

    The caller holds the sandbox's exclusive lock.

    Raises:
        RestoreError: the statepoint's files are damaged or gone.
    """
    assert statepoint.files is not None
    filesystem = statepoints.plugins.filesystem(statepoint.files.backend)
    if isinstance(filesystem, ProvesUnchanged) and filesystem.unchanged(layer_of(record.spec), statepoint.files):
        return 0, ()
    destination = statepoints.by_files(record, statepoint)
    try:
        return destination.changed(record)
    finally:
        destination.finish()
