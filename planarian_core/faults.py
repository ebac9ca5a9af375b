"""Named fault points, as CRIU has them: the crash suite kills or fails the runtime at each of them.

A point does nothing unless ``PLANARIAN_FAULT`` names it: ``snapshot.files=kill`` (SIGKILL to this process),
``snapshot.files=fail`` (an OSError, ENOSPC) or ``snapshot.files=stop`` (SIGSTOP, to look at a state from outside).
"""

from __future__ import annotations

import errno
import os
import signal

POINTS: tuple[str, ...] = (
    "create.begun",
    "create.started",
    "snapshot.begun",
    "snapshot.prepared",
    "snapshot.files",
    "snapshot.remote",
    "snapshot.captured",
    "snapshot.durable",
    "snapshot.committed",
    "rollback.begun",
    "rollback.staged",
    "rollback.stopped",
    "rollback.compensated",
    "rollback.switched",
    "rollback.restored",
    "rollback.committed",
    "restore.begun",
    "restore.safe",
    "restore.half",
    "restore.written",
    "restore.committed",
    "apply.begun",
    "apply.saved",
    "apply.half",
    "apply.written",
    "apply.recorded",
    "apply.committed",
    "apply.undoing",
    "apply.undone",
    "remove.begun",
    "remove.dropped",
    "promote.begun",
    "promote.shared",
    "prune.marked",
    "prune.dropped",
    "prune.collected",
    "fork.begun",
    "fork.staged",
    "fork.switched",
    "fork.restored",
    "fork.committed",
    "call.begun",
    "call.done",
    "call.recorded",
    "branch.kept",
    "declared.called",
    "declared.step",
    "compensate.begun",
    "compensate.between",
    "compensate.done",
    "sqlite.written",
    "sqlite.committed",
    "zfs.begun",
    "zfs.made",
    "zfs.captured",
    "zfs.staged",
    "zfs.switched",
    "pool.made",
    "pool.named",
    "pool.extended",
    "pool.unmounted",
    "export.begun",
    "export.written",
    "export.committed",
    "import.begun",
    "import.unpacked",
    "import.captured",
    "import.committed",
    "search.entered",
    "search.acted",
    "search.kept",
    "search.saved",
    "search.proposed",
    "search.released",
    "checkpoint.taken",
    "checkpoint.saved",
    "standby.begun",
    "standby.staged",
    "standby.restored",
    "standby.woken",
)


def reach(point: str) -> None:
    """Pass the fault point ``point``; raises KeyError for one that isn't in :data:`POINTS`."""
    chosen = os.environ.get("PLANARIAN_FAULT")
    if not chosen:
        return
    if point not in POINTS:
        raise KeyError(f"{point} is not a fault point")
    name, _, action = chosen.partition("=")
    if name != point:
        return
    if action == "fail":
        raise OSError(errno.ENOSPC, f"fault point {point}")
    os.kill(os.getpid(), signal.SIGSTOP if action == "stop" else signal.SIGKILL)
