"""Bundles as users call them: a statepoint out into one file, and in again.

Methods of :class:`planarian_core.runtime.Planarian`, which takes them up under their names.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from planarian_core.sandbox import Sandbox, StatepointRef

if TYPE_CHECKING:
    from planarian_core.bundle_reading import Imported
    from planarian_core.bundle_writing import Exported
    from planarian_core.runtime import Planarian


def export(self: Planarian, statepoint: StatepointRef, file: str | Path, *, of: Sandbox | None = None) -> Path:
    """Write a statepoint with its artefacts, evidence and lineage into one new file (``docs/bundles.md``).

    Raises:
        BundleError, LineageError, RestoreError: nothing was written.
    """
    return self.export_with_report(statepoint, file, of=of).file


def export_with_report(
    self: Planarian,
    statepoint: StatepointRef,
    file: str | Path,
    *,
    of: Sandbox | None = None,
    force: bool = False,
    key_file: Path | None = None,
    progress: Callable[[int], None] = lambda size: None,
    begin: Callable[[int], None] = lambda size: None,
) -> Exported:
    """:meth:`export`, and what was written.

    Args:
        force: replace a file that is there.
        key_file: the key to seal it with, instead of the home's.
        progress: told of bytes that were read; ``begin`` before them how many there are.
    """
    from importlib.metadata import version

    from planarian_core.bundle_key import make_key
    from planarian_core.bundle_writing import Exporter

    point = self.resolve(of or self.owner_of(statepoint), statepoint)
    exporter = Exporter(self.home, self.registry, self.plugins, version("planarian"))
    key = make_key(self.home, key_file)
    path = Path(file).expanduser().absolute()
    return exporter.export(point, path, key, force=force, progress=progress, begin=begin)


def import_(self: Planarian, file: str | Path, *, name: str = "", trust_images: bool = False) -> Sandbox:
    """Make a stopped sandbox whose head is a bundle's statepoint; a rollback to it brings it to life.

    Args:
        name: the bundle's own, where nobody has it, if empty.
        trust_images: vouch for who made it, if this home didn't: take its processes, and what else would let it
            do more here than files can.

    Raises:
        BundleError: damaged, hostile, known already, or not to be restored on this host. Nothing was imported.
    """
    return Sandbox(self, self.import_with_report(file, name=name, trust_images=trust_images).record.id)


def import_with_report(
    self: Planarian,
    file: str | Path,
    *,
    check: bool = False,
    name: str = "",
    filesystem: str = "",
    files_only: bool = False,
    again: bool = False,
    trust_images: bool = False,
    key_file: Path | None = None,
    progress: Callable[[int], None] = lambda size: None,
) -> Imported:
    """:meth:`import_`, and what came along.

    Args:
        check: only find out; nothing is written.
        filesystem: the file backend; the best one that this host allows if empty.
        files_only: leave the processes out.
        again: give everything in it fresh ids, as where it was imported before.
        key_file: the key to know it by, instead of the home's.
    """
    from planarian_core.bundle_fitting import ImportRequest
    from planarian_core.bundle_reading import Importer

    request = ImportRequest(name, filesystem, trust_images, files_only, again, key_file)
    importer = Importer(self.sandboxes, self.config)
    path = Path(file).expanduser().absolute()
    return importer.check(path, request, progress) if check else importer.run(path, request, progress)
