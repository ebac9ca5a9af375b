"""Whether subvolumes can be made, captured and removed here, found out by doing it."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets

from planarian_filesystem import btrfs_ioctl
from planarian_filesystem import btrfs_subvolumes as subvolumes
from planarian_filesystem.btrfs_errors import remedy_for, what_happened


def try_all(base: int) -> None:
    """Make a subvolume, snapshot it and remove both, as every sandbox needs it."""
    name = f".trial-{secrets.token_hex(6)}"
    try:
        btrfs_ioctl.create(base, name)
        with subvolumes.opened(base, name) as fd:
            os.mkdir("something", dir_fd=fd)
            btrfs_ioctl.snapshot(fd, base, f"{name}-kept", read_only=True)
    finally:
        with contextlib.ExitStack() as removals:  # both, and the first error
            for made in (name, f"{name}-kept"):
                removals.callback(_remove_trial, base, made)


def _remove_trial(base: int, name: str) -> None:
    """Where subvolumes may not be removed, an emptied one may, as a directory; the error is the finding."""
    try:
        subvolumes.remove(base, name)
    except PermissionError:
        with subvolumes.opened(base, name) as fd:
            btrfs_ioctl.set_read_only(fd, False)
            with contextlib.suppress(FileNotFoundError):
                os.rmdir("something", dir_fd=fd)
        os.rmdir(name, dir_fd=base)
        raise


def why_not(error: OSError) -> tuple[str, str]:
    """The reason and the remedy that an error of :func:`try_all` stands for."""
    if error.errno in (errno.EPERM, errno.EACCES) and os.geteuid() != 0:
        return (
            "an ordinary user may not remove subvolumes here",
            "mount that file system with the option user_subvol_rm_allowed, or use the backend copy",
        )
    return f"subvolumes can't be made: {what_happened(error)}", remedy_for(error, "planarian doctor")
