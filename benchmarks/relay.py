"""A TCP relay that makes a server farther away, and counts the trips to it.

``python -m benchmarks.relay PORT DELAY`` listens on a free port of loopback and passes everything on to ``PORT`` there,
each way ``DELAY`` seconds later. It prints its own port; then, for each line that it reads, how many *trips* there were
so far: turns in which the client spoke after it had been answered (or for the first time). It ends with its input.
A process of its own, so that it takes no turn from what is measured.
"""

from __future__ import annotations

import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_CHUNK = 1 << 18


class Relay:
    """The running relay, seen from the benchmark."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.port = int(self._line())

    def trips(self) -> int:
        """How many trips there were since it was started."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return int(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@contextmanager
def relay(port: int, delay: float) -> Iterator[Relay]:
    """A relay to a port of loopback; ``delay`` is seconds each way."""
    command = [sys.executable, "-m", "benchmarks.relay", str(port), str(delay)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Relay(process)
        finally:
            process.kill()


# --- the process ---


class _Trips:
    """Counts, over all connections, how often a client spoke after it had been answered."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def add(self) -> None:
        with self._lock:
            self.count += 1


class _Connection:
    """Two directions, each read by one thread and written by another, so that nothing is held back but time."""

    def __init__(self, client: socket.socket, server: socket.socket, delay: float, trips: _Trips) -> None:
        self._delay = delay
        self._trips = trips
        self._answered = True
        for source, sink, forth in ((client, server, True), (server, client, False)):
            pending: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
            threading.Thread(target=self._read, args=(source, pending, forth), daemon=True).start()
            threading.Thread(target=self._write, args=(sink, pending), daemon=True).start()

    def _read(self, source: socket.socket, pending: queue.SimpleQueue[tuple[float, bytes]], forth: bool) -> None:
        data = b"-"
        while data:
            try:
                data = source.recv(_CHUNK)
            except OSError:
                data = b""
            pending.put((time.monotonic() + self._delay, data))
            if forth and data and self._answered:
                self._trips.add()
            self._answered = not forth

    def _write(self, sink: socket.socket, pending: queue.SimpleQueue[tuple[float, bytes]]) -> None:
        while True:
            due, data = pending.get()
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)
            except OSError:
                return


def _serve(port: int, delay: float) -> None:
    trips = _Trips()
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            client, _ = listener.accept()
            server = socket.create_connection(("127.0.0.1", port))
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _Connection(client, server, delay, trips)

    threading.Thread(target=accept, daemon=True).start()
    print(listener.getsockname()[1], flush=True)
    for _ in sys.stdin:
        print(trips.count, flush=True)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), float(sys.argv[2]))
