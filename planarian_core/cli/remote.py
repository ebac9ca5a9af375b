"""``effects``, ``approve``: what an agent changed on remote services, and consent to what can't be undone."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from planarian_core.cli import output
from planarian_core.cli.opening import opened
from planarian_core.cli.options import JsonOption, SandboxOption


class Settled(StrEnum):
    """What a user can say of an effect whose end nobody knows."""

    APPLIED = "applied"
    VOID = "void"


def effects(
    sandbox: SandboxOption = "",
    service: Annotated[str, typer.Option(metavar="NAME", help="Only this service.", show_default=False)] = "",
    settle: Annotated[
        int | None,
        typer.Option(metavar="NUMBER", help="Say how the effect ended that is 'sent' and can't be asked about.", min=1),
    ] = None,
    settled_as: Annotated[
        Settled | None, typer.Option("--as", help="With --settle: it happened, or it didn't.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the undo log: what the agent changed on remote services.

    Each effect has a number in its service, in the order of the calls; a statepoint's remote position is such a number.
    States: applied (in force), undone (by a rollback, which can be rolled back itself), void (never took effect), kept
    (can't be undone; a rollback passed it) and sent (under way, or its end is not known yet).

    \b
    Example:
      planarian effects --service orders
      planarian effects --service notes --settle 7 --as void
    """
    from planarian_core.codec import encode

    if (settle is None) is not (settled_as is None) or (settle is not None and not service):
        raise typer.BadParameter("--settle NUMBER goes with --as and --service")
    with opened(as_json=as_json) as planarian:
        chosen = planarian.sandbox(sandbox)
        if settle is not None and settled_as is not None:
            planarian.settle_effect(chosen, service, settle, settled_as.value)
        found = planarian.effects(chosen, service)
    if as_json:
        output.print_json({"sandbox": chosen.id, "effects": [encode(effect) for effect in found]})
        return
    if not found:
        output.remark("no remote effects")
        return
    rows = [
        (str(e.number), e.service, e.state.value, e.call_class.value, e.made_at, e.summary or e.tool) for e in found
    ]
    output.show_table(("number", "service", "state", "class", "made at", "what"), rows)


def approve(
    call: Annotated[
        str, typer.Argument(metavar="[CALL]", help="As the refusal named it: ap-…", show_default=False)
    ] = "",
    waiting: Annotated[bool, typer.Option("--list", "-l", help="Only show what waits.")] = False,
    deny: Annotated[bool, typer.Option("--deny", help="Forget the request: it stays refused.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Allow a call that can't be undone, once.

    A call of a service's tool that is declared irreversible (a pivot) is refused until somebody agrees: by the
    configuration, at the harness, or here. Then the agent makes the same call again.

    \b
    Example:
      planarian approve --list
      planarian approve ap-3f9c27a1b4d0
    """
    from planarian_core.codec import encode

    if not call and deny:
        raise typer.BadParameter("--deny needs the call")
    with opened(as_json=as_json) as planarian:
        if call and not waiting:
            changed = planarian.approve(call, granted=not deny)
        found = planarian.approvals()
    if call and not waiting:
        if as_json:
            output.print_json(encode(changed))
        else:
            output.say(f"{changed.id}: {'denied' if deny else 'may be made once'}")
        return
    if as_json:
        output.print_json([encode(approval) for approval in found])
    elif not found:
        output.remark("no call waits for consent")
    else:
        rows = [
            (a.id, a.sandbox_id, a.effect.service, "granted" if a.granted else "waits", a.asked_at, a.effect.summary)
            for a in found
        ]
        output.show_table(("call", "sandbox", "service", "state", "asked at", "what"), rows)
