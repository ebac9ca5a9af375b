"""``new``, ``list``, ``stop``, ``rm``: the life of sandboxes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planarian_core.cli import completion, output
from planarian_core.cli.opening import opened
from planarian_core.cli.options import JsonOption, SandboxArgument, SandboxOption, size_of
from planarian_core.model import Limits, Network, SandboxRecord

if TYPE_CHECKING:
    from planarian_core.runtime import Planarian


def new(
    workspace: Annotated[
        Path,
        typer.Argument(
            metavar="WORKSPACE", help="The directory to work in; with --root one there.", show_default="here"
        ),
    ] = Path("."),
    root: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="An unpacked image to stand on, in place of the host's files."),
    ] = None,
    name: Annotated[str, typer.Option(help="A name to call it by.", show_default=False)] = "",
    sandbox: Annotated[str, typer.Option(help="Sandbox backend.", show_default="the best one here")] = "",
    filesystem: Annotated[str, typer.Option(help="File backend.", show_default="the best one here")] = "",
    process: Annotated[str, typer.Option(help="Process backend.", show_default="the best one here")] = "",
    network: Annotated[
        Network | None, typer.Option(help="none: loopback only; host: the host's own.", show_default="none")
    ] = None,
    hide: Annotated[
        list[str] | None, typer.Option(metavar="PATH", help="A host path to hide from it; may be repeated.")
    ] = None,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Memory limit, such as 512M or 8G; 0: none.")] = "4G",
    pids: Annotated[int, typer.Option(min=0, help="Limit of processes and threads; 0: none.")] = Limits().pids,
    policy: Annotated[
        str, typer.Option(metavar="POLICY", help="When adapters take statepoints.", show_default="the home's")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Make a sandbox on a directory and start it.

    Prints its id. Which backends were chosen, and what statepoints will not cover with them, is said on stderr.

    With --root the sandbox sees the files of a container image and nothing of the host's. Unpack one first; DIR is only
    read, and has to stay as it is while the sandbox and its forks are there. WORKSPACE is then its whole path in DIR.
    As root; the image needs /usr/bin/python3, /bin/sh and bash.

    \b
    Example:
      planarian new repo --name api
      planarian new . --network host --memory 8G --hide ~/.config/gcloud
      planarian new . --policy on-change
      mkdir image && podman export $(podman create IMAGE) | tar -xpC image
      planarian new /app --root image
    """
    limits = Limits(size_of(memory), pids)
    hidden = [os.path.abspath(os.path.expanduser(path)) for path in hide or ()]
    with opened(as_json=as_json) as planarian, output.working("starting the sandbox"):
        made = planarian.create_sandbox(
            workspace,
            name=name,
            sandbox=sandbox,
            filesystem=filesystem,
            process=process,
            network=network or "",
            limits=limits,
            hidden=hidden,
            policy=policy,
            root=root,
        ).record
        _tell_new(planarian, made, as_json)


def _tell_new(planarian: Planarian, made: SandboxRecord, as_json: bool) -> None:
    from planarian_core.cli.coverage import not_covered, passed_over

    lacking, passed = not_covered(planarian, made), passed_over(planarian, made)
    if as_json:
        output.print_json({**summary(planarian, made), "not_covered": lacking, "passed_over": passed})
        return
    output.remark(
        f"{_place(made)}: sandbox {made.spec.backend}, files {made.filesystem}, processes {made.process}, "
        f"network {made.spec.network}"
    )
    for line in (*passed, *(f"not covered: {line}" for line in lacking)):
        output.remark(line)
    output.say(made.id)


def _place(record: SandboxRecord) -> str:
    return record.spec.workspace + (f" in {record.spec.root}" if record.spec.root else "")


def summary(planarian: Planarian, record: SandboxRecord) -> dict[str, Any]:
    """A sandbox as plain data, for lists and programs."""
    branch = planarian.registry.branch(record.id)
    committed = [s for s in planarian.registry.statepoints(record.id) if s.status == "committed"]
    return {
        "id": record.id,
        "name": record.name,
        "state": state(planarian, record),
        "workspace": record.spec.workspace,
        "root": record.spec.root,
        "sandbox": record.spec.backend,
        "filesystem": record.filesystem,
        "process": record.process,
        "network": record.spec.network.value,
        "policy": record.policy or planarian.config.policy,
        "head": branch.head,
        "forked_from": branch.forked_from,
        "statepoints": len(committed),
        "created_at": record.created_at,
    }


def state(planarian: Planarian, record: SandboxRecord) -> str:
    """``running``, ``stopped`` (by request), ``dead``, ``unfinished``, or ``unknown`` where its backend is missing."""
    from planarian_core.errors import PlanarianError

    if planarian.registry.operations(record.id):
        return "unfinished"
    if record.closed:
        return "stopped"
    try:
        return "running" if planarian.sandboxes.running(record) else "dead"
    except (PlanarianError, ImportError):
        return "unknown"


def list_(as_json: JsonOption = False) -> None:
    """List the sandboxes, the oldest first.

    State: running; stopped, or dead (its init is gone), from where planarian attach brings it back; or unfinished (see
    planarian recover).

    \b
    Example:
      planarian list
      planarian list --json | jq -r '.sandboxes[].id'
    """
    with opened(as_json=as_json) as planarian:
        rows = [summary(planarian, record) for record in planarian.registry.sandboxes()]
    if as_json:
        output.print_json({"sandboxes": rows})
        return
    if not rows:
        output.remark("There is no sandbox yet. Next: planarian new")
        return
    columns = ("id", "name", "state", "head", "statepoints", "backends", "age", "workspace")
    output.show_table(
        columns,
        [
            (
                *(row[key] or "-" for key in columns[:4]),
                str(row["statepoints"]),
                f"{row['sandbox']}/{row['filesystem']}/{row['process']}",
                output.age(row["created_at"]),
                row["workspace"]
                + (f" in {row['root']}" if row["root"] else "")
                + (f" (fork of {row['forked_from']})" if row["forked_from"] else ""),
            )
            for row in rows
        ],
    )


def stop(named: SandboxArgument = "", sandbox: SandboxOption = "", as_json: JsonOption = False) -> None:
    """End all processes of a sandbox.

    Its files and statepoints stay; a rollback brings it back to life.

    \b
    Example:
      planarian stop api
    """
    with opened(as_json=as_json) as planarian:
        chosen = planarian.sandbox(named or sandbox)
        with output.working("stopping"):
            chosen.stop()
    if as_json:
        output.print_json({"stopped": chosen.id})
    else:
        output.say(chosen.id)
        output.remark("stopped; it comes back with: " + f"planarian attach {chosen.id}")


def rm(
    named: Annotated[
        list[str] | None,
        typer.Argument(metavar="SANDBOX", help="Which ones.", autocompletion=completion.sandboxes),
    ] = None,
    sandbox: SandboxOption = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove sandboxes with their files and statepoints, for good.

    The workspace on the host stays as it is. Asks first; without a terminal --yes is needed.

    \b
    Example:
      planarian rm api
      planarian rm --yes sb-3f9c27a1b4d0 sb-77aa01c2d3e4
    """
    from planarian_core.errors import PlanarianError

    removed: list[str] = []
    with opened(as_json=as_json) as planarian:
        chosen = [planarian.sandbox(reference) for reference in named or [sandbox]]
        if not yes:
            _ask(planarian, [one.record for one in chosen], as_json)
        for one in chosen:
            try:
                with output.working(f"removing {one.id}"):
                    planarian.remove_sandbox(one)
            except PlanarianError as error:
                if removed:
                    error.state = "; ".join(filter(None, [f"removed before: {', '.join(removed)}", error.state]))
                raise
            removed.append(one.id)
    if as_json:
        output.print_json({"removed": removed})
    else:
        output.say("\n".join(removed))


def _ask(planarian: Planarian, records: list[SandboxRecord], as_json: bool) -> None:
    if as_json or not sys.stdin or not sys.stdin.isatty():
        raise typer.BadParameter("removal is for good and there is nobody to ask: say --yes")
    for record in records:
        count = len(planarian.registry.statepoints(record.id))
        output.remark(f"{record.id} {record.name}: {record.spec.workspace}, {count} statepoints")
    if not typer.confirm("Remove for good?", err=True):
        raise typer.Exit(1)


def policy(
    wanted: Annotated[
        str,
        typer.Argument(
            metavar="POLICY",
            help="every-call, every:N, on-change, milestones or manual; home: the home's again.",
            show_default=False,
        ),
    ] = "",
    sandbox: SandboxOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show or change when adapters take statepoints of a sandbox.

    every-call: after each tool call; every:N: after N of them; on-change: after a call that changed something;
    milestones: at named ones and at the end; manual: never by themselves. What you ask for is taken always.

    \b
    Example:
      planarian policy
      planarian policy every:5 -s api
    """
    with opened(as_json=as_json) as planarian:
        chosen = planarian.sandbox(sandbox)
        if wanted:
            planarian.set_policy(chosen, "" if wanted == "home" else wanted)
        own = chosen.record.policy
        holds = own or planarian.config.policy
    if as_json:
        output.print_json({"sandbox": chosen.id, "policy": holds, "own": bool(own)})
    else:
        output.say(holds)
