"""The datasets of one pool: which layer has which, where a statepoint's snapshot is, and what nobody needs any more.

No snapshot of a statepoint is ever in the way of a rollback: going back makes a clone of the older snapshot, which
takes the layer's place; what was the layer stays as a grave while there are newer snapshots in it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from planarian_core.errors import BackendUnavailable
from planarian_core.faults import reach
from planarian_filesystem import zfs_library, zfs_mount
from planarian_filesystem.zfs_command import zfs
from planarian_filesystem.zfs_notes import BESIDE, GRAVES, LAYERS, STATEPOINTS, Notes

_LETTING_GO = 1.0
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


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

    @contextlib.contextmanager
    def locked(self, *, shared: bool = False) -> Iterator[None]:
        """Among all processes. Shared: no snapshot is moved to another dataset meanwhile, and no layer is mounted;
        else only this thread does that. Not to be taken twice.
        """
        fd = os.open(self.root / LAYERS, _DIRECTORY)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

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
        with contextlib.suppress(OSError):  # that note says nothing about a layer's own dataset
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
        self.hide(layer)
        with contextlib.suppress(FileNotFoundError):
            (self.root / layer).rmdir()
        if dataset:
            self.notes.write(GRAVES, dataset)
            self.notes.remove(LAYERS, layer)
            self._let_go(dataset)
            self._bury(dataset)
        self.sweep()
        if dataset:
            with self.locked():
                self._leave_to_clones(dataset)

    def _let_go(self, dataset: str) -> None:
        """Wait a moment for the kernel to take down the mounts of a sandbox that has just ended."""
        deadline = time.monotonic() + _LETTING_GO
        while self.full(dataset) in zfs_mount.in_use(self.base.partition("/")[0]) and time.monotonic() < deadline:
            time.sleep(0.01)

    def settle(self, layer: str) -> None:
        """Mount a layer's dataset in its place, unless it is; what a killed switch left there goes."""
        if not self._misplaced(layer, zfs_mount.places()):
            return
        with self.locked():  # whoever switches it at this moment has done so when this goes on
            dataset = self._misplaced(layer, zfs_mount.places())
            if dataset:
                with zfs_mount.attached(self.full(dataset)) as fd:
                    self.show(layer, fd)

    def settle_all(self) -> None:
        """A layer whose dataset can't be mounted is passed over: that is said when it is used."""
        mounted = zfs_mount.places()
        for layer in self.notes.names(LAYERS):
            if self._misplaced(layer, mounted):
                with contextlib.suppress(OSError):
                    self.settle(layer)

    def _misplaced(self, layer: str, mounted: dict[str, str]) -> str:
        """The dataset of a layer that isn't mounted where it belongs."""
        dataset = self.current(layer)
        return dataset if dataset and mounted.get(str(self.root / layer)) != self.full(dataset) else ""

    def show(self, layer: str, fd: int) -> None:
        """Put an attached dataset into the layer's place; under the lock."""
        path = self.root / layer
        path.mkdir(mode=0o700, exist_ok=True)
        zfs_mount.remove(path)
        zfs_mount.place(fd, path)

    def hide(self, layer: str) -> None:
        """Take a layer out of its place."""
        zfs_mount.remove(self.root / layer)

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
        if self.notes.read(STATEPOINTS, statepoint):
            raise FileExistsError(errno.EEXIST, "there is a snapshot of this statepoint", statepoint)
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
        """Give up a statepoint's snapshot; it goes at once, or with the last layer that builds on it. Idempotent."""
        with self.locked():
            dataset = self.holder(statepoint)
            if dataset:
                name = self.snapshot(dataset, statepoint)
                zfs_library.release(name)
                try:
                    zfs_library.destroy_snapshot(name)
                except FileExistsError:
                    zfs_library.destroy_snapshot(name, later=True)
            self.notes.remove(STATEPOINTS, statepoint)
            self.sweep()
            self._leave_to_clones(dataset)

    def _leave_to_clones(self, dataset: str) -> None:
        """Where only clones still need the newest snapshot of a grave, one of them is promoted: that snapshot, and
        those before it, are in its own dataset then, and the grave can go. Under the lock.
        """
        if not dataset or dataset not in self.notes.names(GRAVES):
            return
        # Without room for it, or where somebody else's snapshot of the same name is in the way, all stays as it is.
        with contextlib.suppress(OSError, BackendUnavailable):
            heir = self._heir(dataset)
            if heir:
                zfs_library.promote(heir)
                self.sweep()

    def _heir(self, dataset: str) -> str:
        """The clone that is to be promoted; empty for none. Of several one that is a layer; never somebody else's."""
        told = zfs("list", "-H", "-d", "1", "-t", "snapshot", "-o", "userrefs,clones", "-S", "createtxg",
                   self.full(dataset))  # fmt: skip
        held, _, clones = told.partition("\n")[0].partition("\t")
        ours = sorted(name for name in clones.split(",") if name.startswith(self.full("")))
        layers = {self.full(name) for name in self._living()}
        return next((name for name in ours if name in layers), ours[0] if ours else "") if held == "0" else ""

    # --- graves

    def sweep(self) -> None:
        """Remove the graves that nothing needs: one that goes may have been the last to need another.

        What can't be removed yet stays for the next time.
        """
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

    def _living(self) -> set[str]:
        """The datasets that are layers."""
        return {self.current(layer) for layer in self.notes.names(LAYERS)}

    def _destroyed(self, dataset: str) -> bool:
        if dataset not in self._living():  # else it is in the graves because a drop was cut off
            try:
                zfs_library.destroy(self.full(dataset))
            except FileNotFoundError:
                pass
            except OSError:  # snapshots or clones need it, something uses it, or the pool is ill, which others say
                return False
        self.notes.remove(GRAVES, dataset)
        return True
