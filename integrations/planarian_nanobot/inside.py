"""What the tools show of commands and files, and which sandboxes an agent may name."""

from __future__ import annotations

from planarian_core import Sandbox
from planarian_core.context import clip
from planarian_core.errors import LineageError
from planarian_core.inside_files import Lines
from planarian_core.model import CommandResult

_PAGE = 12_000


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
    if found.id != own.id and found.record.made_by != own.id:
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


def page(found: Lines) -> str:
    """The numbered lines that fit into one result, and where to go on."""
    shown: list[str] = []
    used = 0
    for number, line in enumerate(found.lines, found.first):
        row = f"{number}\t{clip(line, _PAGE // 2)}"
        used += len(row) + 1
        if used > _PAGE:
            shown.append(f"(cut here: read on with offset={number})")
            break
        shown.append(row)
    return "\n".join(shown) or "(no such lines)"
