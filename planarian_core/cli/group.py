"""The ``planarian`` command itself: turns every ending into an exit code, and finds plugins' commands."""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from functools import cached_property
from typing import Any, cast

import typer
from typer.core import TyperGroup

from planarian_core.cli import exit_codes, failure, plugin_commands
from planarian_core.cli.output import remark
from planarian_core.cli.own_commands import OwnCommands
from planarian_core.errors import PlanarianError

_UsageError, _ClickException = typer.BadParameter.__mro__[1:3]  # wherever this release of Typer keeps its click
JSON = "planarian.json"
"""Set in a context's ``meta`` when ``--json`` was given."""


class PlanarianGroup(TyperGroup):
    """The top-level command. All failures end here: a message, an exit code, and no traceback.

    Contexts are ``Any``: their class is Typer's private one, or click's, depending on the release.
    """

    def main(self, args: Sequence[str] | None = None, *_: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run a command line; ends the process with its exit code, or returns it without ``standalone_mode``."""
        arguments = list(sys.argv[1:] if args is None else args) or ["--help"]
        extra["prog_name"] = "planarian"
        try:
            code = super().main(arguments, standalone_mode=False, **extra)
        except Exception as error:  # nothing else than wrong global options, or --help and the like failing
            code = _end(error, command="", as_json=_wants_json(arguments))
        except KeyboardInterrupt:
            code = exit_codes.INTERRUPTED
        code = code if isinstance(code, int) else exit_codes.OK
        if standalone_mode:
            sys.exit(code)
        return code

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was named, and end well whatever happens in it."""
        arguments = [*getattr(ctx, "protected_args", ()), *getattr(ctx, "_protected_args", ()), *ctx.args]
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except typer.Exit:
            raise
        except (KeyboardInterrupt, typer.Abort) as error:
            raise typer.Exit(exit_codes.INTERRUPTED) from error
        except Exception as error:
            as_json = ctx.meta.get(JSON, False) or (isinstance(error, _UsageError) and _wants_json(arguments))
            raise typer.Exit(_end(error, ctx.invoked_subcommand or "", as_json)) from error

    # --- commands ---

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = cast("Any", OwnCommands())

    @cached_property
    def _from_plugins(self) -> plugin_commands.PluginCommands:
        return plugin_commands.load(self.commands)

    def list_commands(self, ctx: Any) -> list[str]:
        """Our own in the order of a day's work, then the plugins'."""
        if not ctx.resilient_parsing:
            for problem in self._from_plugins.problems:
                remark(f"planarian: {problem}")
        return [*self.commands, *sorted(self._from_plugins.callbacks)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command by its name, of our own or of a plugin."""
        own = self.commands.get(cmd_name)
        if own is not None:
            return own
        callback = self._from_plugins.callbacks.get(cmd_name)
        return None if callback is None else plugin_commands.build(cmd_name, callback)


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether an unparsable command line asks for JSON; what follows ``--`` is somebody else's."""
    own = list(arguments)
    return "--json" in (own[: own.index("--")] if "--" in own else own)


def _end(error: Exception, command: str, as_json: bool) -> int:
    """Show ``error`` and say which exit code it gives."""
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        failure.silence()
        return exit_codes.OUTPUT_CLOSED
    if isinstance(error, _UsageError):
        code = _usage(error, command, as_json)
    elif isinstance(error, _ClickException):
        code = exit_codes.FAILED
        failure.report(PlanarianError(str(error)), as_json=as_json)
    else:
        shown = error if isinstance(error, PlanarianError) else failure.internal(error)
        failure.report(shown, as_json=as_json)
        code = exit_codes.code_for(shown)
    return exit_codes.RUN_FAILED if command == "run" else code


def _usage(error: Any, command: str, as_json: bool) -> int:
    if as_json:
        remedy = f"planarian {command} --help".replace("  ", " ")
        failure.report(PlanarianError(error.format_message(), code="usage", remedy=remedy), as_json=True)
    else:
        error.show()
    return exit_codes.USAGE
