"""Runs a target server so that it never outlives whoever started it:
``python server_guard.py [--limit=BYTES] COMMAND...``.

Stand-alone. It lets the command have its standard streams, hands on what it is told to do (SIGTERM), and ends as the
command ends. When its parent is gone, however that came about, the command may end by itself (its input is closed
then); after that its whole process group is killed, this process too.

With ``--limit`` the command's output goes through this process, which takes out lines that are longer.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from importlib import import_module

_LOOK = 0.5
_GRACE = 2.0
_PIECE = 1 << 18


def main() -> None:
    parent = os.getppid()
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    heard = {signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, heard)
    command = sys.argv[1:]
    limit = int(command.pop(0).partition("=")[2]) if command[0].startswith("--limit=") else 0
    relay = _Relay(limit) if limit else None
    actions = [(os.POSIX_SPAWN_DUP2, relay.writing, 1)] if relay else []
    try:
        child = os.posix_spawnp(command[0], command, os.environ, setsigmask=before, file_actions=actions)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)
    if relay:
        relay.start()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)  # so that the command alone holds the pipes
    while os.getppid() == parent:
        _end_with(child, relay)
        told = signal.sigtimedwait(heard, _LOOK)
        if told is not None and told.si_signo != signal.SIGCHLD:
            os.kill(child, told.si_signo)
    deadline = time.monotonic() + _GRACE
    while time.monotonic() < deadline:
        _end_with(child, relay)
        signal.sigtimedwait({signal.SIGCHLD}, deadline - time.monotonic())
    os.killpg(0, signal.SIGKILL)


class _Relay:
    """Hands on what the command writes, but for lines that are too long."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._reading, self.writing = os.pipe()
        self._out = os.dup(1)
        self._thread = threading.Thread(target=self._copy, daemon=True)

    def start(self) -> None:
        """The command has its end of the pipe."""
        os.close(self.writing)
        self._thread.start()

    def finish(self) -> None:
        self._thread.join(_GRACE)

    def _copy(self) -> None:
        sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # this process runs by itself
        messages = import_module("message_lines")
        lines = messages.MessageLines(self._limit)
        try:
            while data := os.read(self._reading, _PIECE):
                lines.add(data)
                while (line := lines.next()) is not None:
                    _write(self._out, line + b"\n")
        except (OSError, messages.TooLong):
            os.close(self._reading)
        os.close(self._out)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _end_with(child: int, relay: _Relay | None) -> None:
    """End this process if the command has ended."""
    pid, status = os.waitpid(child, os.WNOHANG)
    if pid:
        if relay:
            relay.finish()
        code = os.waitstatus_to_exitcode(status)
        os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
