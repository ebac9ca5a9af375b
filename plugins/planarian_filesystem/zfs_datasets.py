"""The datasets of one pool: which layer has which, where a statepoint's snapshot is, and what nobody needs any more.

No snapshot of a statepoint is ever in the way of a rollback: going back makes a clone of the older snapshot, which
takes the layer's place; what was the layer stays as a grave while there are newer snapshots in it.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
from pathlib import Path

from planarian_core.faults import reach
from planarian_filesystem import zfs_library, zfs_mount
from planarian_filesystem.zfs_command import zfs
from planarian_filesystem.zfs_notes import BESIDE, GRAVES, LAYERS, STATEPOINTS, Notes


class Datasets:
    """``base`` is the dataset that is mounted at ``root``; those of layers are below ``base/layers``."""

    def __init__(self, base: str, root: Path) -> None:
        self.base = base
        self.root = root
        self.notes = Notes(root)

    @staticmethod
    def new() -> str:
        return f"d-{secrets.token_hex(8)}"

    def full(self, dataset: str) -> str:
        return f"{self.base}/layers/{dataset}"

    def snapshot(self, dataset: str, statepoint: str) -> str:
        return f"{self.full(dataset)}@{statepoint}"

    # --- layers

    def current(self, layer: str) -> str:
        """The dataset of a layer; empty when there is none."""
        return self.notes.read(LAYERS, layer)

    def put(self, layer: str, dataset: str) -> None:
        """Make a dataset the layer's. What was it before lies beside the layer then."""
        before = self.current(layer)
        if before and before != dataset:
            self.notes.write(BESIDE, f"{layer}:{before}")
        self.notes.write(LAYERS, layer, dataset)
        self.notes.remove(BESIDE, f"{layer}:{dataset}")

    def begin(self, layer: str) -> str:
        """The name of a dataset that is to be made for a layer, noted beside it."""
        dataset = self.new()
        self.notes.write(BESIDE, f"{layer}:{dataset}")
        return dataset

    def clear(self, layer: str) -> None:
        """Give up what operations on a layer left that were cut off, or whose result nobody let go of."""
        for note in self.notes.names(BESIDE):
            name, _, dataset = note.rpartition(":")
            if name == layer:
                self.give_up(layer, dataset)

    def give_up(self, layer: str, dataset: str) -> None:
        """Be done with a dataset beside a layer. Idempotent; nothing happens to the layer's own."""
        if dataset != self.current(layer):
            self._bury(dataset)
        self.notes.remove(BESIDE, f"{layer}:{dataset}")

    def drop(self, layer: str) -> None:
        """Be done with a layer. Statepoints that were taken from it stay. Idempotent."""
        dataset = self.current(layer)
        zfs_mount.remove(self.root / layer)
        with contextlib.suppress(FileNotFoundError):
            (self.root / layer).rmdir()
        if dataset:
            self.notes.write(GRAVES, dataset)
            self.notes.remove(LAYERS, layer)
            self._bury(dataset)
        self.sweep()

    def settle(self, layer: str) -> None:
        """Mount a layer's dataset in its place, unless it is; what a killed switch left there goes."""
        dataset = self.current(layer)
        path = self.root / layer
        if not dataset or zfs_mount.mounts().get(str(path)) == self.full(dataset):
            return
        with zfs_mount.attached(self.full(dataset)) as fd:
            self.show(layer, fd)

    def show(self, layer: str, fd: int) -> None:
        """Put an attached dataset into the layer's place."""
        path = self.root / layer
        path.mkdir(mode=0o700, exist_ok=True)
        zfs_mount.remove(path)
        zfs_mount.place(fd, path)

    # --- statepoints

    def holder(self, statepoint: str) -> str:
        """The dataset that has a statepoint's snapshot; empty when there is none. A promotion may have moved it."""
        noted = self.notes.read(STATEPOINTS, statepoint)
        if not noted or zfs_library.exists(self.snapshot(noted, statepoint)):
            return noted
        others = {self.current(layer) for layer in self.notes.names(LAYERS)} | set(self.notes.names(GRAVES))
        others |= {note.rpartition(":")[2] for note in self.notes.names(BESIDE)}
        return next((d for d in sorted(others) if zfs_library.exists(self.snapshot(d, statepoint))), "")

    def take(self, dataset: str, statepoint: str) -> None:
        """Snapshot a dataset and hold that; nothing remains of it when this fails."""
        self.notes.write(STATEPOINTS, statepoint, dataset)
        name = self.snapshot(dataset, statepoint)
        try:
            zfs_library.snapshot(name)
            reach("zfs.captured")
            zfs_library.hold(name)
        except BaseException:
            self.release(statepoint)
            raise

    def release(self, statepoint: str) -> None:
        """Give up a statepoint's snapshot; it goes once no layer builds on it. Idempotent.

        Where only clones still need it, and the dataset that it is in is a grave, one of them is promoted: the snapshot
        then belongs to it, and the grave, with all that only it held, can go.
        """
        dataset = self.holder(statepoint)
        if dataset:
            name = self.snapshot(dataset, statepoint)
            zfs_library.release(name)
            try:
                zfs_library.destroy_snapshot(name)
            except FileExistsError:
                self._leave_to_clones(dataset, statepoint)
        self.notes.remove(STATEPOINTS, statepoint)
        self.sweep()

    def _leave_to_clones(self, dataset: str, statepoint: str) -> None:
        name = self.snapshot(dataset, statepoint)
        if dataset in self.notes.names(GRAVES):
            clones = zfs("get", "-H", "-p", "-o", "value", "clones", name).strip()
            with contextlib.suppress(OSError):  # no room for it: then the snapshot goes with its last clone
                zfs_library.promote(clones.split(",")[0])
                name = f"{clones.split(',')[0]}@{statepoint}"
                self.sweep()
        zfs_library.destroy_snapshot(name, later=True)

    # --- graves

    def sweep(self) -> None:
        """Remove the graves that nothing needs: one that goes may have been the last to need another."""
        kept = self.notes.names(GRAVES)
        while True:
            left = [dataset for dataset in kept if not self._destroyed(dataset)]
            if len(left) == len(kept):
                return
            kept = left

    def _bury(self, dataset: str) -> None:
        self.notes.write(GRAVES, dataset)
        if not self._destroyed(dataset):
            # Snapshots keep it: what was written since the newest of them isn't anybody's.
            with contextlib.suppress(OSError):
                zfs_library.rollback(self.full(dataset))

    def _destroyed(self, dataset: str) -> bool:
        if dataset in [self.current(layer) for layer in self.notes.names(LAYERS)]:  # a drop that was cut off
            self.notes.remove(GRAVES, dataset)
            return True
        try:
            zfs_library.destroy(self.full(dataset))
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.EEXIST):
                raise
            return False
        self.notes.remove(GRAVES, dataset)
        return True
