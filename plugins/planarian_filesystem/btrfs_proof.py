"""Proofs that need no look at the files: that a layer is as it was, and that two files are the same.

btrfs numbers its transactions and writes into every inode the last one that changed it, its content, its attributes or
its links; in a directory, any of its names. A snapshot is made by a commit of its own, in its transaction's last step:
what changes in the source afterwards has a later number. So an inode of a writable subvolume whose number isn't later
than a snapshot's is as it is in that snapshot. What memory holds has no number yet: it is flushed first. A page of a
mapping that can be written is always known as dirty to the kernel, so the flush takes it along and makes the next write
to it a change with a number of its own.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from planarian_core.directory_tree import Identify
from planarian_core.interfaces import Layer
from planarian_filesystem import btrfs_ioctl, host
from planarian_filesystem.btrfs_ioctl import FIRST_INODE, Subvolume
from planarian_filesystem.exclusion import Exclusion

OWN = "upper/run/planarian"
"""Where a namespace sandbox keeps the files of its calls: directories there may have changed, files not."""

MOST_ANCESTORS = 32
_MOST_EXPLAINED = 1000
_LAST_INODE = 2**64 - 257


def unchanged(layer: Layer, layer_fd: int, kept_fd: int) -> bool:
    """Whether a layer is certainly as a snapshot of it is, or as the snapshot that it was made from.

    Nothing writes to the layer meanwhile. Waits for write-back in the whole file system, unless a change was found.
    """
    kept, now = btrfs_ioctl.subvolume(kept_fd), btrfs_ioctl.subvolume(layer_fd)
    if not kept.read_only:
        return False
    if kept.parent == now.uuid:
        since = kept.created
    elif now.parent == kept.uuid:
        since = now.created
    else:
        return False
    try:
        if not _explained(layer, layer_fd, kept.id, since):
            return False
        host.sync_filesystem(layer_fd)
        if btrfs_ioctl.subvolume(layer_fd).generation == since:
            return True
        return _explained(layer, layer_fd, kept.id, since)
    except OSError:
        return False


def _explained(layer: Layer, fd: int, kept: int, since: int) -> bool:
    """Whether all that is known to have changed isn't state. PermissionError (a doubt) where we may not search.

    A file or directory that was only read has another time of access: all else that btrfs keeps of it is then, byte for
    byte, what it keeps of it in the snapshot with the id ``kept``. That includes where its content lies, and content
    that a snapshot shares is never written in its place.
    """
    if btrfs_ioctl.subvolume(fd).generation == since:
        return True
    exclusion = Exclusion(layer)
    for count, inode in enumerate(btrfs_ioctl.search(fd, FIRST_INODE, _LAST_INODE, since=since)):
        if count >= _MOST_EXPLAINED:
            return False
        if btrfs_ioctl.same_but_read(fd, inode.number, kept):
            continue
        directory = stat.S_ISDIR(inode.mode)
        if inode.links != 1 and not directory:
            return False
        path = btrfs_ioctl.path_of_inode(fd, inode.number) if inode.number != FIRST_INODE else ""
        own = directory and (path == OWN or path.startswith(f"{OWN}/"))
        if not own and not _excluded(exclusion, path):
            return False
    return True


def _excluded(exclusion: Exclusion, path: str) -> bool:
    steps = path.split("/")
    return exclusion.any and any(exclusion.excludes("/".join(steps[:count])) for count in range(1, len(steps) + 1))


# --- which files are the same

Lineage = Sequence[tuple[int, str]]
"""Of a layer and those that it came from, newest first: the transaction that made it, and its UUID."""


def lineage_of(details: object) -> Lineage:
    """A lineage from an artefact's details; empty when they aren't one."""
    if not isinstance(details, list | tuple):
        return ()
    pairs = [tuple(pair) for pair in details if isinstance(pair, list | tuple) and len(pair) == 2]
    return [(pair[0], pair[1]) for pair in pairs if isinstance(pair[0], int) and isinstance(pair[1], str)]


def extended(layer: Subvolume, ancestors: Lineage) -> Lineage:
    """The lineage of what is captured from ``layer``, which came from something with the lineage ``ancestors``."""
    return [(layer.created, layer.uuid), *ancestors][:MOST_ANCESTORS]


def identify(fd: int, lineage: Lineage) -> Identify:
    """Gives the files of the snapshot ``fd`` their identity: the writable subvolume that last changed the inode, its
    number, and the transaction in which it did.

    In one subvolume those are a state of the file: it can't change twice around a snapshot in one transaction. Two
    subvolumes that came from one may well change the same inode in the same transaction, hence the first part. Where
    the lineage ends, its oldest member stands for all before it: it inherited one state. Directories have none, for
    what lies below them changes without them.
    """
    own = btrfs_ioctl.subvolume(fd)
    allowed = [bool(lineage) and lineage[0][1] == own.parent]
    device = os.fstat(fd).st_dev

    def identity(_: int, found: os.stat_result) -> str:
        if not allowed[0] or stat.S_ISDIR(found.st_mode) or found.st_dev != device:
            return ""
        try:
            inode = next(btrfs_ioctl.search(fd, found.st_ino, found.st_ino, tree=own.id), None)
        except PermissionError:
            allowed[0] = False
            return ""
        if inode is None:
            return ""
        owner = next((uuid for made, uuid in lineage if made < inode.changed), lineage[-1][1])
        return f"{owner}:{inode.number}:{inode.changed}"

    return identity
