"""``run``: one command in a sandbox, its output as it comes, its exit code as ours."""

from __future__ import annotations

import select
import sys
from typing import Annotated

import typer

from planarian_core.cli import exit_codes, output
from planarian_core.cli.opening import opened
from planarian_core.cli.options import JsonOption, SandboxOption
from planarian_core.model import CommandResult

_PATIENCE = 3.0


class Relay:
    """Passes output on as bytes, at once; remembers what came, for backends that only give it at the end."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def __call__(self, stream: str, data: bytes) -> None:
        """Pass a piece on. A reader that went away ends the command (SystemExit, so that no backend hides it)."""
        self._seen.add(stream)
        target = (sys.stdout if stream == "stdout" else sys.stderr).buffer
        try:
            target.write(data)
            target.flush()
        except BrokenPipeError:
            from planarian_core.cli.failure import silence

            silence()
            raise SystemExit(exit_codes.OUTPUT_CLOSED) from None

    def finish(self, result: CommandResult) -> None:
        """Print of the result what never came as a piece."""
        for stream, text in (("stdout", result.stdout), ("stderr", result.stderr)):
            if text and stream not in self._seen:
                self(stream, text.encode("utf-8", "surrogateescape"))


def run(
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND", help="The command and its arguments.", show_default=False)
    ],
    sandbox: SandboxOption = "",
    cwd: Annotated[str, typer.Option(metavar="DIR", help="Directory inside.", show_default="the workspace")] = "",
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Set a variable; may be repeated.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="End it with all its children after this time; 0: never.")
    ] = 0,
    session: Annotated[
        str, typer.Option(metavar="NAME", help="A shell that keeps directory and variables from run to run.")
    ] = "",
    no_stdin: Annotated[bool, typer.Option("--no-stdin", "-n", help="Give it an empty standard input.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a command in a sandbox.

    Output comes as it is written, standard input is read to its end first unless it is a terminal, and the exit code
    is the command's: 124 when its time was up, 125 when Planarian itself failed. What it leaves in the background
    goes on running. There is no shell in between, except in a --session, where one argument is a line of shell.

    \b
    Example:
      planarian run -- pip install -r requirements.txt
      planarian run -s api --timeout 60 -- bash -c 'make && make test'
      planarian run --session dev -- 'cd src && export DEBUG=1'
    """
    variables = _variables(env or [])
    stdin = b"" if no_stdin else _read_stdin()
    relay = Relay()
    with opened(as_json=as_json) as planarian:
        chosen = planarian.sandbox(sandbox)
        result = chosen.run(
            _shell_line(command) if session else command,
            cwd=cwd,
            env=variables,
            stdin=stdin,
            timeout=timeout or None,
            session=session,
            on_output=None if as_json else relay,
        )
    if as_json:
        from planarian_core.codec import encode

        output.print_json({"sandbox": chosen.id, **encode(result)})
    else:
        relay.finish(result)
        if result.timed_out:
            output.remark(f"planarian: the command was ended after {timeout:g} seconds")
    raise typer.Exit(result.exit_code)


def _variables(assignments: list[str]) -> dict[str, str]:
    variables = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{assignment!r} is not NAME=VALUE")
        variables[name] = value
    return variables


def _shell_line(command: list[str]) -> str:
    """One argument is a line of shell as it is; several are one command, quoted."""
    import shlex

    return command[0] if len(command) == 1 else shlex.join(command)


def _read_stdin() -> bytes:
    """All of standard input, unless it is a terminal or closed. A writer that keeps us waiting is pointed out."""
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        return b""
    try:
        waiting = not select.select([sys.stdin], [], [], _PATIENCE)[0]
    except (ValueError, OSError):
        waiting = False  # not a descriptor: it is in memory
    if waiting:
        output.remark("planarian: waiting for the end of standard input; --no-stdin leaves it out")
    return sys.stdin.buffer.read()
