"""Write-back that goes on beside what comes next."""

from __future__ import annotations

import contextlib
import os
import threading

from planarian_filesystem import host


class Flusher:
    """Syncs a file system in the background; at most one sync at work and one waiting."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: int | None = None
        self._working = False

    def flush(self, fd: int) -> None:
        """Sync the file system of ``fd``, which is closed then."""
        with self._lock:
            if self._waiting is not None:
                os.close(self._waiting)
            self._waiting = fd
            if self._working:
                return
            self._working = True
        threading.Thread(target=self._work, name="planarian-write-back", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                fd, self._waiting = self._waiting, None
                if fd is None:
                    self._working = False
                    return
            try:
                with contextlib.suppress(OSError):
                    host.sync_filesystem(fd)
            finally:
                os.close(fd)
