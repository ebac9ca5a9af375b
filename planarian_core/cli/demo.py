"""``demo``: stories that plugins tell, each proving what it claims."""

from __future__ import annotations

from typing import Annotated

import typer

from planarian_core.cli import output
from planarian_core.cli.options import JsonOption


def demo(
    remote: Annotated[
        bool,
        typer.Option("--remote", help="The story of remote state: rows, a file and a running server go back as one."),
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the demo's home and workspace, to look around.")] = False,
    sandbox: Annotated[str, typer.Option(help="The sandbox backend; the best for this host if empty.")] = "",
    filesystem: Annotated[str, typer.Option(help="The filesystem backend.")] = "",
    process: Annotated[str, typer.Option(help="The process backend.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Watch an agent break its environment, and get it back.

    What the demo claims it proves, with means of its own; exit code 1 when anything isn't as claimed. Takes under a
    minute, in a home of its own that is removed at the end. Without --remote mini-swe-agent's agent breaks a
    repository, gets it back, and tries two ways on in forks; it needs: pip install 'planarian[miniswe]'. With --remote
    an agent cleans customer data in a private PostgreSQL through MCP Toolbox for Databases; it needs PostgreSQL, npm,
    and: pip install 'planarian[mcp,sql]'.

    \b
    Example:
      planarian demo
      planarian demo --remote --json
    """
    from planarian_core.errors import ConfigurationError
    from planarian_core.plugin_manager import PluginManager
    from planarian_core.testing.demonstration import demonstration

    backends = {"sandbox": sandbox, "filesystem": filesystem, "process": process}
    name = "remote" if remote else "agent"
    with demonstration(backends, keep=keep, quiet=as_json) as told:
        offered = PluginManager(told.place).hook.planarian_demos()
        stories = {key: story for group in offered for key, story in group.items()}
        if name not in stories:
            raise ConfigurationError(f"no plugin tells the story {name!r}", remedy="planarian doctor")
        stories[name](told)
        for gap in told.not_covered:
            told.say(f"not covered: {gap}", "yellow")
    if as_json:
        output.print_json(told.to_dict())
    elif keep:
        told.console.print(f"\nLook around: PLANARIAN_HOME={told.place / 'home'} planarian list", soft_wrap=True)
    raise typer.Exit(0 if told.proven else 1)
