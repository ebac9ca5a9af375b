"""Per-sandbox locks: tool calls share, snapshot and rollback exclude (paper, section 6.3).

``flock`` files in the home. The *gate* is passed on the way in and held while one waits for the *main* lock, so that
a waiting snapshot holds new tool calls back instead of starving behind them. The kernel drops a dead process's locks.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from planarian_core.errors import SandboxError

_FIRST_WAIT, _LONGEST_WAIT = 0.0005, 0.02


class Held:
    """A lock that is held until :meth:`release`; usable from any thread. Also a context manager."""

    def __init__(self, lock: SandboxLock, fd: int, *, exclusive: bool) -> None:
        self._lock = lock
        self._fd: int | None = fd
        self.exclusive = exclusive

    def release(self) -> None:
        """Let go. Idempotent."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    @contextmanager
    def upgraded(self, timeout: float | None = None) -> Iterator[None]:
        """Exclude others for a while, then share again. Between the two another holder may have had its turn.

        Raises:
            SandboxError: ``sandbox-busy`` at once when another sharer is upgrading: were both to let go of their
                share, each would see the other's call as ended.
        """
        with self._lock.upgrading():
            self.release()
            try:
                with self._lock.acquire(exclusive=True, timeout=timeout):
                    yield
            finally:
                again = self._lock.acquire(exclusive=False, timeout=timeout)
                self._fd, again._fd = again._fd, None

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


class SandboxLock:
    """The lock of one sandbox in one home."""

    def __init__(self, directory: Path, sandbox_id: str) -> None:
        self.sandbox_id = sandbox_id
        place = f"{directory}/{sandbox_id}"  # text: a lock is made for each tool call
        self._main, self._gate, self._upgrade = f"{place}.lock", f"{place}.gate", f"{place}.upgrade"

    def acquire(self, *, exclusive: bool, timeout: float | None = None) -> Held:
        """Wait for the lock and hold it.

        Args:
            exclusive: keep everybody else out (snapshot, rollback), or share (tool calls).
            timeout: seconds; None waits for ever, 0 tries once.

        Raises:
            SandboxError: ``sandbox-busy`` after the timeout.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        mode = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        gate = self._wait(self._gate, mode, deadline)
        try:
            return Held(self, self._wait(self._main, mode, deadline), exclusive=exclusive)
        finally:
            os.close(gate)

    def remove(self) -> None:
        """Take the files away, of a sandbox that is no more: whoever waits for them finds it unknown. Idempotent."""
        for path in (self._main, self._gate, self._upgrade):
            with suppress(FileNotFoundError):
                os.unlink(path)

    @contextmanager
    def upgrading(self) -> Iterator[None]:
        """The right to upgrade, which one holder has at a time."""
        fd = self._wait(self._upgrade, fcntl.LOCK_EX, time.monotonic())
        try:
            yield
        finally:
            os.close(fd)

    def _wait(self, path: str, mode: int, deadline: float | None) -> int:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        wait = _FIRST_WAIT
        try:
            while True:
                with suppress(BlockingIOError):
                    fcntl.flock(fd, mode | fcntl.LOCK_NB)
                    return fd
                if deadline is not None and time.monotonic() >= deadline:
                    raise SandboxError(
                        f"{self.sandbox_id} is busy: a tool call, snapshot or rollback is under way",
                        code="sandbox-busy",
                        state="nothing was changed",
                        remedy="wait for it to end and try again, or raise the lock timeout",
                    )
                time.sleep(wait)
                wait = min(wait * 2, _LONGEST_WAIT)
        except BaseException:
            os.close(fd)
            raise
