"""What the tools show of commands, and which sandboxes an agent may name."""

from __future__ import annotations

from planarian_core import Sandbox
from planarian_core.errors import LineageError
from planarian_core.model import CommandResult


def chosen_sandbox(own: Sandbox, reference: str, *, other: bool = False) -> Sandbox:
    """The session's own sandbox, or a fork of it by an agent.

    Args:
        other: only a fork will do.

    Raises:
        LineageError: there is no such sandbox, or it is another session's.
    """
    if not reference and not other:
        return own
    found = own.planarian.sandbox(reference)
    if found.id == own.id and other:
        raise LineageError(f"{reference} is your own sandbox, no fork", code="not-a-fork", state="nothing was removed")
    if found.id != own.id and found.record.made_by != own.record.family:
        raise LineageError(f"{reference} is no fork of {own.id}", code="sandbox-unknown", remedy="fork it first")
    return found


def command_text(done: CommandResult, timeout: float) -> str:
    """A command's output and how it ended, as nanobot's own tool for commands shows it."""
    parts = [done.stdout.rstrip("\n")]
    if done.stderr:
        parts.append(f"STDERR:\n{done.stderr.rstrip()}")
    if done.truncated:
        parts.append("(the middle of the output is cut out)")
    parts.append(
        f"(ended: it took longer than {timeout:g} seconds)" if done.timed_out else f"Exit code: {done.exit_code}"
    )
    return "\n".join(part for part in parts if part)
