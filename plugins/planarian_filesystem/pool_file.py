"""The file that a pool of either kind lies in."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

from planarian_core.errors import ConfigurationError
from planarian_core.units import size as shown

_MARGIN = 256 * 1024**2


def check_room(home: Path, more: int, sparse: bool) -> None:
    """ConfigurationError where ``more`` bytes can't be set aside at ``home``, some left; sparse files need none."""
    held = os.statvfs(home)
    free = held.f_bavail * held.f_frsize
    if not sparse and more + _MARGIN > free:
        raise ConfigurationError(
            f"{shown(max(more, 0))} are wanted and {shown(free)} are free at {home}",
            code="pool-no-room",
            state="nothing was changed",
            remedy="give a smaller size, or --sparse when it is created",
        )


def extend(fd: int, size: int, sparse: bool) -> None:
    """Make a file ``size`` bytes long, its space set aside unless it is ``sparse``."""
    if sparse:
        os.ftruncate(fd, size)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(fd, 0, ctypes.c_long(0), ctypes.c_long(size)) != 0:
        number = ctypes.get_errno()
        if number == errno.EOPNOTSUPP:
            raise OSError(number, "this file system can't set space aside; use --sparse")
        raise OSError(number, os.strerror(number))
