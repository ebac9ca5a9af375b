"""What no backend can run: commands that are refused before anything of them happens."""

from __future__ import annotations

import re

from planarian_core.errors import SandboxError
from planarian_core.model import Command, SandboxSpec

_SESSION = re.compile(r"[A-Za-z0-9_-]{1,64}")


def check_command(spec: SandboxSpec, command: Command) -> None:
    """SandboxError when a command can't be run in the sandbox ``spec``, nor in any other."""
    if not command.argv:
        raise _refusal("command-empty", "There is no command to run.")
    env = {**spec.env, **command.env}
    if any("\0" in text for text in (*command.argv, *env, *env.values(), *_paths(command))):
        raise _refusal("command-nul", "A command can't hold a NUL character.")
    if any("=" in name for name in env):
        raise _refusal("command-env", "An environment variable's name can't hold '='.")
    if not command.session:
        return
    if not _SESSION.fullmatch(command.session):
        remedy = "use letters, digits, dashes and underscores, at most 64"
        raise _refusal("session-name", f"{command.session!r} can't be the name of a session.", remedy)
    if len(command.argv) != 1 or command.detach:
        raise _refusal("session-input", "A session takes one string of shell input, not detached.")


def _refusal(code: str, message: str, remedy: str = "") -> SandboxError:
    return SandboxError(message, code=code, state="nothing was run", remedy=remedy)


def _paths(command: Command) -> tuple[str, ...]:
    return command.cwd, command.stdout_path, command.stderr_path
