"""What an increment is built on, kept in its own directory: every image is whole by itself.

CRIU looks for the pages that an image leaves out in ``parent``, which it takes for a link to the directory of another
image. Here it is a real directory: of hard links to the pages of the one before, which has its own ``parent`` in turn.
So nothing that is done to another statepoint's image orphans this one: giving one up frees what no other needs, a
bundle takes all along, and the inventory in ``parent``, which Algorithm 1 changes, is this image's own copy.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from planarian_core.errors import RestoreError
from planarian_process.criu_images import MANIFEST, PARENT, Manifest, check, digest_of
from planarian_process.criu_inventory import INVENTORY, set_uptime
from planarian_process.criu_pagemaps import pages_of, pid_of

Inherited = Mapping[str, tuple[int, str]]
"""Size and hash of each file below an image's ``parent``, by its name from the image's directory."""


class Broken(Exception):
    """Nothing can be built on an image; the text says why."""


def inherit(before: Path, digest: str, uptime: int, images: Path, pids: Collection[str] | None = None) -> Inherited:
    """Make the ``parent`` of an image to be taken into ``images`` from the one in ``before``.

    Args:
        digest: of the manifest of ``before``.
        uptime: what its inventory is to say here, in microseconds after the boot; 0: what it says.
        pids: of the processes whose memory is to be built on; None for all.

    Raises:
        Broken: that image was deleted, changed or cut short, or there can be no more links to it; ``images`` is empty.
    """
    try:
        return _inherit(before, check(before, digest), uptime, images / PARENT, pids)
    except (OSError, ValueError, RestoreError) as failure:
        shutil.rmtree(images / PARENT, ignore_errors=True)
        raise Broken(failure.message if isinstance(failure, RestoreError) else str(failure)) from failure


def _inherit(before: Path, manifest: Manifest, uptime: int, parent: Path, pids: Collection[str] | None) -> Inherited:
    sealed = os.lstat(before / MANIFEST).st_mtime_ns
    inherited = {}
    parent.mkdir(mode=0o700)
    for name in _needed(before, manifest, pids):
        if os.lstat(before / name).st_mtime_ns > sealed:
            raise ValueError(f"{before / name} was changed since")
        place = parent / name
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.link(before / name, place, follow_symlinks=False)
        inherited[f"{PARENT}/{name}"] = manifest.files[name]
    shutil.copyfile(before / INVENTORY, parent / INVENTORY)
    if uptime:
        set_uptime(parent, uptime)
    inherited[f"{PARENT}/{INVENTORY}"] = digest_of(parent / INVENTORY)
    return inherited


def _needed(before: Path, manifest: Manifest, pids: Collection[str] | None) -> Iterator[str]:
    """The files in which pages are to be found, and where: of the image, and of all that it is built on.

    Memory of processes alone. What they share is always captured in full: it can be written through a descriptor, or by
    a process that has ended, and no mark tells.
    """
    for name in manifest.files:
        pid = pid_of(os.path.basename(name))
        if not pid or (pids is not None and pid not in pids):
            continue
        yield name
        pages = os.path.join(os.path.dirname(name), pages_of(before / name))
        if pages in manifest.files:
            yield pages
