"""``outcome``, ``ledger``: what is known of statepoints, in and out."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from planarian_core.cli import output
from planarian_core.cli.opening import opened, owner
from planarian_core.cli.options import JsonOption, SandboxOption, StatepointArgument


class OutcomeStatus(StrEnum):
    """How it went; the words of :data:`planarian_core.context.OUTCOME_STATUSES`."""

    NOTE = "note"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


def outcome(
    statepoint: StatepointArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What was tried and how it ended.", show_default=False)],
    sandbox: SandboxOption = "",
    status: Annotated[OutcomeStatus, typer.Option(help="How it went.")] = OutcomeStatus.NOTE,
    as_json: JsonOption = False,
) -> None:
    """Note how a run that went on from a statepoint ended.

    The statepoint itself never changes, and the note outlives every rollback: whoever comes back here reads it.

    \b
    Example:
      planarian outcome deps "upgrading numpy breaks the build" --status failed
    """
    with opened(as_json=as_json) as planarian:
        source = owner(planarian, sandbox, statepoint)
        added = planarian.append_outcome(statepoint, text, status=status.value, author="user", of=source)
    if as_json:
        from planarian_core.codec import encode

        output.print_json(encode(added))
    else:
        output.say(added.id)


def ledger(
    sandbox: SandboxOption = "",
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="CHARACTERS", help="How long it may be.", show_default="6000")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the state ledger: what to choose a statepoint from.

    Markdown, the newest first: each committed statepoint with its description and the outcomes noted so far. It is
    what an agent is given to choose from.

    \b
    Example:
      planarian ledger --limit 3000
    """
    with opened(as_json=as_json) as planarian:
        chosen = planarian.sandbox(sandbox)
        room = limit or planarian.config.ledger_characters
        found = planarian.ledger(chosen, limit=room)
    if as_json:
        output.print_json({"sandbox": chosen.id, **found.to_dict()})
    else:
        output.say(found.to_markdown(room).rstrip())
