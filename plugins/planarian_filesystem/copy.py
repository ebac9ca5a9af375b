"""The ``copy`` backend: versions of a layer in a content-addressed store. Works everywhere, for an ordinary user."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from contextlib import AbstractContextManager
from pathlib import Path

from planarian_core.errors import CaptureError, RestoreError
from planarian_core.file_tree import FileTree
from planarian_core.interfaces import Availability, FilesystemCapabilities, Layer, StagedFiles
from planarian_core.model import Artefact, Domain
from planarian_filesystem import host
from planarian_filesystem.collect import collect, missing
from planarian_filesystem.copy_tree import open_stored
from planarian_filesystem.descent import Unsettled
from planarian_filesystem.errors import capture_errors, restore_errors
from planarian_filesystem.index import Index, index_path, remove_index
from planarian_filesystem.metadata import HAS_XATTRS
from planarian_filesystem.removal import remove_tree
from planarian_filesystem.restore import StagedCopy, proof_of
from planarian_filesystem.scan import Scanned, Scanner
from planarian_filesystem.sinks import Deposit
from planarian_filesystem.staging import remove_stale
from planarian_filesystem.store import Store

_TRIES = 4
_SETTLE_BYTES = 4 * 1024 * 1024


class CopyBackend:
    """Implements :class:`planarian_core.interfaces.FilesystemBackend`, ``Prehashing``, ``ProvesUnchanged``,
    ``Collects`` and ``OpensTrees``.

    Everything is kept in ``home/store``.

    A capture stores what is new: unchanged directories cost one stat per name, and long files are stored in pieces.
    A restore changes what differs and keeps the inodes of the rest. :meth:`collect` frees what no artefact needs.
    """

    name = "copy"
    capabilities = FilesystemCapabilities(in_place=True, constant_time=False, rootless=True)

    def __init__(self, home: Path) -> None:
        self._store = Store(home / "store")
        self._floors: dict[Path, int] = {}
        self._stored_ahead: dict[Path, int] = {}

    def probe(self) -> Availability:
        try:
            self._store.make()
            if not os.access(self._store.directory, os.W_OK):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        except OSError as error:
            return Availability(
                False, f"{self._store.directory} can't be written: {error.strerror}", "set PLANARIAN_HOME"
            )
        if not host.LINUX:
            return Availability(True, "extended attributes are not captured on this system")
        return Availability(True)

    def create(self, layer: Layer) -> None:
        layer.path.mkdir(mode=0o755)

    def destroy(self, layer: Layer) -> None:
        """Remove a layer and its index. RestoreError, with nothing removed, while something is mounted inside."""
        mounts = host.mounts_below(layer.path)
        if mounts:
            raise RestoreError(
                f"Something is mounted at {layer.path / min(mounts)}.",
                code="layer-mounted",
                state="the layer is as it was",
                remedy=f"umount {layer.path / min(mounts)}",
            )
        if layer.path.parent.is_dir():
            remove_tree(layer.path.parent, layer.path.name)
        self.forget(layer)

    def forget(self, layer: Layer) -> None:
        if layer.path.parent.is_dir():
            remove_stale(layer.path.parent, layer.path)
        remove_index(index_path(self._store, layer.path))

    # --- capture

    def prepare(self, layer: Layer) -> None:
        """Store ahead what is there already, and sync, so that the capture need not."""
        self._ahead(layer)

    def unchanged(self, layer: Layer, artefact: Artefact) -> bool:
        """Whether a scan finds what the artefact holds. Where it doesn't, the capture that follows has less to do."""
        try:
            return self._ahead(layer) == artefact.reference
        except CaptureError:
            return False

    def _ahead(self, layer: Layer) -> str:
        """Do what a capture does but for its root; the digest of what was found."""
        with capture_errors(layer), Deposit(self._store) as deposit, Index(self._store, layer.path) as index:
            floor, proof = _settle(layer, index)
            scanned = Scanner(layer, index, deposit, floor, proof, lenient=True).run()
            deposit.publish()
            index.commit({"root": scanned.root, "proof": "yes" if proof else "no"}, scanned.seen)
            self._floors[layer.path] = floor
            self._stored_ahead[layer.path] = self._stored_ahead.get(layer.path, 0) + deposit.stored
        return scanned.root

    def capture(self, layer: Layer, statepoint_id: str) -> Artefact:
        with capture_errors(layer), Deposit(self._store) as deposit, Index(self._store, layer.path) as index:
            floor = self._floors.pop(layer.path, None)
            proof = index.fact("proof") == "yes"
            if floor is None or not index.fact("proof"):
                floor, proof = _settle(layer, index)
            scanned = _scan(Scanner(layer, index, deposit, floor, proof))
            deposit.publish()
            self._store.add_root(statepoint_id, scanned.root)
            self._store.sync()
            index.commit({"root": scanned.root, "proof": "yes" if proof else "no"}, scanned.seen)
        details = {"gaps": _gaps(scanned), "hashed": scanned.hashed}
        stored = deposit.stored + self._stored_ahead.pop(layer.path, 0)
        return Artefact(Domain.FILES, self.name, scanned.root, stored, scanned.logical, details)

    # --- restore

    def verify(self, artefact: Artefact) -> None:
        with restore_errors(self._store, "nothing was changed"):
            lacking = missing(self._store, artefact.reference)
            if lacking is not None:
                path, error = lacking
                error.add_note(path)
                raise error

    def stage(self, artefact: Artefact, layer: Layer) -> StagedFiles:
        with restore_errors(self._store, "the files are as they were"):
            top = self._store.top(artefact.reference)
            staged = StagedCopy(self._store, layer, top, artefact.reference)
            try:
                staged.prepare()
            except BaseException:
                staged.discard()
                raise
            return staged

    def open_tree(self, artefact: Artefact) -> AbstractContextManager[FileTree]:
        """Read from the store as it is asked for; what was never captured isn't there."""
        return open_stored(self._store, artefact.reference)

    # --- giving up

    def discard(self, statepoint_id: str) -> None:
        """Drop the statepoint's root. What only it needed is freed by the next :meth:`collect`."""
        self._store.drop_root(statepoint_id)

    def collect(self) -> int:
        """Remove what no artefact and no live layer needs; returns the bytes freed. Waits for running captures."""
        with restore_errors(self._store, "nothing was removed"):
            return collect(self._store)


def _settle(layer: Layer, index: Index) -> tuple[int, bool]:
    """Sync the layer's filesystem; returns the stamp before which an entry is clean, and whether stat is a proof."""
    proof = index.fact("proof") or proof_of(layer)
    floor = host.stamp_floor()
    fd = os.open(layer.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        host.sync_filesystem(fd)
    finally:
        os.close(fd)
    return floor, proof == "yes"


def _scan(scanner: Scanner) -> Scanned:
    for attempt in range(_TRIES - 1):
        with contextlib.suppress(Unsettled):
            return scanner.run()
        time.sleep(0.02 * 2**attempt)
    return scanner.run()


def _gaps(scanned: Scanned) -> list[list[str]]:
    gaps = [[path, reason] for path, reason in scanned.gaps]
    if not HAS_XATTRS:
        gaps.append([".", "extended attributes are not captured on this system"])
    return gaps
