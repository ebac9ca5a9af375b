"""What btrfs offers beyond files, by ioctl: subvolumes, snapshots, their generations, and searches of its trees.

Each function is one system call (or two) on a descriptor that the caller opened; OSError when the kernel says no.
:func:`search` and :func:`path_of_inode` need CAP_SYS_ADMIN in the initial namespace, the others serve the owner too.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

FIRST_INODE = 256
"""The inode number of every subvolume's top directory, and the smallest of any file."""
READ_ONLY = 2

_BY_ID = 16
_ROOT_READ_ONLY = 1  # in a root item; elsewhere it is READ_ONLY
_VOLUME = struct.Struct("=qQQ32s4040s")  # btrfs_ioctl_vol_args_v2: fd, transid, flags, unused, name
_SEARCH = struct.Struct("=7Q4I4QQ")  # btrfs_ioctl_search_args_v2 without its buffer
_ITEM = struct.Struct("=QQQII")  # btrfs_ioctl_search_header
_INODE = struct.Struct("<QQQQQIIII")  # the beginning of btrfs_inode_item
_INFO = struct.Struct("=Q256sQQQQ16s16s16sQQ")  # the beginning of btrfs_ioctl_get_subvol_info_args
_ROOM = 64 * 1024
_LARGEST = 64 * 1024 + 64  # of an item: there are no larger nodes


def _write(number: int, size: int) -> int:
    return 0x4000_9400 | size << 16 | number


def _read(number: int, size: int) -> int:
    return 0x8000_9400 | size << 16 | number


_RESIZE = _write(3, 4096)
_TREE_SEARCH_V2 = _write(17, 112) | _read(17, 112)
_INO_LOOKUP = _write(18, 4096) | _read(18, 4096)
_SPACE_INFO = _write(20, 16) | _read(20, 16)
_WAIT_SYNC = _write(22, 8)
_SNAP_CREATE_V2 = _write(23, 4096)
_SUBVOL_CREATE_V2 = _write(24, 4096)
_START_SYNC = _read(24, 8)
_SUBVOL_SETFLAGS = _write(26, 8)
_FS_INFO = _read(31, 1024)
_SEND = _write(38, 72)
_GET_SUBVOL_INFO = _read(60, 504)
_GET_SUBVOL_ROOTREF = _write(61, 4096) | _read(61, 4096)
_INO_LOOKUP_USER = _write(62, 4096) | _read(62, 4096)
_SNAP_DESTROY_V2 = _write(63, 4096)
_NO_FILE_DATA = 1

INODE_ITEM = 1
_ROOT_REF = 156
_ROOT_TREE = 1
_MOST = 2**64 - 1
_NOT_STATE = (slice(8, 16), slice(112, 124))  # of an inode's item: the transaction that changed it, the time of access


@dataclass(frozen=True)
class Subvolume:
    """What a subvolume says of itself. ``created``: the transaction that made it; ``generation``: the last one that
    changed anything in it, as of the last commit. UUIDs in hexadecimal; ``parent`` is that of what it is a snapshot of.
    """

    id: int
    generation: int
    read_only: bool
    uuid: str
    parent: str
    created: int


@dataclass(frozen=True)
class Inode:
    """An inode's item. ``changed``: the last transaction that changed the inode, its content or its attributes."""

    number: int
    changed: int
    links: int
    mode: int


@dataclass(frozen=True)
class Space:
    """Of one kind of block groups: bytes set aside, and bytes of them that are used."""

    total: int
    used: int


def filesystem_id(fd: int) -> str:
    """The UUID of the btrfs that an open file lies on, in hexadecimal; empty when that is another file system."""
    answer = bytearray(1024)
    try:
        fcntl.ioctl(fd, _FS_INFO, answer)
    except OSError as error:
        if error.errno in (errno.ENOTTY, errno.EOPNOTSUPP, errno.EINVAL):
            return ""
        raise
    return answer[16:32].hex()


def create(directory: int, name: str) -> None:
    """Make an empty subvolume. Not durable by itself."""
    fcntl.ioctl(directory, _SUBVOL_CREATE_V2, _volume(name))


def snapshot(source: int, directory: int, name: str, *, read_only: bool) -> None:
    """Make a snapshot of the subvolume that ``source`` lies in.

    Durable when it returns, all dirty data of the source included: the kernel writes that back and waits for it, then
    makes the snapshot inside a transaction whose commit, with its barrier, it waits for.
    """
    fcntl.ioctl(directory, _SNAP_CREATE_V2, _volume(name, fd=source, flags=READ_ONLY if read_only else 0))


def destroy(directory: int, name: str) -> None:
    """Remove a subvolume; its space is freed in the background."""
    fcntl.ioctl(directory, _SNAP_DESTROY_V2, _volume(name))


def destroy_by_id(directory: int, number: int) -> None:
    """Remove a subvolume wherever it is in the file system of ``directory``. Needs privilege."""
    arguments = _volume("", flags=_BY_ID)
    struct.pack_into("=Q", arguments, 56, number)
    fcntl.ioctl(directory, _SNAP_DESTROY_V2, arguments)


def set_read_only(fd: int, read_only: bool) -> None:
    """Make a subvolume (``fd``: its top directory) read-only or writable."""
    fcntl.ioctl(fd, _SUBVOL_SETFLAGS, bytearray(struct.pack("=Q", READ_ONLY if read_only else 0)))


def subvolume(fd: int) -> Subvolume:
    """The subvolume that an open file lies in."""
    answer = bytearray(504)
    fcntl.ioctl(fd, _GET_SUBVOL_INFO, answer)
    number, _, _, _, generation, flags, uuid, parent, _, _, created = _INFO.unpack_from(answer)
    return Subvolume(number, generation, bool(flags & _ROOT_READ_ONLY), uuid.hex(), parent.hex(), created)


def subvolumes_below(fd: int) -> list[tuple[int, int]]:
    """What is directly nested in the subvolume of ``fd``: id, and the inode of the directory that it is in."""
    found: list[tuple[int, int]] = []
    least = 0
    while True:
        answer = bytearray(struct.pack("=Q", least) + bytes(4088))
        more = False
        try:
            fcntl.ioctl(fd, _GET_SUBVOL_ROOTREF, answer)
        except OSError as error:
            if error.errno != errno.EOVERFLOW:
                raise
            more = True
        here = [struct.unpack_from("=QQ", answer, 8 + 16 * at) for at in range(answer[8 + 16 * 255])]
        found += here
        if not more or not here:
            return found
        least = here[-1][0] + 1


def commit(fd: int) -> None:
    """Make durable what was renamed, made and removed, without waiting for anybody's dirty data."""
    transaction = bytearray(8)
    fcntl.ioctl(fd, _START_SYNC, transaction)
    fcntl.ioctl(fd, _WAIT_SYNC, transaction)


def search(fd: int, least: int, most: int, *, since: int = 0, tree: int = 0) -> Iterator[Inode]:
    """The inodes numbered ``least`` to ``most`` in the tree ``tree`` (that of ``fd`` if 0) as it is in memory now.

    ``since``: leave out those that changed in no transaction after it; costs no more than what did change.
    """
    room = _ROOM if most > least else 4096
    while least <= most:
        number = 0
        for number, kind, _, item in _items(fd, tree, (least, most), (INODE_ITEM, INODE_ITEM), since, room):
            if kind == INODE_ITEM:
                _, changed, _, _, _, links, _, _, mode = _INODE.unpack_from(item)
                if changed > since:
                    yield Inode(number, changed, links, mode)
        if number == 0:
            return
        least = number + 1  # an inode's item is the first of its items: the rest of the last one's is of no interest


def children_of(fd: int, number: int) -> list[int]:
    """Ids of the subvolumes that are directly nested in the one with the id ``number``."""
    items = _items(fd, _ROOT_TREE, (number, number), (_ROOT_REF, _ROOT_REF))
    return [offset for _, kind, offset, _ in items if kind == _ROOT_REF]


def _items(
    fd: int, tree: int, inodes: tuple[int, int], kinds: tuple[int, int], since: int = 0, room: int = 4096
) -> Iterator[tuple[int, int, int, memoryview]]:
    """One answer's worth of items, in ``room`` bytes: object, kind, offset, content.

    The bounds are of keys, which are ordered by object first: between two objects all kinds come.
    """
    answer = bytearray(_SEARCH.size + room)
    _SEARCH.pack_into(
        answer, 0, tree, *inodes, 0, _MOST, since + 1 if since else 0, _MOST, *kinds, 2**32 - 1, 0, 0, 0, 0, 0, room
    )
    fcntl.ioctl(fd, _TREE_SEARCH_V2, answer)
    at = _SEARCH.size
    for _ in range(struct.unpack_from("=I", answer, 64)[0]):
        _, number, offset, found, length = _ITEM.unpack_from(answer, at)
        at += _ITEM.size
        yield number, found, offset, memoryview(answer)[at : at + length]
        at += length


def same_but_read(fd: int, number: int, other: int) -> bool:
    """Whether all that is kept of an inode is the same in the tree of ``fd`` and in the tree with the id ``other``, but
    for when it was last read. A doubt (very many extents or names) is a no.
    """
    here, there = _kept_of(fd, 0, number), _kept_of(fd, other, number)
    return here is not None and here == there


def _kept_of(fd: int, tree: int, number: int) -> list[tuple[int, int, bytes]] | None:
    """Kind, offset and content of all items of an inode; None where there are none, or may be more than were given."""
    found = []
    size = 0
    for _, kind, offset, item in _items(fd, tree, (number, number), (0, 255), room=_ROOM + _LARGEST):
        content = bytearray(item)
        size += _ITEM.size + len(content)
        if kind == INODE_ITEM:
            for part in _NOT_STATE:
                content[part] = bytes(len(content[part]))
        found.append((kind, offset, bytes(content)))
    return found if 0 < size <= _ROOM else None


def path_of_subvolume(fd: int, number: int, directory: int) -> str:
    """The path of a subvolume that :func:`subvolumes_below` found, from the top directory ``fd``."""
    answer = bytearray(struct.pack("=QQ", directory, number) + bytes(4080))
    fcntl.ioctl(fd, _INO_LOOKUP_USER, answer)
    name, path = (bytes(part).partition(b"\0")[0] for part in (answer[16 : 16 + 256], answer[16 + 256 :]))
    return os.fsdecode(path + name)


def path_of_inode(fd: int, number: int) -> str:
    """A path of a file from the top of the subvolume of ``fd``; one of several, where it has several."""
    answer = bytearray(struct.pack("=QQ", 0, number) + bytes(4080))
    fcntl.ioctl(fd, _INO_LOOKUP, answer)
    return os.fsdecode(bytes(answer[16:]).partition(b"\0")[0]).rstrip("/")


def send_changes(subvolume: int, parent: int, output: int) -> None:
    """Write the stream that turns the read-only subvolume with the id ``parent`` into ``subvolume``, without content.

    Blocks until all of it was taken from ``output``, a pipe.
    """
    fcntl.ioctl(subvolume, _SEND, bytearray(struct.pack("=qQQQQI28x", output, 0, 0, parent, _NO_FILE_DATA, 0)))


def resize(fd: int) -> None:
    """Grow a file system of one device to all of that."""
    fcntl.ioctl(fd, _RESIZE, bytearray(struct.pack("=q4088s", 0, b"max")))


def spaces(fd: int) -> dict[str, Space]:
    """How much is set aside and used for ``data``, ``metadata`` and ``system``."""
    answer = bytearray(struct.pack("=QQ", 64, 0) + bytes(64 * 24))
    fcntl.ioctl(fd, _SPACE_INFO, answer)
    names = {1: "data", 2: "system", 4: "metadata"}
    found: dict[str, Space] = {}
    for at in range(struct.unpack_from("=Q", answer, 8)[0]):
        flags, total, used = struct.unpack_from("=QQQ", answer, 16 + 24 * at)
        name = names.get(flags & 7)
        if name is not None:
            found[name] = Space(total, used)
    return found


def _volume(name: str, fd: int = 0, flags: int = 0) -> bytearray:
    encoded = os.fsencode(name)
    if len(encoded) > 255:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), name)
    return bytearray(_VOLUME.pack(fd, 0, flags, b"", encoded))
