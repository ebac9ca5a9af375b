"""``planarian pool``: where the btrfs backend keeps its snapshots."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from planarian_filesystem.pool import Pool
    from planarian_filesystem.pool_status import PoolStatus


def _remember(ctx: typer.Context, value: bool) -> bool:
    ctx.meta["planarian.json"] = value
    return value


JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout, errors too.", callback=_remember)
]


def create(
    size: Annotated[str, typer.Option(metavar="SIZE", help="How large the pool file is: 20G, 512M.")] = "20G",
    path: Annotated[
        Path | None,
        typer.Option(metavar="DIRECTORY", help="Use a directory on a btrfs that is there, instead of a file."),
    ] = None,
    sparse: Annotated[
        bool, typer.Option("--sparse", help="Take the host's space as it is used, not all at once.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a pool, where snapshots take no time.

    Sandboxes made from then on keep their files in it: a snapshot, rollback or fork costs the same few milliseconds
    however large they are. The pool is a file in the home with a btrfs in it, mounted there (root only). Its space is
    set aside at once: a file that can't grow any more because the host's disk is full would make the pool read-only,
    in the middle of a sandbox's work. With --sparse that is your risk. It is mounted again by the next command after
    a reboot. With --path a directory on an existing btrfs is used instead; an ordinary user may do that where it is
    mounted with user_subvol_rm_allowed. A home that lies on btrfs itself needs no pool.

    \b
    Example:
      planarian pool create
      planarian pool create --size 100G
      planarian pool create --path /srv/data
    """
    from planarian_filesystem import pool_making, pool_status

    pool = _pool()
    if path is not None:
        pool_making.create_directory(pool, path)
    else:
        pool_making.create_file(pool, size_of(size), sparse=sparse)
    _show(pool_status.status(pool), as_json)


def grow(
    size: Annotated[
        str, typer.Argument(metavar="SIZE", help="The new size (40G), or how much more (+10G).", show_default=False)
    ],
    as_json: JsonOption = False,
) -> None:
    """Make the pool file larger.

    Sandboxes run on meanwhile. A pool can't be made smaller.

    \b
    Example:
      planarian pool grow 40G
      planarian pool grow +10G
    """
    from planarian_filesystem import pool_making, pool_status

    pool = _pool()
    more = size_of(size.removeprefix("+"))
    if size.startswith("+") and pool.kind == "file":
        more += pool.superblock().filesystem_size
    pool_making.grow(pool, more)
    _show(pool_status.status(pool), as_json)


def status(as_json: JsonOption = False) -> None:
    """Say where the pool is and how full.

    The exit code is 4 where there is none that works, with the reason and what mends it. Data and metadata are what
    btrfs has set aside for each, and how much of that it uses: a pool whose metadata are full is full.

    \b
    Example:
      planarian pool status
    """
    from planarian_filesystem import pool_status

    _show(pool_status.status(_pool()), as_json)


def destroy(
    force: Annotated[bool, typer.Option("--force", help="Even if sandboxes or statepoints have files in it.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove the pool.

    It is refused while the files of any sandbox or statepoint are in it. With --force those files are removed for
    good; the sandboxes and statepoints stay listed, can't be used any more, and are removed by planarian rm. While a
    sandbox in it runs it is refused all the same: planarian stop ends that. Of a pool made with --path only
    Planarian's own directory is removed.

    \b
    Example:
      planarian pool destroy
      planarian pool destroy --force
    """
    from planarian_filesystem import pool_making

    sandboxes, statepoints = pool_making.destroy(_pool(), force=force)
    if as_json:
        print(json.dumps({"destroyed": True, "sandboxes": sandboxes, "statepoints": statepoints}, indent=2))
    else:
        print(f"removed the pool, with the files of {sandboxes} sandboxes and {statepoints} statepoints")


def _pool() -> Pool:
    from planarian_core.config import default_home
    from planarian_filesystem.pool import Pool

    return Pool(default_home())


def size_of(text: str) -> int:
    """Bytes of an option such as 20G."""
    from planarian_core.errors import ConfigurationError
    from planarian_core.units import parse_size

    try:
        return parse_size(text)
    except ConfigurationError as error:
        raise typer.BadParameter(error.message) from error


def _show(found: PoolStatus, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(found), indent=2))
        return
    from planarian_core.units import size as shown

    facts: dict[str, Any] = {
        "pool": {"file": found.file, "directory": found.layers, "home": found.layers}[found.kind] or found.layers,
        "mounted": found.layers.rpartition("/")[0] + (f" ({found.device})" if found.device else ""),
        "size": f"{shown(found.size)}, {shown(found.used)} used, {shown(found.free)} free",
        **{name: f"{shown(s['used'])} of {shown(s['total'])}" for name, s in sorted(found.spaces.items())},
        "on the host's disk": shown(found.allocated) if found.file else "",
        "holds": f"{found.sandboxes} sandboxes, {found.statepoints} statepoints",
        "read-only": "yes: dmesg says why" if found.read_only else "",
        "remark": found.remark,
    }
    print_facts(facts)


def print_facts(facts: Mapping[str, Any]) -> None:
    """A line for each that there is something to say of."""
    for name, value in facts.items():
        if value:
            print(f"{name + ':':20}{value}")
