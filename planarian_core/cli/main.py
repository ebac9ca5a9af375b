"""The command line's entry point; the commands are listed in ``own_commands.py``."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from planarian_core.cli import exit_codes
from planarian_core.cli.group import PlanarianGroup

app = typer.Typer(
    cls=PlanarianGroup,
    epilog=exit_codes.SUMMARY,
    rich_markup_mode=None,  # plain help: it starts three times as fast and survives pipes
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(value: bool) -> None:
    if value:
        from planarian_core import __version__

        typer.echo(f"planarian {__version__}")
        raise typer.Exit


@app.callback()
def planarian(
    home: Annotated[
        Path | None,
        typer.Option(
            envvar="PLANARIAN_HOME",
            metavar="PATH",
            help="Where sandboxes and statepoints are kept.",
            show_default="your data directory",
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Statepoints for agents: snapshot, roll back and fork files, processes and remote state as one.

    A sandbox is a directory with what runs in it. Make one, work in it, and come back to where you were.

    \b
    Example:
      planarian new repo
      planarian run -- pip install -r requirements.txt
      planarian snapshot deps
      planarian run -- rm -rf src
      planarian rollback deps
    """
    if home is not None:
        os.environ["PLANARIAN_HOME"] = str(home)  # so that commands of plugins mean the same home


def main() -> None:
    """Run the command line; ends the process."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, _end_well)
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):  # closed by the caller
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a TextIOWrapper when it is there
    app()


def _end_well(number: int, frame: FrameType | None) -> None:
    """Unwind, so that a command's processes are ended and locks are released."""
    raise SystemExit(128 + number)
