"""``planarian proxy``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planarian_core.cli.opening import opened
from planarian_core.cli.options import JsonOption, SandboxOption
from planarian_core.cli.output import print_json, say
from planarian_core.errors import ConfigurationError
from planarian_mcp.sdk import check_sdk

_CHECK = "check"


def proxy(
    service: Annotated[
        str,
        typer.Argument(
            metavar="SERVICE | check SERVICE", help="A service of the home's planarian.toml.", show_default=False
        ),
    ],
    checked: Annotated[str, typer.Argument(metavar="", hidden=True)] = "",
    sandbox: SandboxOption = "",
    http: Annotated[
        str,
        typer.Option("--http", metavar="HOST:PORT", help="Serve streamable HTTP there, not our standard streams."),
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
    as_json: JsonOption = False,
) -> None:
    """Be an MCP server that passes calls on to a remote service, so that a rollback undoes them.

    A harness starts it in the place of the service's own MCP server. It ends when the harness closes its input.
    `planarian proxy check SERVICE` tries the inverses of a declared service on a scratch server instead.

    \b
    Example:
      planarian proxy orders --sandbox api
      planarian proxy orders --sandbox api --http 127.0.0.1:8400
      planarian proxy check notes
    """
    if service == _CHECK:
        if not checked:
            raise typer.BadParameter("planarian proxy check SERVICE: which service?")
        _check(checked, as_json)
    elif checked:
        raise typer.BadParameter(f"what is {checked!r}? planarian proxy SERVICE, or planarian proxy check SERVICE")
    elif http:
        _serve_http(service, sandbox, http, token_file, any_host, approve_pivots)
    else:
        _serve_stdio(service, sandbox, approve_pivots)


def _check(service: str, as_json: bool) -> None:
    from planarian_mcp.check import check

    with opened(as_json=as_json) as planarian:
        report = check(planarian, service)
    if as_json:
        print_json(report.to_dict())
    else:
        say(report.to_text())
    if not report.ok:
        raise typer.Exit(1)


def _serve_stdio(service: str, sandbox: str, approve_pivots: bool) -> None:
    check_sdk("planarian proxy")
    import anyio

    from planarian_mcp.serving import serve_stdio

    with opened(as_json=False) as planarian:
        named = planarian.sandbox(sandbox)
        ended_by = anyio.run(lambda: serve_stdio(planarian, named, service, approve_all=approve_pivots))
    if ended_by:
        raise typer.Exit(128 + ended_by)


def _serve_http(
    service: str, sandbox: str, http: str, token_file: Path | None, any_host: bool, approve_pivots: bool
) -> None:
    check_sdk("planarian proxy")
    import anyio

    from planarian_mcp.http_serving import address, serve_http

    at = address(http, _token(token_file), any_host=any_host)
    with opened(as_json=False) as planarian:
        named = planarian.sandbox(sandbox)
        ended_by = anyio.run(lambda: serve_http(planarian, named, service, at, approve_all=approve_pivots))
    raise typer.Exit(128 + ended_by)


def _token(file: Path | None) -> str:
    if file is None:
        return ""
    try:
        token = file.read_text().strip()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"the token can't be read: {error}", remedy="--token-file FILE") from error
    if len(token) < 16:
        raise ConfigurationError(
            f"the token in {file} is shorter than 16 characters", remedy=f"openssl rand -hex 32 > {file}"
        )
    return token
