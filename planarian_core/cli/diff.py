"""``diff``: what changed between two statepoints, or since one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from planarian_core.cli import completion, output
from planarian_core.cli.opening import opened, owner
from planarian_core.cli.options import JsonOption, SandboxOption

if TYPE_CHECKING:
    from planarian_core.diff import Diff

_COLOURS = {"A": "32", "D": "31", "M": "33", "R": "36", "+": "32", "-": "31", "@": "36"}


def diff(
    before: Annotated[
        str, typer.Argument(metavar="A", help="A statepoint to begin with.", autocompletion=completion.statepoints)
    ] = "@head",
    after: Annotated[
        str,
        typer.Argument(metavar="B", help="A statepoint, of a fork too; or now.", autocompletion=completion.statepoints),
    ] = "now",
    sandbox: SandboxOption = "",
    path: Annotated[
        list[str] | None, typer.Option("--path", "-p", metavar="PATH", help="Only what is there; may be repeated.")
    ] = None,
    stat: Annotated[bool, typer.Option("--stat", help="Leave the texts out.")] = False,
    name_only: Annotated[bool, typer.Option("--name-only", help="Only the names of changed files.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what changed since a statepoint, or between two.

    Files in the workspace (relative names) and everywhere else in the sandbox (absolute ones): A added, D deleted,
    M changed, R renamed. Then processes, remote services, and the texts. Modification times alone are no change.

    \b
    Example:
      planarian diff
      planarian diff deps @head --stat
      planarian diff @head~1 now --path src --json
    """
    with opened(as_json=as_json) as planarian:
        source = owner(planarian, sandbox, before)
        text = not (stat or name_only)
        with output.working("comparing"):
            found = planarian.diff(before, None if after == "now" else after, of=source, paths=path or (), text=text)
    if as_json:
        output.print_json(found.to_dict())
    elif name_only:
        for change in found.files:
            output.say(output.one_line(change.path))
    else:
        _print(found)


def _print(found: Diff) -> None:
    from planarian_core.diff_text import beside_files, count_line, file_line

    for change in found.files:
        _say(file_line(change), file_line(change)[0])
    for line in beside_files(found):
        output.say(output.printable(line))
    for change in found.files:
        for line in change.text.splitlines():
            _say(line, line[:1])
    output.remark(f"{found.before} to {found.after}: {count_line(found)}")


def _say(line: str, mark: str) -> None:
    colour = _COLOURS.get(mark)
    text = output.printable(line)
    # The colour goes around what was cleaned, so that what comes out of a sandbox can set none.
    print(f"\x1b[{colour}m{text}\x1b[0m" if colour and sys.stdout.isatty() else text)
