"""Leaves a tree that comes back to life frozen, by its version 2 control group."""

from __future__ import annotations

import os
import time
from pathlib import Path

from planarian_process.criu_rpc import Worker

_PATIENCE = 10.0


def freeze(group: str, worker: Worker) -> None:
    """Freeze what ``worker`` has made and holds stopped, but not the worker, which then has to let go of it.

    Raises:
        OSError: the group can't be frozen.
    """
    worker.move(_own_group(group))
    Path(group, "cgroup.freeze").write_text("1")
    deadline = time.monotonic() + _PATIENCE
    while "frozen 1" not in Path(group, "cgroup.events").read_text().splitlines():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{group} does not freeze")
        time.sleep(0.0005)


def _own_group(group: str) -> str:
    """The group that we are in ourselves, in the hierarchy of ``group``."""
    top = group
    while not os.path.ismount(top):
        top = os.path.dirname(top)
    own = next(line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    if own.startswith("/.."):
        raise OSError(f"our own control group {own} is out of reach here")
    return os.path.join(top, own.lstrip("/"))
