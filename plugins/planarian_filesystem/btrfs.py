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
import json
import os
import re
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path

from planarian_core.directory_tree import DirectoryTree
from planarian_core.errors import BackendUnavailable, PlanarianError
from planarian_core.file_tree import FileTree
from planarian_core.interfaces import Availability, FilesystemCapabilities, Layer, StagedFiles
from planarian_core.model import Artefact, Domain
from planarian_filesystem import btrfs_ioctl, btrfs_proof, host
from planarian_filesystem import btrfs_subvolumes as subvolumes
from planarian_filesystem.btrfs_errors import capture_errors, gone, remedy_for, restore_errors, what_happened
from planarian_filesystem.btrfs_proof import Lineage
from planarian_filesystem.btrfs_staging import StagedSubvolume, is_leftover, staged_name
from planarian_filesystem.pool import Pool

STATEPOINTS = ".statepoints"
ORIGINS = ".origins"

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
        self._flusher = _Flusher()
        self._probed: Availability | None = None
        self._layers = Path()

    def probe(self) -> Availability:
        """Whether snapshots can be made and removed here: really tries, once per backend that found it so."""
        if self._probed is not None and self._probed.available:
            return self._probed
        try:
            with self._base() as base:
                _try_all(base)
        except PlanarianError as error:
            return Availability(False, error.message.rstrip("."), error.remedy)
        except OSError as error:
            return Availability(False, *_why_not(error))
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
        with capture_errors(layer.path), self._parent(layer) as base, _folder(base, STATEPOINTS) as kept:
            _clear(base, layer.path.name)
            with subvolumes.opened(base, layer.path.name) as fd:
                btrfs_ioctl.snapshot(fd, kept, statepoint_id, read_only=True)
                source = btrfs_ioctl.subvolume(fd)
                gaps = _nested(fd)
            with subvolumes.opened(kept, statepoint_id) as made:
                uuid = btrfs_ioctl.subvolume(made).uuid
            lineage = btrfs_proof.extended(source, _origin(base, source.uuid))
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
            _clear(base, name)
            staged = staged_name(name)
            btrfs_ioctl.snapshot(kept, base, staged, read_only=False)
            try:
                with subvolumes.opened(base, staged) as fd:
                    _remember(base, btrfs_ioctl.subvolume(fd).uuid, artefact)
            except BaseException:
                subvolumes.remove(base, staged)
                raise
        return StagedSubvolume(self._layers, name, staged, f"{STATEPOINTS}/{artefact.reference}", drop)

    # --- giving up

    def discard(self, statepoint_id: str) -> None:
        _checked(statepoint_id)
        if self._pool.kind:
            with restore_errors("nothing was removed"), self._base() as base, _folder(base, STATEPOINTS) as kept:
                subvolumes.remove(kept, statepoint_id)

    def destroy(self, layer: Layer) -> None:
        """Where its pool isn't there any more, all that was in it is gone already."""
        if not self._holds(layer):
            return
        with restore_errors("nothing was removed"), self._parent(layer) as base:
            _clear(base, layer.path.name)
            drop(base, layer.path.name)

    def forget(self, layer: Layer) -> None:
        if not self._holds(layer):
            return
        with restore_errors("nothing was removed"), self._parent(layer) as base:
            _clear(base, layer.path.name)

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
        with self._base() as base, _folder(base, STATEPOINTS) as kept:
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


class _Flusher:
    """Syncs a file system in the background; at most one sync at work and one waiting."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: int | None = None
        self._working = False

    def flush(self, fd: int) -> None:
        """Sync the file system of ``fd``, which is closed then."""
        with self._lock:
            if self._waiting is not None:
                os.close(self._waiting)
            self._waiting = fd
            if self._working:
                return
            self._working = True
        threading.Thread(target=self._work, name="planarian-write-back", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                fd, self._waiting = self._waiting, None
                if fd is None:
                    self._working = False
                    return
            try:
                with contextlib.suppress(OSError):
                    host.sync_filesystem(fd)
            finally:
                os.close(fd)


def drop(base: int, name: str) -> None:
    """Remove a layer, or what had its place, with what is noted of it. Idempotent."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        with subvolumes.opened(base, name) as fd:
            uuid = btrfs_ioctl.subvolume(fd).uuid
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{ORIGINS}/{uuid}", dir_fd=base)
    subvolumes.remove(base, name)


def _clear(base: int, name: str) -> None:
    """Remove what operations on a layer left that were cut off, or whose result nobody let go of."""
    for left in os.listdir(base):
        if is_leftover(left, name):
            drop(base, left)


@contextlib.contextmanager
def _folder(base: int, name: str) -> Iterator[int]:
    fd = os.open(name, _DIRECTORY, dir_fd=base)
    try:
        yield fd
    finally:
        os.close(fd)


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


def _origin(base: int, uuid: str) -> Lineage:
    try:
        fd = os.open(f"{ORIGINS}/{uuid}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=base)
    except FileNotFoundError:
        return ()
    with open(fd, encoding="ascii") as file:
        try:
            return btrfs_proof.lineage_of(json.load(file))
        except ValueError:  # cut off by a crash: then the lineage begins with the layer
            return ()


def _remember(base: int, uuid: str, artefact: Artefact) -> None:
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


def _try_all(base: int) -> None:
    """Make a subvolume, snapshot it and remove both, as every sandbox needs it."""
    name = f".trial-{secrets.token_hex(6)}"
    try:
        btrfs_ioctl.create(base, name)
        with subvolumes.opened(base, name) as fd:
            os.mkdir("something", dir_fd=fd)
            btrfs_ioctl.snapshot(fd, base, f"{name}-kept", read_only=True)
    finally:
        with contextlib.ExitStack() as removals:  # both, and the first error
            for made in (name, f"{name}-kept"):
                removals.callback(_remove_trial, base, made)


def _remove_trial(base: int, name: str) -> None:
    """Where subvolumes may not be removed, an emptied one may, as a directory; the error is the finding."""
    try:
        subvolumes.remove(base, name)
    except PermissionError:
        with subvolumes.opened(base, name) as fd:
            btrfs_ioctl.set_read_only(fd, False)
            with contextlib.suppress(FileNotFoundError):
                os.rmdir("something", dir_fd=fd)
        os.rmdir(name, dir_fd=base)
        raise


def _why_not(error: OSError) -> tuple[str, str]:
    if error.errno in (errno.EPERM, errno.EACCES) and os.geteuid() != 0:
        return (
            "an ordinary user may not remove subvolumes here",
            "mount that file system with the option user_subvol_rm_allowed, or use the backend copy",
        )
    return f"subvolumes can't be made: {what_happened(error)}", remedy_for(error, "planarian doctor")
