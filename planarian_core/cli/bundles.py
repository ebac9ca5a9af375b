"""``export``, ``import``: a statepoint as one file, to keep or to go on from elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planarian_core.cli import output
from planarian_core.cli.opening import opened, owner
from planarian_core.cli.options import FilesOnlyOption, JsonOption, SandboxOption, StatepointArgument

if TYPE_CHECKING:
    from planarian_core.bundle_reading import Imported

FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="The bundle, such as deps.planarian.zst.", show_default=False)
]
KeyFileOption = Annotated[
    Path | None,
    typer.Option("--key-file", metavar="FILE", help="The key to seal or know it by.", show_default="the home's own"),
]


def export(
    statepoint: StatepointArgument,
    file: FileArgument,
    sandbox: SandboxOption = "",
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
    key_file: KeyFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a statepoint into one file, to go on from it elsewhere.

    Files, processes, evidence and lineage: whoever has the file can go on from there in a home of their own (planarian
    import). It holds all that the sandbox held, secrets too. Every part has its hash; the home's key seals the whole,
    so that its maker is known.

    \b
    Example:
      planarian export deps deps.planarian.zst
      planarian export -s api @head api.planarian.zst --force
    """
    with opened(as_json=as_json) as planarian:
        source = owner(planarian, sandbox, statepoint)
        with _progress("exporting") as (begin, progress):
            made = planarian.export_with_report(
                statepoint, file, of=source, force=force, key_file=key_file, progress=progress, begin=begin
            )
    if as_json:
        output.print_json(
            {
                "file": str(made.file),
                "statepoint": made.statepoint.id,
                "bytes": made.size,
                "content": made.content,
                "ancestors": made.ancestors,
                "processes": made.processes,
            }
        )
        return
    what = "files and processes" if made.processes else "files"
    output.remark(
        f"{what} of {made.statepoint.id} ({output.size(made.content)}), evidence of {made.ancestors} statepoints above "
        f"it: {output.size(made.size)}"
    )
    output.say(str(made.file))


def import_(
    file: FileArgument,
    name: Annotated[str, typer.Option(help="A name to call it by.", show_default="the bundle's, if free")] = "",
    check: Annotated[bool, typer.Option("--check", help="Only say whether it is sound and fits here.")] = False,
    filesystem: Annotated[str, typer.Option(help="File backend.", show_default="the best one here")] = "",
    files_only: FilesOnlyOption = False,
    again: Annotated[bool, typer.Option("--again", help="Give everything in it fresh ids.")] = False,
    trust_images: Annotated[
        bool, typer.Option("--trust-images", help="Vouch for its maker: run what it says, as this user.")
    ] = False,
    key_file: KeyFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a sandbox from a bundle that planarian export wrote.

    Checks all of it before anything is written, and refuses what this host can't restore. The sandbox comes stopped;
    planarian attach brings it to life. Processes come along only from a bundle that this home, or one with its
    key, made; --trust-images takes anybody's. Prints the sandbox's id.

    \b
    Example:
      planarian import deps.planarian.zst --check
      planarian import deps.planarian.zst --name deps
    """
    with opened(as_json=as_json) as planarian, _progress("reading") as (_, progress):
        made = planarian.import_with_report(
            file,
            check=check,
            name=name,
            filesystem=filesystem,
            files_only=files_only,
            again=again,
            trust_images=trust_images,
            key_file=key_file,
            progress=progress,
        )
    _tell(made, check, as_json)


def _tell(made: Imported, check: bool, as_json: bool) -> None:
    if as_json:
        from planarian_core.codec import encode

        output.print_json(
            {
                "checked" if check else "imported": made.record.id,
                "name": made.record.name,
                "statepoint": made.statepoint.id,
                "authentic": made.authentic,
                "processes": made.statepoint.processes is not None,
                "ancestors": made.ancestors,
                "sandbox": made.record.spec.backend,
                "filesystem": made.record.filesystem,
                "process": made.record.process,
                "workspace": made.record.spec.workspace,
                "gaps": encode(made.gaps),
            }
        )
        return
    maker = "made by this home or one with its key" if made.authentic else "its maker is not known here"
    output.remark(f"the bundle is whole; {maker}")
    for gap in made.gaps:
        output.remark(f"not as it was: {gap.subject} ({gap.reason})")
    if check:
        output.remark("nothing was imported")
    else:
        output.remark(f"stopped; it comes to life with: planarian attach {made.record.id}")
    output.say(made.record.id)


@contextmanager
def _progress(what: str) -> Iterator[tuple[Callable[[int], None], Callable[[int], None]]]:
    """What to call with the bytes there are, and with the bytes that are done; shown on a terminal only."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield _ignore, _ignore
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn(f"{what} …"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True, markup=False), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda size: bar.update(task, total=size), lambda size: bar.advance(task, size)


def _ignore(size: int) -> None:
    return
