"""Calls of one thread take turns, those of threads and of coroutines alike."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager

from planarian_core.errors import SandboxError
from planarian_core.locks import Held, SandboxLock

_BETWEEN_TRIES = 0.02


class Turns:
    """Who asks first comes first, in this process; other processes of the host wait too. Nobody who waits holds a
    thread of an event loop's, and whoever gives up waiting keeps nobody else from their turn.

    Args:
        lock: what other processes see of a turn.
        timeout: seconds that their turns are waited for.
    """

    def __init__(self, lock: Callable[[str], SandboxLock], timeout: float) -> None:
        self._lock, self._timeout = lock, timeout
        self._guard = threading.Lock()
        self._queues: dict[str, deque[Future[None]]] = {}

    @contextmanager
    def turn(self, key: str) -> Iterator[None]:
        """Have ``key`` alone.

        Raises:
            SandboxError: ``sandbox-busy``: another process has it.
        """
        mine = self._queued(key)
        try:
            mine.result()
            with self._lock(key).acquire(exclusive=True, timeout=self._timeout):
                yield
        finally:
            self._leave(key, mine)

    @asynccontextmanager
    async def aturn(self, key: str) -> AsyncIterator[None]:
        """:meth:`turn` for coroutines."""
        mine = self._queued(key)
        try:
            await asyncio.wrap_future(mine)
            with await self._locked(key):
                yield
        finally:
            self._leave(key, mine)

    async def _locked(self, key: str) -> Held:
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                return self._lock(key).acquire(exclusive=True, timeout=0)
            except SandboxError:
                if time.monotonic() >= deadline:
                    raise
            await asyncio.sleep(_BETWEEN_TRIES)

    def _queued(self, key: str) -> Future[None]:
        mine: Future[None] = Future()
        with self._guard:
            queue = self._queues.setdefault(key, deque())
            queue.append(mine)
            if queue[0] is mine:
                mine.set_result(None)
        return mine

    def _leave(self, key: str, mine: Future[None]) -> None:
        """Whoever has the turn, or waits for it, is done with it: the first of the others has it now."""
        with self._guard:
            queue = self._queues[key]
            queue.remove(mine)
            if not queue:
                del self._queues[key]
            elif not queue[0].done() and queue[0].set_running_or_notify_cancel():
                queue[0].set_result(None)
