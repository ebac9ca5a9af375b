"""``snapshot``, ``rollback``, ``fork``: the three primitives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from planarian_core.cli import output
from planarian_core.cli.opening import opened, owner
from planarian_core.cli.options import FilesOnlyOption, JsonOption, SandboxOption, StatepointArgument

if TYPE_CHECKING:
    from planarian_core.model import Gap, RollbackPreview, Statepoint
    from planarian_core.runtime import Planarian
    from planarian_core.sandbox import Sandbox


def snapshot(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name to come back to it by.")] = "",
    sandbox: SandboxOption = "",
    description: Annotated[str, typer.Option("--description", "-d", metavar="TEXT", help="What it holds.")] = "",
    files_only: FilesOnlyOption = False,
    if_due: Annotated[
        bool,
        typer.Option(
            "--if-due", help="Only if the sandbox's policy says so: after a tool call, or at the milestone NAME."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Take a statepoint of files, processes and remote state.

    Prints its id; on stderr, by name, what it does not hold. If it fails nothing is recorded and the sandbox runs on.
    With --if-due nothing is printed where none is due.

    \b
    Example:
      planarian snapshot deps -d "dependencies installed"
      planarian snapshot --if-due
    """
    if if_due and files_only:
        raise typer.BadParameter("--if-due leaves to the policy what is captured: it goes without --files-only")
    with opened(as_json=as_json) as planarian:
        chosen = planarian.sandbox(sandbox)
        with output.working("taking a statepoint"):
            if if_due:
                trigger = f"milestone:{name}" if name else "tool-call"
                taken = planarian.snapshot_by_policy(chosen, trigger, name=name, description=description)
            else:
                taken = planarian.snapshot(chosen, name=name, description=description, files_only=files_only)
    if taken is None:
        _remark_not_due(as_json)
        return
    if as_json:
        output.print_json(taken.to_dict())
        return
    _remark_gaps(taken.coverage.missing)
    output.say(taken.id)


def _remark_not_due(as_json: bool) -> None:
    if as_json:
        output.print_json({"taken": False})
    else:
        output.remark("no statepoint is due")


def _remark_gaps(gaps: tuple[Gap, ...]) -> None:
    for gap in gaps:
        output.remark(f"not captured: {gap.subject} ({gap.reason})")


def rollback(
    statepoint: StatepointArgument,
    sandbox: SandboxOption = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what it would change.")] = False,
    no_safety: Annotated[
        bool, typer.Option("--no-safety", help="Take no statepoint of the present state first.")
    ] = False,
    files_only: FilesOnlyOption = False,
    accept_pivots: Annotated[
        bool, typer.Option("--accept-pivots", help="Go back past remote effects that can't be undone.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Return to a statepoint: files, processes and remote state.

    First keeps the present state as a statepoint of its own, so that the rollback can be undone. Prints the restore
    context, Markdown for an agent to go on from.

    \b
    Example:
      planarian rollback deps --dry-run
      planarian rollback @head~1
    """
    with opened(as_json=as_json) as planarian:
        chosen = planarian.sandbox(sandbox)
        if dry_run:
            with output.working("comparing"):
                preview = planarian.preview_rollback(chosen, statepoint)
            _show_preview(preview, as_json)
            return
        with output.working("rolling back"):
            restored = planarian.rollback(
                chosen, statepoint, safety=not no_safety, files_only=files_only, accept_pivots=accept_pivots
            )
    if as_json:
        output.print_json(restored.to_dict())
    else:
        output.say(restored.to_markdown().rstrip())


def _show_preview(preview: RollbackPreview, as_json: bool) -> None:
    if as_json:
        from planarian_core.codec import encode

        output.print_json({"dry_run": True, **encode(preview)})
        return
    target = preview.statepoint
    output.say(f"A rollback to {target.id} {target.name}".rstrip() + " would")
    lines = [f"change {preview.files_changed} files", *(f"  {path}" for path in preview.files_sample[:20])]
    if preview.files_changed > 20:
        lines.append("  …")
    lines.append(f"bring back {len(preview.processes)} processes")
    lines += [f"  {process}" for process in preview.processes]
    for effect in preview.remote:
        verb = "do again" if effect.redo else "undo"
        if effect.pivot:
            verb = "not undo (a pivot: needs --accept-pivots)"
        lines.append(f"{verb} {effect.service}: {effect.summary}")
    for line in lines:
        output.say(output.printable(line).replace("\n", " "))
    output.remark("nothing was changed")


def fork(
    statepoint: StatepointArgument,
    sandbox: SandboxOption = "",
    name: Annotated[str, typer.Option(help="Its name; with --count, NAME-1, NAME-2 and so on.")] = "",
    count: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 1,
    files_only: FilesOnlyOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make independent sandboxes from a statepoint.

    Prints their ids, one a line. The source goes on undisturbed; a fork shares nothing writable with it.

    \b
    Example:
      planarian fork deps --name attempt --count 3
      planarian run -s attempt-1 -- make test
    """
    made: list[dict[str, Any]] = []
    with opened(as_json=as_json) as planarian:
        source = owner(planarian, sandbox, statepoint)
        point = planarian.resolve(source, statepoint)  # once: a name must not come to mean another between two forks
        for number in range(1, count + 1):
            called = f"{name}-{number}" if name and count > 1 else name
            with output.working(f"forking {number} of {count}"):
                made.append(_fork(planarian, source, point, called, files_only, made))
            if not as_json:
                output.say(made[-1]["id"])
    if as_json:
        output.print_json({"forks": made})
    else:
        for line in made[0]["not_undone"]:
            output.remark(line)


def _fork(
    planarian: Planarian,
    source: Sandbox,
    point: Statepoint,
    name: str,
    files_only: bool,
    before: list[dict[str, Any]],
) -> dict[str, Any]:
    from planarian_core.errors import PlanarianError

    try:
        fork, context = planarian.fork_with_context(point, of=source, name=name, files_only=files_only)
    except PlanarianError as error:
        if before:
            made = ", ".join(one["id"] for one in before)
            error.state = "; ".join(filter(None, [f"made before, and there to use: {made}", error.state]))
        raise
    return {
        "id": fork.id,
        "name": name,
        "workspace": fork.workspace,
        "not_undone": [f"not captured: {gap.subject} ({gap.reason})" for gap in context.not_undone],
        "context": context.to_dict(),
    }
