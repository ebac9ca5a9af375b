"""``promote``: a fork becomes the head of the sandbox that it came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from planarian_core.cli import completion, output
from planarian_core.cli.opening import opened
from planarian_core.cli.options import FilesOnlyOption, JsonOption, SandboxOption
from planarian_core.codec import encode

if TYPE_CHECKING:
    from planarian_core.promote import PromotionPreview
    from planarian_core.runtime import Planarian
    from planarian_core.sandbox import Sandbox


def promote(
    fork: Annotated[
        str,
        typer.Argument(
            metavar="FORK",
            help="The fork's id, name or unique beginning of the id.",
            autocompletion=completion.sandboxes,
            show_default="the only open fork",
        ),
    ] = "",
    sandbox: SandboxOption = "",
    force: Annotated[bool, typer.Option("--force", help="Set aside what the source did since; it is kept.")] = False,
    preview: Annotated[bool, typer.Option("--preview", help="Only say what would be set aside.")] = False,
    files_only: FilesOnlyOption = False,
    accept_pivots: Annotated[
        bool, typer.Option("--accept-pivots", help="Go back past remote effects that can't be undone.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a fork's state the head of the sandbox that it came from.

    What the source did since the fork is a conflict unless --force; a safety statepoint keeps it then. The fork itself
    stays as it is. Prints the restore context, Markdown for the source's agent to go on from.

    \b
    Example:
      planarian promote attempt-2 --preview
      planarian promote attempt-2 --force
    """
    with opened(as_json=as_json) as planarian:
        chosen = planarian.sandbox(fork or sandbox) if fork or sandbox else _only_fork(planarian)
        if preview:
            with output.working("comparing"):
                found = planarian.preview_promotion(chosen)
            _show(found, as_json)
            return
        with output.working("promoting"):
            restored = planarian.promote(chosen, force=force, files_only=files_only, accept_pivots=accept_pivots)
    if as_json:
        output.print_json(restored.to_dict())
    else:
        output.say(restored.to_markdown().rstrip())


def _only_fork(planarian: Planarian) -> Sandbox:
    grown = {branch.sandbox_id for branch in planarian.registry.branches() if branch.forked_from}
    forks = [r.id for r in planarian.registry.sandboxes() if r.id in grown and not r.closed]
    return planarian.sandbox(forks[0] if len(forks) == 1 else "")


def _show(found: PromotionPreview, as_json: bool) -> None:
    if as_json:
        output.print_json({"preview": True, **encode(found)})
        return
    output.say(f"A promotion of {found.fork} into {found.source}, forked from {found.fork_point}, would set aside")
    for conflict in found.conflicts:
        output.say(output.one_line(f"  {conflict.kind}: {conflict.text}"))
    if found.conflicts:
        output.remark("nothing was changed; with --force a safety statepoint keeps these")
    else:
        output.say("  nothing: the source has not gone on since")
        output.remark("nothing was changed")
