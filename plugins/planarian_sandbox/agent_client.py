"""The ``planarian`` command inside a sandbox: hands its arguments to the runtime outside and prints the answer.

Stand-alone, standard library only: ``python3 -I -S agent_client.py ARGS…``. Requests are files in the directory that
``PLANARIAN_REQUESTS`` names, so that no descriptor leads outside (host side: ``agent_requests.py``):

1. ``CALL.RANDOM.req`` appears by rename: JSON ``{"argv": [...], "pid": N}``. CALL is ``PLANARIAN_CALL`` or ``any``.
2. Who serves the call renames it to ``CALL.RANDOM.taken``; without that within 5 s nobody listens (exit code 69).
3. ``CALL.RANDOM.reply`` appears by rename: JSON ``{"exit_code": N, "stdout": TEXT, "stderr": TEXT}``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time

LISTEN_TIME = 5.0
NOBODY = 69


def main() -> int:
    directory = os.environ.get("PLANARIAN_REQUESTS", "")
    call = os.environ.get("PLANARIAN_CALL", "")
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", call):
        call = "any"
    base = os.path.join(directory, f"{call}.{os.urandom(6).hex()}")
    try:
        with open(base + ".new", "x", encoding="utf-8") as stream:
            json.dump({"argv": sys.argv[1:], "pid": os.getpid()}, stream)
        os.rename(base + ".new", base + ".req")
    except OSError as error:
        print(f"planarian: the request can't be made: {error}", file=sys.stderr)
        return NOBODY
    waited = 0.0
    while os.path.exists(base + ".req"):
        if waited > LISTEN_TIME:
            with contextlib.suppress(OSError):
                os.unlink(base + ".req")
                print("planarian: nobody listens: requests are answered while a call runs", file=sys.stderr)
                return NOBODY
        time.sleep(0.01)
        waited += 0.01
    while not os.path.exists(base + ".reply"):
        time.sleep(0.01)
    with open(base + ".reply", encoding="utf-8") as stream:
        answer = json.load(stream)
    for suffix in (".taken", ".reply"):
        with contextlib.suppress(OSError):
            os.unlink(base + suffix)
    sys.stdout.write(answer["stdout"])
    sys.stderr.write(answer["stderr"])
    return int(answer["exit_code"])


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    raise SystemExit(main())
