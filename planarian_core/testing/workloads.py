"""Workloads that tests run in a sandbox, and what they need to look at it from outside."""

from __future__ import annotations

import os
import time
from pathlib import Path

from planarian_core import Planarian
from planarian_core.sandbox import Sandbox
from planarian_core.testing.oracle import Description, describe

COUNTER_SERVER = """\
import os, socket, sys, time
path, count = sys.argv[1], 0
try:
    os.unlink(path)
except FileNotFoundError:
    pass
server = socket.socket(socket.AF_UNIX)
server.bind(path)
server.listen(8)
while True:
    client, _ = server.accept()
    asked = client.recv(16)
    if asked == b"add":
        count += 1
    client.sendall(str(count).encode())
    client.close()
"""
"""A server whose state is its memory: it counts ``add`` requests on the Unix socket named by its argument."""

ASK_COUNTER = """\
import socket, sys
client = socket.socket(socket.AF_UNIX)
client.connect(sys.argv[1])
client.sendall(sys.argv[2].encode())
print(client.recv(16).decode())
"""
"""Asks the counter server: arguments are the socket and ``add`` or ``get``."""


def start_counter(sandbox: Sandbox, socket: str) -> None:
    """Start the counter server in the workspace and wait until it is there."""
    sandbox.spawn(["python3", "-c", COUNTER_SERVER, socket])
    sandbox.run(f"until test -S {socket}; do sleep 0.01; done", timeout=30)


def ask_counter(sandbox: Sandbox, socket: str, what: str, tries: int = 1) -> int:
    """What the counter server says to ``add`` or ``get``. ``tries``: one that is started anew takes its time."""
    for _ in range(tries):
        result = sandbox.run(["python3", "-c", ASK_COUNTER, socket, what], timeout=60)
        if result.exit_code == 0:
            break
        time.sleep(0.02)
    assert result.exit_code == 0, result.stderr
    return int(result.stdout)


def remove_all(planarian: Planarian) -> None:
    """End and remove every sandbox of a home, forks before their sources."""
    for record in reversed(planarian.registry.sandboxes()):
        planarian.remove_sandbox(planarian.sandbox(record.id))


def describe_beside_socket(root: Path, socket: str) -> Description:
    """All that guarantee 4 says of the tree around a server's socket, which the server binds anew when it comes back.

    The socket itself, and the modification time of the directory that it is in, ``root``, are left out.
    """
    found = describe(root)
    found.pop(os.fsencode(socket), None)
    mode, uid, gid, _, *rest = found[b"."]
    found[b"."] = (mode, uid, gid, *rest)
    return found
