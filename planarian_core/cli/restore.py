"""``restore``: single files and directories back from a statepoint."""

from __future__ import annotations

from typing import Annotated

import typer

from planarian_core.cli import completion, output
from planarian_core.cli.opening import opened, owner
from planarian_core.cli.options import JsonOption, SandboxOption


def restore(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH", help="Relative to the workspace, or absolute.", show_default=False)
    ],
    statepoint: Annotated[
        str,
        typer.Option("--from", "-f", metavar="STATEPOINT", help="Where from.", autocompletion=completion.statepoints),
    ] = "@head",
    sandbox: SandboxOption = "",
    no_safety: Annotated[
        bool, typer.Option("--no-safety", help="Take no statepoint of the present state first.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Bring single files or directories back from a statepoint.

    The rest of the sandbox, and what runs in it, is not touched. What wasn't there at the statepoint is removed. First
    keeps the present state as a statepoint, so that it can be undone. Prints the restore context, Markdown for an
    agent.

    \b
    Example:
      planarian restore src/main.py --from deps
      planarian restore src /etc/hosts --from @head~2
    """
    with opened(as_json=as_json) as planarian:
        chosen = owner(planarian, sandbox, statepoint)
        with output.working("bringing files back"):
            restored = planarian.restore_paths(chosen, statepoint, paths, safety=not no_safety)
    if as_json:
        output.print_json(restored.to_dict())
    else:
        output.say(restored.to_markdown().rstrip())
