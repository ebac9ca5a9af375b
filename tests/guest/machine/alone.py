"""Becomes a command in a mount namespace of its own: ``python alone.py FOLDER COMMAND …``, started by ``unshare``.

What it mounts is gone when it ends, however it ends. A new namespace has a copy of each of the host's mounts, which
keeps a device busy that the host has unmounted meanwhile. So those of loop devices, which are made to go again, are
taken out of it, but for the one that FOLDER lies on.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys


def _plain(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def mounts(table: str) -> list[tuple[str, str]]:
    """Where something is mounted, and what it is, of a text like /proc/self/mountinfo; the latest last."""
    split = (line.split(" - ") for line in table.splitlines())
    return [(_plain(before.split()[4]), _plain(after.split()[1])) for before, after in split]


def main(folder: str, *command: str) -> None:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        found = mounts(file.read())
    for point, source in reversed(found):
        if source.startswith("/dev/loop") and os.path.commonpath((point, folder)) != point:
            subprocess.run(["umount", "--lazy", point], check=True)
    os.execvp(command[0], command)  # noqa: S606  # an argument list


if __name__ == "__main__":
    main(*sys.argv[1:])
