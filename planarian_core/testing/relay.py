"""A TCP relay that a test can cut: between a client and a server on this machine."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self


class CuttableRelay:
    """Passes connections to ``port`` of 127.0.0.1 on, from a port of its own; a context manager."""

    def __init__(self, port: int) -> None:
        self._behind = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._is_cut = False
        self._passing = threading.Event()
        self._passing.set()
        self._swallowed = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """End every connection, on both sides; new ones are closed at once until :meth:`mend`."""
        with self._lock:
            self._is_cut = True
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def mend(self) -> None:
        """Connections are passed on again, replies too."""
        self._swallowed.clear()
        self._passing.set()
        with self._lock:
            self._is_cut = False

    def swallow_replies(self) -> None:
        """What the server says from now on doesn't arrive; what the client says does."""
        self._passing.clear()

    def wait_for_reply(self, seconds: float = 30) -> bool:
        """Wait until the server has said something that was swallowed."""
        return self._swallowed.wait(seconds)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._is_cut:
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self._behind))
                self._pairs.append((client, server))
            threading.Thread(target=self._pump, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, True), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, replies: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if replies and not self._passing.is_set():
                    self._swallowed.set()
                    continue
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
