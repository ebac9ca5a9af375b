"""``drill``: try whether a statepoint can be restored, beside everything that runs."""

from __future__ import annotations

import typer

from planarian_core.cli import output
from planarian_core.cli.opening import opened, owner
from planarian_core.cli.options import JsonOption, SandboxOption, StatepointArgument
from planarian_core.codec import encode


def drill(statepoint: StatepointArgument = "@head", sandbox: SandboxOption = "", as_json: JsonOption = False) -> None:
    """Try whether a statepoint can be restored.

    A copy of it is restored beside everything that runs, its processes frozen before their first instruction, and
    removed again. The finding is kept: one that failed is marked in log and show, and a rollback to it is refused
    until a drill succeeds or processes are left out (--files-only). Exit code 1 when it failed.

    \b
    Example:
      planarian drill deps
      planarian drill @head --json
    """
    with opened(as_json=as_json) as planarian:
        source = owner(planarian, sandbox, statepoint)
        with output.working("trying it beside the original"):
            found = planarian.drill(statepoint, of=source)
    if as_json:
        output.print_json(encode(found))
    elif found.error:
        output.say(f"{found.statepoint_id} can't be restored: {found.error}")
    else:
        output.say(f"{found.statepoint_id} can be restored: it took {found.seconds:.3f} s")
    if found.error:
        raise typer.Exit(1)
