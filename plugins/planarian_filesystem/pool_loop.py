"""Loop devices and mounts for a pool's file, by system call; each function needs root."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

_CONTROL = "/dev/loop-control"
_SET_CAPACITY = 0x4C07
_GET_STATUS64 = 0x4C05
_CONFIGURE = 0x4C0A
_GET_FREE = 0x4C82
_AUTOCLEAR = 4
_DIRECT_IO = 16
_STATUS = struct.Struct("=QQQQQIIII64s64s32s2Q")  # loop_info64: device, inode, …, flags, names
_TRIES = 20

_NOSUID, _NODEV, _NOATIME = 2, 4, 1024
_UMOUNT_NOFOLLOW = 8


def device_of(file: Path) -> str:
    """The loop device that holds ``file`` already; empty when none does. By inode: names lie."""
    try:
        wanted = os.stat(file)
    except FileNotFoundError:
        return ""
    for entry in sorted(Path("/sys/block").glob("loop*/loop")):
        name = f"/dev/{entry.parent.name}"
        with contextlib.suppress(OSError), _opened(name, os.O_RDONLY) as fd:
            answer = bytearray(_STATUS.size)
            fcntl.ioctl(fd, _GET_STATUS64, answer)
            device, inode, _, offset, _, _, _, _, _, _, _, _, _, _ = _STATUS.unpack(answer)
            if (device, inode, offset) == (wanted.st_dev, wanted.st_ino, 0):
                return name
    return ""


@contextlib.contextmanager
def attached(file: Path) -> Iterator[str]:
    """A loop device on ``file``, the one that there is or a new one, which goes when nothing uses it any more."""
    name = device_of(file)
    if name:
        yield name
        return
    with _opened(str(file), os.O_RDWR) as backing, _opened(_CONTROL, os.O_RDWR) as control:
        for _ in range(_TRIES):
            number = fcntl.ioctl(control, _GET_FREE)
            name = f"/dev/loop{number}"
            _make_node(name, number)
            with _opened(name, os.O_RDWR) as device:
                if _configure(device, backing, file):
                    yield name
                    return
    raise OSError(errno.EBUSY, "no free loop device")


def grown(device: str) -> None:
    """Tell a loop device that its file has grown."""
    with _opened(device, os.O_RDWR) as fd:
        fcntl.ioctl(fd, _SET_CAPACITY)


def mount(device: str, point: Path, options: str) -> None:
    _call("mount", device.encode(), os.fsencode(point), b"btrfs",
          ctypes.c_ulong(_NOSUID | _NODEV | _NOATIME), options.encode())  # fmt: skip


def unmount(point: Path) -> None:
    """OSError (EBUSY) while something in it is in use."""
    _call("umount2", os.fsencode(point), _UMOUNT_NOFOLLOW)


def _configure(device: int, backing: int, file: Path) -> bool:
    """False when somebody else took the device meanwhile."""
    name = os.fsencode(file)[-63:]
    info = _STATUS.pack(0, 0, 0, 0, 0, 0, 0, 0, _AUTOCLEAR | _DIRECT_IO, name, b"", b"", 0, 0)
    try:
        fcntl.ioctl(device, _CONFIGURE, bytearray(struct.pack("=II", backing, 0) + info + bytes(64)))
    except OSError as error:
        if error.errno == errno.EBUSY:
            return False
        raise
    return True


def _make_node(name: str, number: int) -> None:
    if not os.path.exists(name):
        with contextlib.suppress(FileExistsError):
            os.mknod(name, stat.S_IFBLK | 0o600, os.makedev(7, number))


@contextlib.contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _call(function: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, function)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
