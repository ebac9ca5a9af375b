"""``planarian mcp``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planarian_core.cli.opening import opened
from planarian_core.cli.options import JsonOption, SandboxOption
from planarian_core.cli.output import remark
from planarian_mcp.sdk import check_sdk


def mcp(
    sandbox: SandboxOption = "",
    workspace: Annotated[
        Path | None,
        typer.Option("--new", metavar="DIRECTORY", help="Make a sandbox on this directory first.", file_okay=False),
    ] = None,
    name: Annotated[str, typer.Option(help="With --new: its name; one that is there already is used again.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Be an MCP server that lets an agent work in a sandbox, take statepoints and go back.

    Tools: run, read_file, write_file, edit_file; snapshot, rollback, fork, promote, remove_fork, outcome, ledger, diff,
    restore_paths. A harness starts it over its standard streams, and it ends when those close; the sandbox goes on.

    \b
    Example:
      planarian mcp --sandbox api
      planarian mcp --new . --name work
    """
    check_sdk("planarian mcp")
    from planarian_core.errors import LineageError
    from planarian_mcp.primitives import primitives_server

    if name and workspace is None:
        raise typer.BadParameter("--name goes with --new")
    with opened(as_json=False) as planarian:
        if workspace is None:
            chosen = planarian.sandbox(sandbox)
        else:
            try:
                chosen = planarian.sandbox(name) if name else planarian.create_sandbox(workspace)
            except LineageError:
                chosen = planarian.create_sandbox(workspace, name=name)
        if not planarian.sandboxes.running(chosen.record):
            planarian.attach(chosen)
        remark(f"planarian: serving {chosen.id}")
        primitives_server(planarian, chosen).run("stdio")
