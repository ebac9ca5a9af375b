"""What a process backend asks of a sandbox's control groups, whichever backend made them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from planarian_core.errors import CaptureError


def refuse_frozen(groups: Iterable[str]) -> None:
    """CaptureError when one of a sandbox's control groups is frozen: a checkpoint would wait for ever."""
    for group in groups:
        with contextlib.suppress(OSError):  # version 1 has no such file
            if Path(group, "cgroup.freeze").read_text().strip() == "1":
                raise CaptureError(
                    f"the sandbox stands still: its control group {group} is frozen",
                    state="nothing was captured; it goes on standing still",
                    remedy=f"let it run: write 0 to {group}/cgroup.freeze",
                )
