"""Calls of one environment take turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from weakref import WeakKeyDictionary

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
