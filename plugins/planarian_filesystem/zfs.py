"""The ``zfs`` backend: a layer is a dataset, an artefact a held snapshot, a restore a clone; O(1), whatever the size.

:mod:`planarian_filesystem.zfs_notes` says what lies where, :mod:`planarian_filesystem.zfs_pool` where the pool is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

from planarian_core.directory_tree import DirectoryTree
from planarian_core.errors import BackendUnavailable, PlanarianError
from planarian_core.faults import reach
from planarian_core.file_tree import FileTree
from planarian_core.interfaces import Availability, FilesystemCapabilities, Layer, StagedFiles
from planarian_core.model import Artefact, Domain
from planarian_filesystem import host, zfs_library, zfs_mount
from planarian_filesystem.btrfs_write_back import Flusher
from planarian_filesystem.zfs_datasets import Datasets
from planarian_filesystem.zfs_errors import STATUS, capture_errors, gone, restore_errors, what_happened
from planarian_filesystem.zfs_pool import ZfsPool
from planarian_filesystem.zfs_staging import StagedClone
from planarian_filesystem.zfs_trial import try_all

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,150}")


class ZfsBackend:
    """Implements :class:`planarian_core.interfaces.FilesystemBackend`, ``PlacesLayers``, ``WritesBack`` and
    ``OpensTrees``.

    A capture takes the whole layer: ``Layer.exclude`` can't be left out. Content is checked against its checksum by ZFS
    whenever it is read, not when it is staged.
    """

    name = "zfs"
    capabilities = FilesystemCapabilities(in_place=False, constant_time=True, rootless=False)

    def __init__(self, home: Path) -> None:
        self._pool = ZfsPool(home)
        self._flusher = Flusher()
        self._probed: Availability | None = None

    def probe(self) -> Availability:
        """Whether datasets can be made, captured and removed here: really tries, once per backend that found it so."""
        if self._probed is not None and self._probed.available:
            return self._probed
        try:
            try_all(self._pool.ready())
        except PlanarianError as error:
            return Availability(False, error.message.rstrip("."), error.remedy)
        except OSError as error:
            return Availability(False, f"datasets can't be made: {what_happened(error)}", STATUS)
        self._probed = Availability(True, "")
        return self._probed

    def place(self, sandbox_id: str) -> Path:
        """In the pool, which is imported and mounted by this if need be. BackendUnavailable when it can't be."""
        return self._pool.ready().root / sandbox_id

    def create(self, layer: Layer) -> None:
        datasets, name = self._of(layer)
        if datasets.current(name) or os.path.lexists(layer.path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(layer.path))
        with capture_errors(layer.path):
            datasets.clear(name)
            dataset = datasets.begin(name)
            zfs_library.create(datasets.full(dataset))
            datasets.put(name, dataset)
            datasets.settle(name)

    # --- capture

    def capture(self, layer: Layer, statepoint_id: str) -> Artefact:
        """What memory-mapped files hold is written back, then one snapshot, which is durable when it returns."""
        _checked(statepoint_id)
        datasets, name = self._of(layer)
        with capture_errors(layer.path):
            datasets.clear(name)
            datasets.settle(name)
            dataset = datasets.current(name)
            if not dataset:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(layer.path))
            self._write_mapped(layer.path)
            datasets.take(dataset, statepoint_id)
        return Artefact(Domain.FILES, self.name, statepoint_id, details={"dataset": datasets.full(dataset)})

    @staticmethod
    def _write_mapped(path: Path) -> None:
        fd = os.open(path, _DIRECTORY)
        try:
            host.sync_filesystem(fd)
        finally:
            os.close(fd)

    def write_back(self, layer: Layer) -> None:
        """A thread of this process has the dataset synced; calls while it does so are one more sync together."""
        with contextlib.suppress(OSError):
            self._flusher.flush(os.open(layer.path, _DIRECTORY))

    # --- restore

    def verify(self, artefact: Artefact) -> None:
        datasets = self._pool.ready()
        with restore_errors("nothing was changed"), datasets.locked(shared=True):
            self._snapshot(datasets, artefact)

    @contextlib.contextmanager
    def open_tree(self, artefact: Artefact) -> Iterator[FileTree]:
        with contextlib.ExitStack() as stack:
            datasets = self._pool.ready()
            with restore_errors("nothing was changed"), datasets.locked(shared=True):
                name = self._snapshot(datasets, artefact)
                fd = stack.enter_context(zfs_mount.attached(name, read_only=True))
                tree = stack.enter_context(DirectoryTree(fd))
            yield tree

    def stage(self, artefact: Artefact, layer: Layer) -> StagedFiles:
        datasets, name = self._of(layer)
        with restore_errors("the files are as they were"):
            datasets.clear(name)
            clone = datasets.begin(name)
            try:
                with datasets.locked(shared=True):
                    snapshot = self._snapshot(datasets, artefact)
                    zfs_library.clone(datasets.full(clone), snapshot)
                reach("zfs.staged")
                fd = zfs_mount.attach(datasets.full(clone))
            except BaseException:
                datasets.give_up(name, clone)
                raise
        return StagedClone(datasets, name, clone, artefact.reference, fd)

    # --- giving up

    def discard(self, statepoint_id: str) -> None:
        _checked(statepoint_id)
        if self._pool.there:
            with restore_errors("what is left of it goes when this is done again"):
                self._pool.ready().release(statepoint_id)

    def destroy(self, layer: Layer) -> None:
        """Where its pool isn't there any more, all that was in it is gone already."""
        if self._holds(layer):
            datasets, name = self._of(layer)
            with restore_errors("what is left of it goes when this is done again"):
                datasets.clear(name)
                datasets.drop(name)

    def forget(self, layer: Layer) -> None:
        if self._holds(layer):
            datasets, name = self._of(layer)
            with restore_errors("nothing was removed"):
                datasets.clear(name)

    # --- where things are

    def _holds(self, layer: Layer) -> bool:
        """Whether there can be anything of a layer: its pool may have been given up, and another one made."""
        return self._pool.there and layer.path.parent == self._pool.root

    def _of(self, layer: Layer) -> tuple[Datasets, str]:
        """The datasets that a layer is one of, and its name; BackendUnavailable for one that isn't in this pool."""
        datasets = self._pool.ready()
        if layer.path.parent != datasets.root or not _NAME.fullmatch(layer.path.name):
            raise BackendUnavailable(
                f"The layer {layer.path} isn't in the ZFS pool of this home ({datasets.root}).",
                state="nothing was changed",
                remedy=f"{STATUS}; if its pool is gone for good: planarian rm the sandbox",
            )
        return datasets, layer.path.name

    @staticmethod
    def _snapshot(datasets: Datasets, artefact: Artefact) -> str:
        """The full name of an artefact's snapshot; RestoreError when it is missing."""
        if not _NAME.fullmatch(artefact.reference):
            raise gone(artefact.reference, datasets.base, "has no proper name")
        dataset = datasets.holder(artefact.reference)
        if not dataset:
            raise gone(artefact.reference, datasets.base, "is missing from the pool")
        return datasets.snapshot(dataset, artefact.reference)


def _checked(statepoint_id: str) -> None:
    if not _NAME.fullmatch(statepoint_id):
        raise ValueError(f"not the id of a statepoint: {statepoint_id!r}")
