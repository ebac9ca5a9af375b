"""The ``planarian`` command inside a namespace sandbox: hands its arguments to the host while a call runs.

Stand-alone. It writes a request file and waits for the reply file: no socket and no descriptor that leads outside, so
that an image of the processes can be taken while it waits. Exit code 69 when nobody listens.
"""

import fcntl
import os
import sys
import time

REQUESTS = "/run/planarian/requests"
LISTENING = "/run/planarian/listening"
NOBODY = 69


def listening() -> bool:
    """Whether a call holds the lock on its file; a file whose call was killed is left without one."""
    try:
        return any(locked(f"{LISTENING}/{name}") for name in os.listdir(LISTENING))
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


def give_up(text: str) -> int:
    sys.stderr.write(f"planarian: {text}\n")
    return NOBODY


def main() -> int:
    call = os.environ.get("PLANARIAN_CALL", "")
    if not call.isalnum():
        call = "any"
    deadline = time.monotonic() + 0.5
    while not listening():
        if time.monotonic() > deadline:
            return give_up("nobody listens: no call with requests is running")
        time.sleep(0.02)
    name = f"{call}.{os.getpid()}.{os.urandom(6).hex()}"
    base = f"{REQUESTS}/{name}"
    body = "\0".join([str(os.getpid()), *sys.argv[1:]]).encode("utf-8", "surrogateescape")
    try:
        with open(os.open(base + ".new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(body)
        os.rename(base + ".new", base + ".request")
        return wait(base)
    except OSError as error:
        return give_up(str(error))


def wait(base: str) -> int:
    while True:
        try:
            with open(base + ".reply", "rb") as file:
                code, out, err = file.read().split(b"\0")
        except FileNotFoundError:
            if not listening() and not os.path.exists(base + ".reply"):
                os.unlink(base + ".request")
                return give_up("the host stopped listening before it answered")
            time.sleep(0.01)
            continue
        os.unlink(base + ".reply")
        sys.stdout.write(out.decode("utf-8", "replace"))
        sys.stderr.write(err.decode("utf-8", "replace"))
        return int(code)


if __name__ == "__main__":
    sys.exit(main())
