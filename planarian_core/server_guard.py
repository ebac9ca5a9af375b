"""Runs a target server so that it never outlives whoever started it: ``python server_guard.py COMMAND...``.

Stand-alone. It lets the command have its standard streams, hands on what it is told to do (SIGTERM), and ends as the
command ends. When its parent is gone, however that came about, the command may end by itself (its input is closed
then); after that its whole process group is killed, this process too.
"""

from __future__ import annotations

import os
import signal
import sys
import time

_LOOK = 0.5
_GRACE = 2.0


def main() -> None:
    parent = os.getppid()
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    heard = {signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, heard)
    command = sys.argv[1:]
    try:
        child = os.posix_spawnp(command[0], command, os.environ, setsigmask=before)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)  # so that the command alone holds the pipes
    while os.getppid() == parent:
        _end_with(child)
        told = signal.sigtimedwait(heard, _LOOK)
        if told is not None and told.si_signo != signal.SIGCHLD:
            os.kill(child, told.si_signo)
    deadline = time.monotonic() + _GRACE
    while time.monotonic() < deadline:
        _end_with(child)
        signal.sigtimedwait({signal.SIGCHLD}, deadline - time.monotonic())
    os.killpg(0, signal.SIGKILL)


def _end_with(child: int) -> None:
    """End this process if the command has ended."""
    pid, status = os.waitpid(child, os.WNOHANG)
    if pid:
        code = os.waitstatus_to_exitcode(status)
        os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
