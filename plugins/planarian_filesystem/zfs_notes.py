"""Which dataset is what: small notes in the pool itself, each written and removed in one step that lasts.

A note is a symbolic link, for that is made whole or not at all. They are in four directories of the base dataset:

- ``.layers/SANDBOX`` names the dataset of a layer; replacing this note is what a switch is
- ``.statepoints/STATEPOINT`` names the dataset that has the snapshot, or had it when it was taken
- ``.beside/SANDBOX:DATASET``: what is about to become that layer's, or was it; the layer's next operation clears it
- ``.graves/DATASET``: nobody's any more, but there may be snapshots in it, or something uses it
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

LAYERS, STATEPOINTS, BESIDE, GRAVES = ".layers", ".statepoints", ".beside", ".graves"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Notes:
    """The notes of one pool; ``root`` is where its base dataset is mounted."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def prepare(self) -> None:
        for name in (LAYERS, STATEPOINTS, BESIDE, GRAVES):
            (self._root / name).mkdir(mode=0o700, exist_ok=True)

    def read(self, kind: str, name: str) -> str:
        """What a note says; empty when there is none."""
        try:
            return os.readlink(self._root / kind / name)
        except FileNotFoundError:  # any other error isn't an answer
            return ""

    def names(self, kind: str) -> list[str]:
        return [name for name in os.listdir(self._root / kind) if not name.startswith(".")]

    def write(self, kind: str, name: str, says: str = "-") -> None:
        """Make or replace a note; it lasts when this returns."""
        folder = os.open(self._root / kind, _DIRECTORY)
        passing = f".{secrets.token_hex(8)}"
        try:
            os.symlink(says, passing, dir_fd=folder)
            os.rename(passing, name, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(passing, dir_fd=folder)
            os.close(folder)

    def remove(self, kind: str, name: str) -> None:
        """Idempotent."""
        folder = os.open(self._root / kind, _DIRECTORY)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
            os.fsync(folder)
        finally:
            os.close(folder)
