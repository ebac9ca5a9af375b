"""Workloads that tests and demos run in a sandbox, and an oracle of file trees that uses nothing of ours."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from planarian_core import Planarian

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


def remove_all(planarian: Planarian) -> None:
    """End and remove every sandbox of a home, forks before their sources."""
    for record in reversed(planarian.registry.sandboxes()):
        planarian.remove_sandbox(planarian.sandbox(record.id))


def describe_tree(root: Path) -> dict[str, tuple[object, ...]]:
    """All that guarantee 4 says of a tree, by relative path: a plain walk with ``lstat``, nothing followed.

    Sockets are described by their type alone: a server binds them anew.
    """
    links: dict[tuple[int, int], str] = {}
    found: dict[str, tuple[object, ...]] = {}
    for folder, directories, files in os.walk(root):
        directories.sort()
        for name in sorted([*directories, *files]):
            path = Path(folder, name)
            info = path.lstat()
            relative = str(path.relative_to(root))
            if stat.S_ISSOCK(info.st_mode):
                found[relative] = ("socket",)
                continue
            content: object = info.st_rdev
            if stat.S_ISREG(info.st_mode):
                content = hashlib.sha256(path.read_bytes()).hexdigest()
            elif stat.S_ISLNK(info.st_mode):
                content = os.readlink(path)
            group = links.setdefault((info.st_dev, info.st_ino), relative) if not stat.S_ISDIR(info.st_mode) else ""
            changed = 0 if stat.S_ISDIR(info.st_mode) and _holds_socket(path) else info.st_mtime_ns
            found[relative] = (info.st_mode, info.st_uid, info.st_gid, changed, content, group)
    return found


def _holds_socket(folder: Path) -> bool:
    return any(stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode) for entry in os.scandir(folder))
