"""The ``planarian`` command inside a sandbox: hands its arguments to the host while a call runs, prints the answer.

Stand-alone: ``python3 -I -S request_client.py PLACE ARGS…`` (host side: ``request_listener.py``). All goes by files in
``PLACE``, no descriptor leads outside, so that an image of the processes can be taken while it waits:

1. ``listening/CALL`` is locked by whoever serves that call; without one for half a second nobody listens.
2. ``requests/CALL.PID.RANDOM.request`` appears by rename: pid and arguments, with NUL between them.
3. ``requests/CALL.PID.RANDOM.reply`` appears by rename: exit code, output and errors, with NUL between them.

CALL is the environment's ``PLANARIAN_CALL``, else ``any``. Exit code 69 when nobody listens.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time

NOBODY = 69
PATIENCE = 0.5


def main() -> int:
    place, arguments = sys.argv[1], sys.argv[2:]
    call = os.environ.get("PLANARIAN_CALL", "")
    if not (call.isascii() and call.isalnum()):
        call = "any"
    deadline = time.monotonic() + PATIENCE
    while not listening(place):
        if time.monotonic() > deadline:
            return give_up("nobody listens: requests are answered while a call runs")
        time.sleep(0.02)
    base = f"{place}/requests/{call}.{os.getpid()}.{os.urandom(6).hex()}"
    try:
        with open(os.open(base + ".new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(b"\0".join(os.fsencode(text) for text in (str(os.getpid()), *arguments)))
        os.rename(base + ".new", base + ".request")
        return wait(place, base)
    except OSError as error:
        return give_up(f"the request can't be made: {error}")


def listening(place: str) -> bool:
    """Whether a call holds the lock on its file; a file whose call was killed is left without one."""
    try:
        return any(locked(f"{place}/listening/{name}") for name in os.listdir(f"{place}/listening"))
    except OSError:
        return False


def locked(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def wait(place: str, base: str) -> int:
    while True:
        try:
            with open(base + ".reply", "rb") as file:
                code, out, err = file.read().split(b"\0")
        except FileNotFoundError:
            if not listening(place) and not os.path.exists(base + ".reply"):
                os.unlink(base + ".request")
                return give_up("the host stopped listening before it answered")
            time.sleep(0.01)
            continue
        os.unlink(base + ".reply")
        sys.stdout.buffer.write(out)
        sys.stderr.buffer.write(err)
        return int(code)


def give_up(text: str) -> int:
    sys.stderr.write(f"planarian: {text}\n")
    return NOBODY


if __name__ == "__main__":
    sys.exit(main())
