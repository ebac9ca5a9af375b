"""The runtime for coroutines: blocking work in threads, which a caller that is cancelled never leaves alone."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from planarian_core.errors import PlanarianError
from planarian_core.model import CommandResult

if TYPE_CHECKING:
    from planarian_core.sandbox import Sandbox

T = TypeVar("T")

_RUN = "PLANARIAN_RUN"
"""Marks what a command started, so that it can be ended when the command is cancelled."""
_END = """
grep -lF -- "$1" /proc/[0-9]*/environ 2>/dev/null | while IFS=/ read -r _ _ pid _; do kill -KILL "$pid"; done
"""
_BETWEEN_ENDINGS = 0.2


@cache
def _threads(purpose: str) -> ThreadPoolExecutor:
    """What ends commands has threads of its own: the others may all wait for commands to end."""
    return ThreadPoolExecutor(max_workers=64 if purpose == "work" else 4, thread_name_prefix=f"planarian-{purpose}")


async def in_thread(
    work: Callable[[], T], on_cancel: Callable[[asyncio.Future[T]], Coroutine[Any, Any, None]] | None = None
) -> T:
    """Do blocking work in a thread. A caller that is cancelled waits until it has ended, and only then is cancelled: no
    work goes on beside what comes next.

    Args:
        on_cancel: what makes it end sooner; gets the work's future.
    """
    return await _to_its_end(_begun(work, "work"), on_cancel)


def _begun(work: Callable[[], T], purpose: str) -> asyncio.Future[T]:
    return asyncio.get_running_loop().run_in_executor(_threads(purpose), partial(copy_context().run, work))


async def _to_its_end(
    running: asyncio.Future[T], on_cancel: Callable[[asyncio.Future[T]], Coroutine[Any, Any, None]] | None = None
) -> T:
    ending: asyncio.Future[None] | None = None
    cancelled = False
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError:
            cancelled = True
            if on_cancel is not None and ending is None:
                ending = asyncio.ensure_future(on_cancel(running))
    if cancelled:
        if ending is not None:
            await asyncio.wait([ending])
        if not running.cancelled():
            running.exception()  # seen, so that asyncio doesn't complain
        raise asyncio.CancelledError
    return running.result()


async def run_command(
    sandbox: Sandbox,
    command: str | Sequence[str],
    *,
    cwd: str = "",
    env: Mapping[str, str] | None = None,
    stdin: str = "",
    timeout: float | None = None,
    output_limit: int = 1024 * 1024,
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
            await _to_its_end(_begun(partial(sandbox.run, ["sh", "-c", _END, "sh", mark], timeout=60), "endings"))
        except PlanarianError:
            return  # the sandbox is gone: the call ends by itself, and says so
        await asyncio.wait([running], timeout=_BETWEEN_ENDINGS)


def being_cancelled() -> bool:
    """Whether the caller's task itself is being cancelled, and not only what it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
