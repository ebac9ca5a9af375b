"""``shell``: a person, or a script, types into a persistent shell of a sandbox."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from planarian_core.cli import exit_codes, failure, output
from planarian_core.cli.opening import opened
from planarian_core.cli.options import SandboxOption
from planarian_core.cli.running import Relay
from planarian_core.errors import PlanarianError

if TYPE_CHECKING:
    from planarian_core.sandbox import Sandbox

_UNFINISHED = (b"unexpected end of file", b"unexpected EOF", b"delimited by end-of-file")
_PLAIN = {"LC_ALL": "C", "PATH": "/usr/local/bin:/usr/bin:/bin"}
"""No variable that makes bash read a file first, and messages in English."""


def shell(
    sandbox: SandboxOption = "",
    session: Annotated[str, typer.Option(metavar="NAME", help="Which persistent shell.")] = "shell",
) -> None:
    """Type commands into a sandbox, one after the other.

    Directory, variables and functions last from line to line, and from one planarian shell to the next. It is no
    terminal: full-screen programs don't work in it. Ctrl-C ends the running command; exit or Ctrl-D leaves, with the
    exit code of the last command. Without a terminal, lines come from standard input.

    \b
    Example:
      planarian shell -s api
      printf 'cd src\\nmake\\n' | planarian shell -s api
    """
    interactive = bool(sys.stdin) and sys.stdin.isatty()
    with opened(as_json=False) as planarian:
        chosen = planarian.sandbox(sandbox)
        lines = _typed(chosen.record.name or chosen.id) if interactive else _piped()
        code = 0
        for text in lines:
            words = text.split()
            if words and words[0] in ("exit", "logout") and len(words) <= 2 and "\n" not in text.strip():
                code = int(words[1]) % 256 if len(words) == 2 and words[1].isdecimal() else code
                break
            code = _run(chosen, text, session, interactive)
    raise typer.Exit(code)


def _run(sandbox: Sandbox, text: str, session: str, interactive: bool) -> int:
    """Run one entry. At a terminal neither Ctrl-C nor a failure ends the shell."""
    relay = Relay()
    try:
        result = sandbox.run(text, session=session, on_output=relay)
        relay.finish(result)
        return result.exit_code
    except KeyboardInterrupt:
        if not interactive:
            raise
        output.remark("^C")
        return exit_codes.INTERRUPTED
    except PlanarianError as error:
        if not interactive:
            raise
        failure.report(error, as_json=False)
        return exit_codes.code_for(error)


def _piped() -> Iterator[str]:
    """Entries from standard input: lines, joined where the shell's grammar needs more of them."""
    if sys.stdin is None:
        return
    entry = b""
    for line in sys.stdin.buffer:
        entry += line
        if not _incomplete(entry):
            yield entry.decode("utf-8", "surrogateescape")
            entry = b""
    if entry:
        yield entry.decode("utf-8", "surrogateescape")


def _typed(name: str) -> Iterator[str]:
    """Entries typed at a terminal, with line editing and history where Python has them."""
    with suppress(ImportError):
        import readline  # noqa: F401  # imported for its effect on input()
    entry = ""
    while True:
        try:
            entry += input("> " if entry else f"({output.one_line(name)}) $ ") + "\n"
        except KeyboardInterrupt:
            output.remark("")
            entry = ""
            continue
        except EOFError:
            output.remark("")
            return
        if not entry.strip():
            entry = ""
        elif not _incomplete(entry.encode("utf-8", "surrogateescape")):
            yield entry
            entry = ""


def _incomplete(entry: bytes) -> bool:
    """Whether bash would read on: an open quote, loop or here-document, a backslash at the end. Nothing is executed."""
    text = entry.rstrip(b"\n")
    if (len(text) - len(text.rstrip(b"\\"))) % 2:
        return True
    try:
        parsed = subprocess.run(["bash", "-n"], input=entry, capture_output=True, timeout=5, env=_PLAIN, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    return any(sign in parsed.stderr for sign in _UNFINISHED)
