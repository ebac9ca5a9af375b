"""A command in a sandbox that can be cancelled."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from functools import partial

from planarian_autogen.turns import in_thread
from planarian_core import Sandbox
from planarian_core.errors import PlanarianError
from planarian_core.model import CommandResult

_RUN = "PLANARIAN_RUN"
"""Marks what a command started, so that it can be ended when the command is cancelled."""
_END = """
grep -lF -- "$1" /proc/[0-9]*/environ 2>/dev/null | while IFS=/ read -r _ _ pid _; do kill -KILL "$pid"; done
"""
_BETWEEN_ENDINGS = 0.2


async def run_command(
    sandbox: Sandbox,
    command: str | Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str] | None,
    stdin: str,
    timeout: float | None,
    output_limit: int,
) -> CommandResult:
    """:meth:`planarian_core.Sandbox.run` as a coroutine. Cancelled, it ends, with all that it started; only then is the
    caller cancelled. Where there is no ``/proc`` (macOS) it is waited for instead.
    """
    mark = secrets.token_hex(16)
    marked = {**(env or {}), _RUN: mark}

    def work() -> CommandResult:
        return sandbox.run(command, cwd=cwd, env=marked, stdin=stdin, timeout=timeout, output_limit=output_limit)

    return await in_thread(work, partial(_end, sandbox, mark))


async def _end(sandbox: Sandbox, mark: str, running: asyncio.Future[CommandResult]) -> None:
    """End what carries a mark, until the call of it is over: it may only just be about to begin."""
    while not running.done():
        try:
            await in_thread(partial(sandbox.run, ["sh", "-c", _END, "sh", mark], timeout=60))
        except PlanarianError:
            return  # the sandbox is gone: the call ends by itself, and says so
        await asyncio.wait([running], timeout=_BETWEEN_ENDINGS)
