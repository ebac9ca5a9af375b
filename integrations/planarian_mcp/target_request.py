"""A request to a target server that is under way."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from typing import Any

import anyio

from planarian_core.errors import RemoteError
from planarian_mcp.pipe_requests import Lost
from planarian_mcp.wire import Raw

OnProgress = Callable[[Mapping[str, Any]], None]
UNKNOWN_END = "the call may have had its effect; the next call, snapshot or rollback finds out"
"""What is true when an answer didn't come."""


class TargetRequest:
    """To be waited for once: with :meth:`result` in a thread, or with :meth:`answer` in the event loop.

    Both give the result, and raise MCPError (the server's own error) or RemoteError: ``service-unreachable`` (lost on
    the way, or no answer in time), ``call-cancelled``.
    """

    def __init__(
        self,
        future: Future[Raw],
        timeout: float,
        unreachable: Callable[[str, str], RemoteError],
        on_progress: OnProgress | None,
    ) -> None:
        """``timeout``: seconds, from the last sign of life; ``unreachable`` makes the error from why and state."""
        self._future = future
        self._timeout = timeout
        self._unreachable = unreachable
        self._on_progress = on_progress
        self._until = time.monotonic() + timeout

    # --- waiting ---

    def result(self) -> Raw:
        while not self._future.done() and (left := self._left()) > 0:
            try:
                self._future.result(left)
            except TimeoutError:
                continue
            except Exception:  # how it ended: see there
                break
        return self._ended()

    async def answer(self) -> Raw:
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        self._future.add_done_callback(lambda _: loop.call_soon_threadsafe(done.set))
        try:
            while not self._future.done() and (left := self._left()) > 0:
                with anyio.move_on_after(left):
                    await done.wait()
            return self._ended()
        finally:
            self.cancel()

    def _left(self) -> float:
        return min(self._until - time.monotonic(), threading.TIMEOUT_MAX)

    def _ended(self) -> Raw:
        if not self._future.done():
            self.cancel()
            raise self._unreachable(f"no answer within {self._timeout:g} s", UNKNOWN_END)
        try:
            return self._future.result()
        except Lost as error:
            raise self._unreachable(str(error), UNKNOWN_END) from error
        except CancelledError as error:
            raise RemoteError("the harness cancelled the call", code="call-cancelled", state=UNKNOWN_END) from error

    def cancel(self) -> None:
        """Don't wait for it any more: it is cancelled at the server, too. From any thread; nothing where it ended."""
        self._future.cancel()

    # --- signs of life ---

    def lives(self) -> None:
        """The time that it may take begins anew."""
        self._until = time.monotonic() + self._timeout

    def wait_on(self) -> None:
        """It may take any time, until the next :meth:`lives`."""
        self._until = float("inf")

    def progressed(self, progress: Mapping[str, Any]) -> None:
        """It told of its progress; whoever waits for that hears it, in the order in which it came."""
        self.lives()
        if self._on_progress is not None:
            self._on_progress(progress)
