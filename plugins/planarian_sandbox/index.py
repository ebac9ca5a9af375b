"""Puts an overlay's index right after its layer was copied to new inodes.

With ``index=on`` the directory ``work/index`` has an entry per copied-up file or directory. The index itself, and the
entry of each directory, name the upper directory by its file handle (``trusted.overlay.upper``). A copy has other
inodes, and a btrfs snapshot another subvolume id, so these handles lead nowhere (ESTALE) until they are made anew. An
entry's name is the file handle of its origin in hexadecimal, which the upper directory has as
``trusted.overlay.origin``: that is how the two are brought together again.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from contextlib import suppress

from planarian_core.errors import SandboxError
from planarian_sandbox.inside import Inside
from planarian_sandbox.layout import Layout

UPPER = "trusted.overlay.upper"
ORIGIN = "trusted.overlay.origin"
_HEADER = struct.Struct("5B16s")  # version, magic, length, flags, type, uuid of the file system; the handle follows
HEADER_SIZE = _HEADER.size
HANDLE_TYPE = 4
"""Which byte of the header is the handle's type."""
_MAGIC = 0xFB
_PATH_UPPER = 0x04
_ROOM = 128
_AT_EMPTY_PATH = 0x1000
_GET_UUID = 0x80111500
_BTRFS_FS_INFO = 0x8400941F
_LIBC = ctypes.CDLL(None, use_errno=True)


def heal_index(layer: str, layout: Layout) -> None:
    """Make every handle of the layer's indexes name the directory that is now in ``upper``; drop what has none.

    Idempotent; costs one look per entry when nothing is wrong. The layer must not be mounted.
    """
    if layout.rootless:
        return
    for part in (layer, os.path.join(layer, "workspace")) if layout.workspace else (layer,):
        index = os.path.join(part, "work", "index")
        if not os.path.isdir(index):
            continue
        try:
            with Inside.of_path(os.path.join(part, "upper")) as upper, Inside.of_path(index) as entries:
                _heal(upper, entries)
        except OSError as error:
            raise SandboxError(
                f"The index of the layer {part} can't be put right: {error}.",
                code="sandbox-index",
                remedy="roll back to a statepoint",
            ) from error


def _heal(upper: Inside, index: Inside) -> None:
    root = os.readlink(f"/proc/self/fd/{upper.descriptor}")
    stored = _attribute(index.descriptor, UPPER)
    if stored is not None and not _leads_below(stored, upper, root, exactly=True):
        os.setxattr(index.descriptor, UPPER, _encode(upper.descriptor, stored))
    broken: dict[bytes, str] = {}
    with os.scandir(index.descriptor) as found:
        names = [entry.name for entry in found if entry.is_dir(follow_symlinks=False)]
    for name in names:
        with suppress(OSError), index.directory(name) as entry:
            stored = _attribute(entry.descriptor, UPPER)
            if stored is None or not _leads_below(stored, upper, root):
                broken[bytes.fromhex(name)] = name
    if broken:
        _mend(upper, index, broken)


def _mend(upper: Inside, index: Inside, broken: dict[bytes, str]) -> None:
    """Find the upper directory of each broken entry by its origin; remove entries that have none any more."""
    todo = ["."]
    while todo and broken:
        path = todo.pop()
        with suppress(OSError), upper.directory(path) as directory:
            origin = _attribute(directory.descriptor, ORIGIN)
            if origin is not None and origin in broken:
                with index.directory(broken.pop(origin)) as entry:
                    os.setxattr(entry.descriptor, UPPER, _encode(directory.descriptor, origin))
            with os.scandir(directory.descriptor) as found:
                todo += [os.path.join(path, entry.name) for entry in found if entry.is_dir(follow_symlinks=False)]
    for name in broken.values():
        with suppress(OSError):
            os.rmdir(name, dir_fd=index.descriptor)


def _attribute(descriptor: int, name: str) -> bytes | None:
    try:
        return os.getxattr(descriptor, name)
    except OSError:
        return None


def _leads_below(stored: bytes, upper: Inside, root: str, exactly: bool = False) -> bool:
    """Whether a stored handle opens a directory of this very upper tree (or, ``exactly``, its root)."""
    if len(stored) <= _HEADER.size:
        return False
    _, magic, _, _, kind, _ = _HEADER.unpack_from(stored)
    handle = stored[_HEADER.size :]
    if magic != _MAGIC or len(handle) > _ROOM:
        return False
    buffer = ctypes.create_string_buffer(struct.pack("Ii", len(handle), kind) + handle)
    descriptor = _LIBC.open_by_handle_at(upper.descriptor, buffer, os.O_PATH | os.O_CLOEXEC)
    if descriptor < 0:
        return False
    try:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    return path == root or (not exactly and path.startswith(root + "/"))


def _encode(directory: int, like: bytes) -> bytes:
    """The handle of a directory in overlayfs's form; version, flags and (where unknown) the uuid as in ``like``."""
    buffer = ctypes.create_string_buffer(struct.pack("Ii", _ROOM, 0) + bytes(_ROOM))
    mount = ctypes.c_int()
    if _LIBC.name_to_handle_at(directory, b"", buffer, ctypes.byref(mount), _AT_EMPTY_PATH) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "name_to_handle_at")
    size, kind = struct.unpack_from("Ii", buffer.raw)
    handle = buffer.raw[8 : 8 + size]
    version, magic, _, flags, _, uuid = _HEADER.unpack_from(like)
    uuid = _file_system_uuid(directory) or uuid
    return _HEADER.pack(version, magic, _HEADER.size + size, flags | _PATH_UPPER, kind, uuid) + handle


def _file_system_uuid(descriptor: int) -> bytes:
    answer = bytearray(17)
    try:
        fcntl.ioctl(descriptor, _GET_UUID, answer)
    except OSError:  # before Linux 6.9, and btrfs
        return _btrfs_uuid(descriptor)
    return bytes(answer[1:17]) if answer[0] == 16 else b""


def _btrfs_uuid(descriptor: int) -> bytes:
    answer = bytearray(1024)
    try:
        fcntl.ioctl(descriptor, _BTRFS_FS_INFO, answer)
    except OSError:
        return b""
    return bytes(answer[16:32])
