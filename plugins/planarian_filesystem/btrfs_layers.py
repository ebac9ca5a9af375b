"""The directory in which all of a home's subvolumes lie: layers removed with what belongs to them, and where each came
from.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator

from planarian_core.model import Artefact
from planarian_filesystem import btrfs_ioctl, btrfs_proof
from planarian_filesystem import btrfs_subvolumes as subvolumes
from planarian_filesystem.btrfs_proof import Lineage
from planarian_filesystem.btrfs_staging import is_leftover

STATEPOINTS = ".statepoints"
"""The directory of what was captured, by statepoint."""
ORIGINS = ".origins"
"""The directory of lineages, by the UUID of the layer."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def drop(base: int, name: str) -> None:
    """Remove a layer, or what had its place, with what is noted of it. Idempotent."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        with subvolumes.opened(base, name) as fd:
            uuid = btrfs_ioctl.subvolume(fd).uuid
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{ORIGINS}/{uuid}", dir_fd=base)
    subvolumes.remove(base, name)


def clear(base: int, name: str) -> None:
    """Remove what operations on a layer left that were cut off, or whose result nobody let go of."""
    for left in os.listdir(base):
        if is_leftover(left, name):
            drop(base, left)


@contextlib.contextmanager
def folder(base: int, name: str) -> Iterator[int]:
    fd = os.open(name, _DIRECTORY, dir_fd=base)
    try:
        yield fd
    finally:
        os.close(fd)


def origin(base: int, uuid: str) -> Lineage:
    try:
        fd = os.open(f"{ORIGINS}/{uuid}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=base)
    except FileNotFoundError:
        return ()
    with open(fd, encoding="ascii") as file:
        try:
            return btrfs_proof.lineage_of(json.load(file))
        except ValueError:  # cut off by a crash: then the lineage begins with the layer
            return ()


def remember(base: int, uuid: str, artefact: Artefact) -> None:
    """Note a new layer's lineage. Without it the identities of its files say less; a full pool is no reason to fail."""
    lineage = btrfs_proof.lineage_of(artefact.details.get("lineage"))
    path = f"{ORIGINS}/{uuid}"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=base)
        with open(fd, "w", encoding="ascii") as file:
            json.dump([list(pair) for pair in lineage], file)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(path, dir_fd=base)
