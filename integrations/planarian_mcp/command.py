"""``planarian proxy``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planarian_core.cli.opening import opened
from planarian_core.cli.options import SandboxOption
from planarian_core.errors import ConfigurationError

if TYPE_CHECKING:
    from planarian_core import Planarian


def proxy(
    service: Annotated[str, typer.Argument(metavar="SERVICE", help="A service of planarian.toml.", show_default=False)],
    sandbox: SandboxOption = "",
    http: Annotated[
        str,
        typer.Option("--http", metavar="HOST:PORT", help="Serve streamable HTTP there instead of standard streams."),
    ] = "",
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help="With --http: ask for the bearer token in this file."),
    ] = None,
    any_host: Annotated[
        bool, typer.Option("--any-host", help="With --http: listen beyond this machine; wants a token.")
    ] = False,
    approve_pivots: Annotated[
        bool, typer.Option("--approve-pivots", help="Let calls run that can't be undone, without asking.")
    ] = False,
) -> None:
    """Be an MCP server that passes calls on to a remote service, so that a rollback undoes them.

    A harness starts it in the place of the service's own MCP server. It ends when the harness closes its input.

    \b
    Example:
      planarian proxy orders --sandbox api
      planarian proxy orders --sandbox api --http 127.0.0.1:8400
    """
    _check_sdk()
    import anyio

    with opened(as_json=False) as planarian:
        if http:
            _serve_http(planarian, service, sandbox, http, token_file, any_host, approve_pivots)
            return
        from planarian_mcp.serving import serve_stdio

        ended_by = anyio.run(
            lambda: serve_stdio(planarian, planarian.sandbox(sandbox), service, approve_all=approve_pivots)
        )
    if ended_by:
        raise typer.Exit(128 + ended_by)


def _serve_http(
    planarian: Planarian,
    service: str,
    sandbox: str,
    address: str,
    token_file: Path | None,
    any_host: bool,
    approve_pivots: bool,
) -> None:
    raise NotImplementedError


def _check_sdk() -> None:
    try:
        import mcp.server.runner  # noqa: F401  # since mcp 2.0
    except ImportError as error:
        raise ConfigurationError(
            "planarian proxy needs the mcp package, 2.3 or later",
            code="extra-missing",
            remedy="pip install 'planarian[mcp]'",
        ) from error
