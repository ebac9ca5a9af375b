"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

import typer

from planarian_core.cli import completion
from planarian_core.cli.group import JSON
from planarian_core.errors import ConfigurationError
from planarian_core.units import parse_duration, parse_size

T = TypeVar("T")


def _remember(ctx: typer.Context, value: bool) -> bool:
    ctx.meta[JSON] = value
    return value


JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout, errors too.", callback=_remember)
]
SandboxOption = Annotated[
    str,
    typer.Option(
        "--sandbox",
        "-s",
        envvar="PLANARIAN_SANDBOX",
        metavar="SANDBOX",
        help="Id, name or unique beginning of the id; the only open sandbox if left out.",
        autocompletion=completion.sandboxes,
        show_default=False,
    ),
]
SandboxArgument = Annotated[
    str,
    typer.Argument(metavar="SANDBOX", help="The same as --sandbox.", autocompletion=completion.sandboxes),
]
StatepointArgument = Annotated[
    str,
    typer.Argument(
        metavar="STATEPOINT",
        help="@head, @head~2, a name, an id or a unique beginning of one.",
        autocompletion=completion.statepoints,
        show_default=False,
    ),
]
FilesOnlyOption = Annotated[bool, typer.Option("--files-only", help="Leave the processes out: they start anew.")]


def size_of(text: str) -> int:
    """Bytes of a size on the command line; wrong usage if it is none."""
    return _parsed(parse_size, text)


def duration_of(text: str) -> float:
    """Seconds of a duration on the command line; wrong usage if it is none."""
    return _parsed(parse_duration, text)


def _parsed(parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text)
    except ConfigurationError as error:
        raise typer.BadParameter(error.message) from error
