"""``attach``: pick a sandbox up again."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from planarian_core.cli import output
from planarian_core.cli.opening import opened
from planarian_core.cli.options import FilesOnlyOption, JsonOption, SandboxArgument, SandboxOption

if TYPE_CHECKING:
    from planarian_core.runtime import Planarian
    from planarian_core.sandbox import Sandbox


def attach(
    named: SandboxArgument = "",
    sandbox: SandboxOption = "",
    as_left: Annotated[
        bool, typer.Option("--as-left", help="Go on with the files as they were left; processes start anew.")
    ] = False,
    shell: Annotated[bool, typer.Option("--shell", help="Then type commands into it.")] = False,
    files_only: FilesOnlyOption = False,
    accept_pivots: Annotated[
        bool, typer.Option("--accept-pivots", help="Go back past remote effects that can't be undone.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Pick a sandbox up again, also after a reboot.

    One that runs is left alone. Any other is brought to its newest statepoint; files that were left otherwise are kept
    first, as a statepoint of their own. Prints the restore context, Markdown for an agent to go on from.

    \b
    Example:
      planarian attach api
      planarian attach api --as-left --shell
    """
    if shell and as_json:
        raise typer.BadParameter("--shell is for people, --json for programs")
    with opened(as_json=as_json) as planarian:
        chosen = planarian.sandbox(named or sandbox) if named or sandbox else _only(planarian)
        with output.working("picking it up"):
            restored = planarian.attach(chosen, as_left=as_left, files_only=files_only, accept_pivots=accept_pivots)
    if as_json:
        context = restored.to_dict() if restored else None
        output.print_json({"sandbox": chosen.id, "ran": restored is None, "context": context})
    elif restored is None:
        output.remark(f"{chosen.id} runs: nothing was to be done")
    else:
        output.say(restored.to_markdown().rstrip())
    if shell:
        from planarian_core.cli.shell import shell as type_into

        sys.stdout.flush()  # what the shell's commands print goes past our buffer
        type_into(sandbox=chosen.id)


def _only(planarian: Planarian) -> Sandbox:
    """The only sandbox there is, a stopped one too; else the only open one."""
    records = planarian.registry.sandboxes()
    return planarian.sandbox(records[0].id if len(records) == 1 else "")
