"""Snapshot policies: when adapters take statepoints by themselves, and the count of tool calls that they go by.

``every-call``, ``every:N`` (calls), ``on-change`` (only when something changed since the head), ``milestones`` (named
ones and the end) or ``manual``. A plugin's ``planarian_should_snapshot`` comes first, then the sandbox's own policy,
then the home's.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from planarian_core.errors import ConfigurationError

TOOL_CALL = "tool-call"
"""The trigger after each tool call; the others are ``milestone:NAME`` and ``submit``."""

_POLICY = re.compile(r"every-call|every:[1-9]\d{0,8}|on-change|milestones|manual")


class Verdict(StrEnum):
    """What a policy says of one moment."""

    TAKE = "take"
    TAKE_IF_CHANGED = "take-if-changed"
    """Unless it is proven that nothing changed since the head."""
    SKIP = "skip"


def check_policy(policy: str) -> None:
    """ConfigurationError unless ``policy`` is one."""
    if not _POLICY.fullmatch(policy):
        raise ConfigurationError(
            f"policy {policy!r} is unknown",
            code="policy-unknown",
            remedy="one of: every-call, every:N, on-change, milestones, manual",
        )


def verdict(policy: str, trigger: str, calls: int) -> Verdict:
    """What ``policy`` says at ``trigger``, ``calls`` tool calls after the last statepoint."""
    if policy == "manual":
        return Verdict.SKIP
    if policy == "on-change":
        return Verdict.TAKE if trigger.startswith("milestone:") else Verdict.TAKE_IF_CHANGED
    if trigger != TOOL_CALL or policy == "every-call":
        return Verdict.TAKE
    if policy.startswith("every:"):
        return Verdict.TAKE if calls >= int(policy.removeprefix("every:")) else Verdict.SKIP
    return Verdict.SKIP


class CallCounter:
    """Counts the tool calls of sandboxes since their last statepoint, whichever processes make them.

    A file per sandbox, one byte longer with each call: appending needs no lock and is not waited for. A count is not
    worth a call: one that can't be written, or is lost in a power cut, is left out.
    """

    def __init__(self, home: Path) -> None:
        self._home = home

    def _file(self, sandbox_id: str) -> str:
        return f"{self._home}/sandboxes/{sandbox_id}/calls"

    def add(self, sandbox_id: str) -> None:
        with suppress(OSError):
            fd = os.open(self._file(sandbox_id), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, b".")
            finally:
                os.close(fd)

    def count(self, sandbox_id: str) -> int:
        try:
            return os.stat(self._file(sandbox_id)).st_size
        except OSError:
            return 0

    def reset(self, sandbox_id: str) -> None:
        """Begin anew: a statepoint was taken or gone back to. The caller holds the sandbox's exclusive lock."""
        with suppress(OSError):
            os.unlink(self._file(sandbox_id))
