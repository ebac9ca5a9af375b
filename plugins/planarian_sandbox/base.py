"""Identifies the software that lies below every layer: package databases and the C library."""

from __future__ import annotations

import hashlib
import os
import platform

_MARKS = (
    "/var/lib/dpkg/status",
    "/var/lib/rpm/rpmdb.sqlite",
    "/var/lib/rpm/Packages",
    "/usr/lib/sysimage/rpm/rpmdb.sqlite",
    "/lib/apk/db/installed",
    "/var/lib/pacman/local",
    "/etc/os-release",
)
_LIBRARIES = ("libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1")
_DIRECTORIES = ("/lib64", "/lib", "/usr/lib", f"/lib/{platform.machine()}-linux-gnu")


def base_fingerprint(root: str = "") -> str:
    """A hash over size, mtime and inode of what an upgrade of the host replaces; stable until then.

    Args:
        root: a root file system other than the host's; then its own directory counts as well, for another one in its
            place may hold the same packages.
    """
    digest = hashlib.sha256()
    if root:
        digest.update(f"root {os.stat(root).st_ino}\n".encode())
    paths = [*_MARKS, *(os.path.join(directory, name) for directory in _DIRECTORIES for name in _LIBRARIES)]
    for path in paths:
        try:
            found = os.stat(f"{root}{path}")
        except OSError:
            continue
        digest.update(f"{path} {found.st_size} {found.st_mtime_ns} {found.st_ino}\n".encode())
    return digest.hexdigest()[:24]
