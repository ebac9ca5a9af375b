"""The files below a sandbox's overlays, as overlayfs sees them: one file system, without what is mounted on it."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from pathlib import Path

from planarian_core.directory_tree import DirectoryTree
from planarian_core.errors import SandboxError

_OPEN_TREE = 428
_CLONE = 1
_AT_EMPTY_PATH = 0x1000
_ROOM = 128
_LIBC = ctypes.CDLL(None, use_errno=True)


class LowerTree(DirectoryTree):
    """A directory tree of the host's. What is mounted below it isn't there with ``without_mounts`` (needs root)."""

    def __init__(self, root: Path, *, without_mounts: bool) -> None:
        super().__init__(root)
        if without_mounts:
            cloned = _LIBC.syscall(_OPEN_TREE, self._fd, b"", _AT_EMPTY_PATH | _CLONE | os.O_CLOEXEC)
            if cloned < 0:
                number = ctypes.get_errno()
                raise SandboxError(
                    f"{root} can't be looked at without what is mounted on it: {os.strerror(number)}.",
                    code="sandbox-lower",
                    state="nothing was changed",
                    remedy="run it as the user who runs the sandbox, on Linux 5.2 or later",
                )
            self.close()
            self._fd = cloned

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()

    def has_several_names(self, handle: bytes, kind: int) -> bool:
        """Whether a file handle (of the type ``kind``) is of a file with hard links; so it is in doubt."""
        buffer = ctypes.create_string_buffer(struct.pack("Ii", len(handle), kind) + handle)
        fd = _LIBC.open_by_handle_at(self._fd, buffer, os.O_PATH | os.O_CLOEXEC)
        if fd < 0:
            return ctypes.get_errno() != errno.ESTALE
        try:
            return os.fstat(fd).st_nlink > 1
        finally:
            os.close(fd)

    def handle(self, path: str) -> bytes:
        """The file handle of what is at a path, as overlayfs keeps it: empty when there is none."""
        names = path.split("/") if path else []
        parent = self._enter(names[:-1], path)
        if parent is None:
            return b""
        try:
            fd = os.open(names[-1] if names else ".", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        except OSError:
            return b""
        finally:
            os.close(parent)
        try:
            return _handle(fd)
        finally:
            os.close(fd)


def _handle(fd: int) -> bytes:
    buffer = ctypes.create_string_buffer(struct.pack("Ii", _ROOM, 0) + bytes(_ROOM))
    mount = ctypes.c_int()
    if _LIBC.name_to_handle_at(fd, b"", buffer, ctypes.byref(mount), _AT_EMPTY_PATH) < 0:
        return b""
    size, _ = struct.unpack_from("Ii", buffer.raw)
    return buffer.raw[8 : 8 + size]
