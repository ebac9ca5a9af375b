"""``apply``: a sandbox's changes written back to the host's workspace, and taken back."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from planarian_core.cli import output
from planarian_core.cli.opening import opened
from planarian_core.cli.options import JsonOption, SandboxOption

if TYPE_CHECKING:
    from planarian_core.applied_changes import AppliedChanges, NotApplied
    from planarian_core.runtime import Planarian
    from planarian_core.sandbox import Sandbox

_LETTERS = {"added": "A", "deleted": "D", "changed": "M"}


def apply(
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="PATH", help="Only these, in the workspace.", show_default=False)
    ] = None,
    sandbox: SandboxOption = "",
    preview: Annotated[bool, typer.Option("--preview", help="Only say what it would do.")] = False,
    skip_conflicts: Annotated[
        bool, typer.Option("--skip-conflicts", help="Leave what the workspace changed too as it is there.")
    ] = False,
    theirs: Annotated[bool, typer.Option("--theirs", help="Take the sandbox's version of it.")] = False,
    with_git_config: Annotated[
        bool, typer.Option("--with-git-config", help="Hooks and configuration of version control, too.")
    ] = False,
    undo: Annotated[
        str, typer.Option("--undo", metavar="ID", help="Put back what an application replaced; last: the newest.")
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a sandbox's changes back to the workspace on the host.

    What changed on both sides is a conflict, and stops all of it before anything is written. Setuid bits, device nodes
    and what git on the host would execute are held back, by name. Prints the id that --undo takes. Asks first on a
    terminal.

    \b
    Example:
      planarian apply --preview
      planarian apply src docs --skip-conflicts
      planarian apply --undo last
    """
    if theirs and skip_conflicts:
        raise typer.BadParameter("--theirs and --skip-conflicts exclude each other")
    with opened(as_json=as_json) as planarian:
        if undo:
            taken = planarian.sandbox_of_application(undo) or planarian.sandbox(sandbox)
            _undo(planarian, taken, undo, skip_conflicts, as_json)
            return
        chosen = planarian.sandbox(sandbox)
        options = {"theirs": theirs, "skip_conflicts": skip_conflicts, "with_git_config": with_git_config}
        asks = not (preview or yes or as_json) and sys.stdin is not None and sys.stdin.isatty()
        if preview or asks:
            with output.working("comparing"):
                found = planarian.apply(chosen, paths=paths or (), preview=True, **options)
        if asks and found.applied and not (found.conflicts and not (theirs or skip_conflicts)):
            _show(found)
            if not typer.confirm(f"Write this to {found.workspace}?", err=True):
                raise typer.Exit(1)
        if not preview:
            with output.working("applying"):
                found = planarian.apply(chosen, paths=paths or (), **options)
    if as_json:
        output.print_json(found.to_dict())
    else:
        _show(found)
        if found.id:
            output.say(found.id)
            output.remark(f"applied to {found.workspace}; taken back by: planarian apply --undo {found.id}")
        else:
            output.remark("nothing was written" if preview else f"there is nothing to apply to {found.workspace}")


def _show(found: AppliedChanges) -> None:
    for one in found.applied:
        notes = [*([one.reason] if one.reason else []), *(f"without {name}" for name in one.dropped)]
        _say(_LETTERS[one.change], one.path, "; ".join(notes))
    for conflict in found.conflicts:
        _say("C", conflict.path, conflict.reason)
    for conflict in found.conflicts:
        if conflict.report:
            output.say(conflict.report.rstrip("\n"))
    _remarks("held back", found.held_back)
    _remarks("left out", found.left_out)


def _say(letter: str, path: str, note: str) -> None:
    output.say(output.one_line(f"{letter} {path}" + (f"  ({note})" if note else "")))


def _remarks(what: str, paths: tuple[NotApplied, ...]) -> None:
    for one in paths:
        output.remark(output.one_line(f"{what}: {one.path} ({one.reason})"))


def _undo(planarian: Planarian, chosen: Sandbox, reference: str, skip_conflicts: bool, as_json: bool) -> None:
    with output.working("putting back"):
        done = planarian.undo_application(chosen, reference, skip_conflicts=skip_conflicts)
    if as_json:
        output.print_json(done.to_dict())
        return
    for path in done.kept:
        output.remark(output.one_line(f"left as it is: {path} (changed since)"))
    output.say(done.id)
    output.remark(f"put back in {done.workspace}: {len(done.back)} paths")
