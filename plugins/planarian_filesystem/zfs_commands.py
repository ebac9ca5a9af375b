"""``planarian zfs``: where the zfs backend keeps its datasets."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from planarian_filesystem.pool_commands import JsonOption, print_facts, size_of

if TYPE_CHECKING:
    from planarian_filesystem.zfs_making import ZfsStatus
    from planarian_filesystem.zfs_pool import ZfsPool


def create(
    size: Annotated[str, typer.Option(metavar="SIZE", help="How large the pool file may grow: 20G, 512M.")] = "20G",
    dataset: Annotated[
        str, typer.Option(metavar="DATASET", help="Use a dataset of a pool that is there, instead of a file.")
    ] = "",
    sparse: Annotated[
        bool, typer.Option("--sparse", help="Take the host's space as it is used, not all at once.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a place in a ZFS pool for the sandboxes of this home (root only).

    Sandboxes made from then on keep their files in it. With --dataset everything goes below that dataset. Without, the
    pool is a file in the home, for trials. Its space is set aside at once: a file that can't grow any more because the
    host's disk is full would fail the writes of whatever runs in its sandboxes. With --sparse that is your risk. It is
    imported and mounted again by the next command after a reboot.

    \b
    Example:
      planarian zfs create --dataset tank/agents
      planarian zfs create --size 4G
    """
    from planarian_filesystem import zfs_making

    pool = _pool()
    if dataset:
        zfs_making.create_below(pool, dataset)
    else:
        zfs_making.create_file(pool, size_of(size), sparse=sparse)
    _show(zfs_making.status(pool), as_json)


def status(as_json: JsonOption = False) -> None:
    """Say where the datasets are and how full their pool.

    The exit code is 4 where there is none that works, with the reason and what mends it.

    \b
    Example:
      planarian zfs status
    """
    from planarian_filesystem import zfs_making

    _show(zfs_making.status(_pool()), as_json)


def destroy(
    force: Annotated[bool, typer.Option("--force", help="Even if sandboxes or statepoints have files in it.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove the place in the pool, and the pool file.

    It is refused while the files of any sandbox or statepoint are in it. With --force those are removed for good; while
    a sandbox in it runs it is refused all the same: planarian stop ends that. Of the pool of --dataset only Planarian's
    own datasets go. One that can't be used any more (its file or dataset is gone) is given up with --force too.

    \b
    Example:
      planarian zfs destroy
      planarian zfs destroy --force
    """
    from planarian_filesystem import zfs_making

    sandboxes, statepoints = zfs_making.destroy(_pool(), force=force)
    if as_json:
        print(json.dumps({"destroyed": True, "sandboxes": sandboxes, "statepoints": statepoints}, indent=2))
    else:
        print(f"removed it, with the files of {sandboxes} sandboxes and {statepoints} statepoints")


def _pool() -> ZfsPool:
    from planarian_core.config import default_home
    from planarian_filesystem.zfs_pool import ZfsPool

    home = default_home()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    return ZfsPool(home)


def _show(found: ZfsStatus, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(found), indent=2))
        return
    from planarian_core.units import size as shown

    facts = {
        "dataset": found.base,
        "pool file": found.file,
        "mounted": found.mounted,
        "health": found.health,
        "size": f"{shown(found.used)} used, {shown(found.available)} free",
        "holds": f"{found.sandboxes} sandboxes, {found.statepoints} statepoints",
        "waiting": f"{found.waiting} datasets, for what builds on them or uses them" if found.waiting else "",
    }
    print_facts(facts)
