"""Calls of one environment take turns, and what works in a thread is never left alone by a cancelled caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from anyio import to_thread

T = TypeVar("T")

_held: ContextVar[frozenset[str]] = ContextVar("planarian_autogen_held", default=frozenset())
_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Lock]] = WeakKeyDictionary()


@asynccontextmanager
async def turn(key: str) -> AsyncIterator[None]:
    """Have ``key`` alone among the tasks of this event loop. Within a turn, in tasks that it starts too, another one of
    the same key is part of it: a tool may run an agent whose tools work in the same environment.
    """
    if key in _held.get():
        yield
        return
    lock = _locks.setdefault(asyncio.get_running_loop(), {}).setdefault(key, asyncio.Lock())
    async with lock:
        token = _held.set(_held.get() | {key})
        try:
            yield
        finally:
            _held.reset(token)


async def in_thread(
    work: Callable[[], T], on_cancel: Callable[[asyncio.Future[T]], Coroutine[Any, Any, None]] | None = None
) -> T:
    """Do blocking work in a thread. A caller that is cancelled waits until it has ended, and only then is cancelled: no
    work goes on beside what comes next.

    Args:
        on_cancel: what makes it end sooner; gets the work's future.
    """
    running = asyncio.ensure_future(to_thread.run_sync(work))
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


def being_cancelled() -> bool:
    """Whether the caller's task itself is being cancelled, and not only what it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
