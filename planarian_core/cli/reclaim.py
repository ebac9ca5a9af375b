"""``hold``, ``prune``: which statepoints stay, and giving up the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from planarian_core.cli import output
from planarian_core.cli.opening import opened, owner
from planarian_core.cli.options import JsonOption, SandboxOption, StatepointArgument, duration_of, size_of

if TYPE_CHECKING:
    from planarian_core.reclaim import Pruned


def hold(
    statepoint: StatepointArgument,
    sandbox: SandboxOption = "",
    note: Annotated[str, typer.Option(metavar="TEXT", help="Why it is to stay.")] = "",
    release: Annotated[bool, typer.Option("--release", help="Let it go again.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Keep a statepoint from every pruning.

    It stays until it is released, or its sandbox is removed. The log shows what is held and why.

    \b
    Example:
      planarian hold deps --note "the last one that built"
      planarian hold deps --release
    """
    from planarian_core.codec import encode

    if release and note:
        raise typer.BadParameter("--release takes no --note")
    with opened(as_json=as_json) as planarian:
        source = owner(planarian, sandbox, statepoint)
        point = planarian.resolve(source, statepoint)
        if release:
            released = planarian.release(point, of=source)
        else:
            held = planarian.hold(point, note, of=source)
    if as_json:
        output.print_json({"released": point.id, "was_held": released} if release else encode(held))
        return
    if release and not released:
        output.remark("it was not held")
    output.say(point.id)


def prune(
    sandbox: SandboxOption = "",
    every: Annotated[bool, typer.Option("--all", "-a", help="Of all sandboxes.")] = False,
    keep_last: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Keep the newest N of each sandbox.", show_default="5")
    ] = None,
    max_age: Annotated[
        str, typer.Option(metavar="TIME", help="Beyond those, remove what is older: 12h, 7d, 2w.", show_default=False)
    ] = "",
    max_bytes: Annotated[
        str, typer.Option(metavar="SIZE", help="Beyond those, remove the oldest until so much is left: 20G.")
    ] = "",
    drop_named: Annotated[bool, typer.Option("--drop-named", help="Named ones, too.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Give up old statepoints and free what they take.

    Prints their ids. They can't be restored any more; their evidence and outcomes stay. Never removed are heads, held
    ones, and what a fork grew from; named ones only with --drop-named; and of each sandbox the newest stay, whatever
    the clock says. Without --max-age and --max-bytes everything beyond --keep-last goes.

    \b
    Example:
      planarian prune --keep-last 20 --dry-run
      planarian prune --all --max-age 7d --max-bytes 20G
    """
    if keep_last is None and not max_age and not max_bytes:
        raise typer.BadParameter("say what to remove: --keep-last, --max-age or --max-bytes")
    age = duration_of(max_age) if max_age else None
    size = size_of(max_bytes) if max_bytes else None
    from planarian_core.prune_choice import PrunePolicy

    policy = PrunePolicy(keep_last, not drop_named, age, size)
    with opened(as_json=as_json) as planarian:
        chosen = None if every else [planarian.sandbox(sandbox)]
        with output.working("pruning"):
            pruned = planarian.prune(policy, chosen, dry_run=dry_run)
    if as_json:
        from planarian_core.codec import encode

        output.print_json(encode(pruned))
    else:
        _tell(pruned, size)


def _tell(pruned: Pruned, limit: int | None) -> None:
    for statepoint in pruned.statepoints:
        output.say(statepoint)
    done = "would be pruned" if pruned.dry_run else "were pruned"
    about = "about " if pruned.dry_run else ""
    output.remark(
        f"{len(pruned.statepoints)} statepoints {done}, {about}{output.size(pruned.freed)} freed, "
        f"{output.size(pruned.left)} left"
    )
    for reason, count in pruned.kept.items():
        output.remark(f"kept beyond the newest: {count} ({reason})")
    for busy in pruned.busy:
        output.remark(f"passed over: {busy} is busy")
    if limit is not None and pruned.left > limit:
        output.remark(f"more than {output.size(limit)} are left: what stays needs it, or see --keep-last, --drop-named")
