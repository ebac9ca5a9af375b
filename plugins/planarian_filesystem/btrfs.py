"""The ``btrfs`` backend: a layer is a subvolume, an artefact a read-only snapshot of it; O(1), whatever the size.

Everything lies in one directory of a btrfs (:mod:`planarian_filesystem.pool` says which)::

    ID                        a layer
    .statepoints/STATEPOINT   what was captured
    .ID.staged-TOKEN          beside a layer: what is about to take its place, or had it before; of nobody else's
    .origins/UUID             the lineage of a layer that came from an artefact
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
from planarian_core.file_tree import FileTree
from planarian_core.interfaces import Availability, FilesystemCapabilities, Layer, StagedFiles
from planarian_core.model import Artefact, Domain
from planarian_filesystem import btrfs_ioctl, btrfs_proof
from planarian_filesystem import btrfs_subvolumes as subvolumes
from planarian_filesystem.btrfs_errors import capture_errors, gone, restore_errors
from planarian_filesystem.btrfs_layers import ORIGINS, STATEPOINTS, clear, drop, folder, origin, remember
from planarian_filesystem.btrfs_staging import StagedSubvolume, staged_name
from planarian_filesystem.btrfs_trial import try_all, why_not
from planarian_filesystem.btrfs_write_back import Flusher
from planarian_filesystem.pool import Pool

_MOST_GAPS = 20

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


class BtrfsBackend:
    """Implements :class:`planarian_core.interfaces.FilesystemBackend`, ``PlacesLayers``, ``WritesBack``,
    ``ProvesUnchanged`` and ``OpensTrees``.

    A capture takes the whole layer: ``Layer.exclude`` can't be left out, so what it names comes back with a restore as
    it was. Content is checked against its checksum by btrfs whenever it is read, not when it is staged.
    """

    name = "btrfs"
    capabilities = FilesystemCapabilities(in_place=False, constant_time=True, rootless=True)

    def __init__(self, home: Path) -> None:
        self._pool = Pool(home)
        self._flusher = Flusher()
        self._probed: Availability | None = None
        self._layers = Path()

    def probe(self) -> Availability:
        """Whether snapshots can be made and removed here: really tries, once per backend that found it so."""
        if self._probed is not None and self._probed.available:
            return self._probed
        try:
            with self._base() as base:
                try_all(base)
        except PlanarianError as error:
            return Availability(False, error.message.rstrip("."), error.remedy)
        except OSError as error:
            return Availability(False, *why_not(error))
        self._probed = Availability(True, self._pool.limits())
        return self._probed

    def place(self, sandbox_id: str) -> Path:
        """In the pool, which is mounted by this if need be. BackendUnavailable when it can't be."""
        return self._pool.ready() / sandbox_id

    def create(self, layer: Layer) -> None:
        if os.path.lexists(layer.path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(layer.path))
        with capture_errors(layer.path), self._parent(layer) as base:
            btrfs_ioctl.create(base, layer.path.name)
            with subvolumes.opened(base, layer.path.name) as fd:
                os.fchmod(fd, 0o755)

    # --- capture

    def capture(self, layer: Layer, statepoint_id: str) -> Artefact:
        """One snapshot ioctl, which is durable when it returns (:func:`btrfs_ioctl.snapshot`)."""
        _checked(statepoint_id)
        with capture_errors(layer.path), self._parent(layer) as base, folder(base, STATEPOINTS) as kept:
            clear(base, layer.path.name)
            with subvolumes.opened(base, layer.path.name) as fd:
                btrfs_ioctl.snapshot(fd, kept, statepoint_id, read_only=True)
                source = btrfs_ioctl.subvolume(fd)
                gaps = _nested(fd)
            with subvolumes.opened(kept, statepoint_id) as made:
                uuid = btrfs_ioctl.subvolume(made).uuid
            lineage = btrfs_proof.extended(source, origin(base, source.uuid))
        details = {"uuid": uuid, "lineage": [list(pair) for pair in lineage], "gaps": gaps}
        return Artefact(Domain.FILES, self.name, statepoint_id, details=details)

    def unchanged(self, layer: Layer, artefact: Artefact) -> bool:
        try:
            with (
                self._artefact(artefact) as kept,
                self._parent(layer) as base,
                subvolumes.opened(base, layer.path.name) as fd,
            ):
                return not btrfs_ioctl.subvolumes_below(fd) and btrfs_proof.unchanged(layer, fd, kept)
        except (OSError, PlanarianError):
            return False

    def write_back(self, layer: Layer) -> None:
        """A thread of this process has the file system synced; calls while it does so are one more sync together."""
        with contextlib.suppress(OSError):
            self._flusher.flush(os.open(layer.path, _DIRECTORY))

    # --- restore

    def verify(self, artefact: Artefact) -> None:
        with restore_errors("nothing was changed"), self._artefact(artefact):
            pass

    @contextlib.contextmanager
    def open_tree(self, artefact: Artefact) -> Iterator[FileTree]:
        with contextlib.ExitStack() as stack:
            with restore_errors("nothing was changed"):
                kept = stack.enter_context(self._artefact(artefact))
                lineage = btrfs_proof.lineage_of(artefact.details.get("lineage"))
                identify = btrfs_proof.identify(kept, lineage) if lineage else None
                tree = stack.enter_context(DirectoryTree(kept, identify))
            yield tree

    def stage(self, artefact: Artefact, layer: Layer) -> StagedFiles:
        with (
            restore_errors("the files are as they were"),
            self._artefact(artefact) as kept,
            self._parent(layer) as base,
        ):
            name = layer.path.name
            clear(base, name)
            staged = staged_name(name)
            btrfs_ioctl.snapshot(kept, base, staged, read_only=False)
            try:
                with subvolumes.opened(base, staged) as fd:
                    remember(base, btrfs_ioctl.subvolume(fd).uuid, artefact)
            except BaseException:
                subvolumes.remove(base, staged)
                raise
        return StagedSubvolume(self._layers, name, staged, f"{STATEPOINTS}/{artefact.reference}", drop)

    # --- giving up

    def discard(self, statepoint_id: str) -> None:
        _checked(statepoint_id)
        if self._pool.kind:
            with restore_errors("nothing was removed"), self._base() as base, folder(base, STATEPOINTS) as kept:
                subvolumes.remove(kept, statepoint_id)

    def destroy(self, layer: Layer) -> None:
        """Where its pool isn't there any more, all that was in it is gone already."""
        if not self._holds(layer):
            return
        with restore_errors("nothing was removed"), self._parent(layer) as base:
            clear(base, layer.path.name)
            drop(base, layer.path.name)

    def forget(self, layer: Layer) -> None:
        if not self._holds(layer):
            return
        with restore_errors("nothing was removed"), self._parent(layer) as base:
            clear(base, layer.path.name)

    # --- where things are

    def _holds(self, layer: Layer) -> bool:
        """Whether there can be anything of a layer: its pool may have been given up, and another one made."""
        return self._pool.kind != "" and (os.path.lexists(layer.path) or layer.path.parent == self._pool.ready())

    @contextlib.contextmanager
    def _base(self) -> Iterator[int]:
        """The directory of all layers."""
        layers = self._pool.ready()
        fd = os.open(layers, _DIRECTORY)
        try:
            if layers != self._layers:
                for name in (STATEPOINTS, ORIGINS):
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, 0o700, dir_fd=fd)
                self._layers = layers
            yield fd
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _parent(self, layer: Layer) -> Iterator[int]:
        """The directory of all layers, for one of them; BackendUnavailable for one that isn't in it."""
        with self._base() as base:
            if layer.path.parent != self._layers or not _NAME.fullmatch(layer.path.name):
                raise BackendUnavailable(
                    f"The layer {layer.path} isn't in the pool of this home ({self._layers}).",
                    state="nothing was changed",
                    remedy="planarian pool status; if its pool is gone for good: planarian rm the sandbox",
                )
            yield base

    @contextlib.contextmanager
    def _artefact(self, artefact: Artefact) -> Iterator[int]:
        """The snapshot of an artefact; RestoreError when it is missing or another one."""
        with self._base() as base, folder(base, STATEPOINTS) as kept:
            where = self._layers / STATEPOINTS
            if not _NAME.fullmatch(artefact.reference):
                raise gone(artefact.reference, where, "has no proper name")
            with contextlib.ExitStack() as stack:
                try:
                    fd = stack.enter_context(subvolumes.opened(kept, artefact.reference))
                except (FileNotFoundError, NotADirectoryError) as error:
                    raise gone(artefact.reference, where, "is missing from the pool") from error
                found = btrfs_ioctl.subvolume(fd)
                if not found.read_only or found.uuid != artefact.details.get("uuid"):
                    raise gone(artefact.reference, where, "isn't the one that was captured")
                yield fd


def _checked(statepoint_id: str) -> None:
    if not _NAME.fullmatch(statepoint_id):
        raise ValueError(f"not the id of a statepoint: {statepoint_id!r}")


def _nested(fd: int) -> list[list[str]]:
    """Gaps for the subvolumes that something made inside the layer: a snapshot leaves them out."""
    found = btrfs_ioctl.subvolumes_below(fd)
    gaps = []
    for number, directory in found[:_MOST_GAPS]:
        with contextlib.suppress(OSError):
            path = btrfs_ioctl.path_of_subvolume(fd, number, directory)
            gaps.append([path, "a btrfs subvolume of its own isn't captured"])
    if len(found) > len(gaps):
        gaps.append([".", f"{len(found) - len(gaps)} more btrfs subvolumes in it aren't captured"])
    return gaps
