"""What a restored tree needs so that its next image can be an increment (paper, Algorithm 1).

A restored process has every page marked as written, and it is younger than its image, so CRIU takes it for another one
of the same pid. Before it runs on, the marks are cleared, and a moment after its start is waited for: the boundary
between the restored processes and whatever is started later, even with the same pid. The image that the next one is
built on is then said to be of that moment (:func:`planarian_process.criu_chain.inherit`).
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from planarian_core.errors import CaptureError
from planarian_process.criu_increments import Origin, start_ticks
from planarian_process.criu_members import Members, members
from planarian_process.criu_tasks import inside_pids, tree_of

_SOFT_DIRTY = "4"
_TICKS = os.sysconf("SC_CLK_TCK")


class Epoch:
    """One restore's. Without ``wanted`` nothing is done."""

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        self._uptime = 0
        self._members: Members = {}
        self._trouble = "the restore did not get that far"

    def begin(self, init: int) -> None:
        """Begin it for the tree below ``init``, nothing of which runs yet. It never fails: without it the next image is
        full.
        """
        if self.wanted:
            try:
                self._uptime = _begin(init)
                self._members = members(inside_pids(init).items())
                self._trouble = ""
            except (OSError, CaptureError) as failure:
                self._trouble = f"the restored processes' marks could not be cleared: {failure}"

    def origin(self, restored: Origin) -> Origin:
        """What the tree's next image can be built on, which was restored from ``restored``."""
        if not self.wanted:
            return restored
        return (
            Origin(broken=self._trouble)
            if self._trouble
            else replace(restored, uptime=self._uptime, members=self._members)
        )


def _begin(init: int) -> int:
    """Clear the marks, wait until whatever starts from now on starts later than all of the tree; that moment, in
    microseconds after the boot.
    """
    latest = 0
    for process in tree_of(init):
        Path(f"/proc/{process}/clear_refs").write_text(_SOFT_DIRTY)
        for thread in os.listdir(f"/proc/{process}/task"):
            latest = max(latest, start_ticks(process, int(thread)))
    while _now() <= latest:
        time.sleep(0.001)
    return (latest + 1) * 1_000_000 // _TICKS


def _now() -> int:
    """Clock ticks since the boot, as the kernel counts them for starts of processes."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) * _TICKS // 1_000_000_000
