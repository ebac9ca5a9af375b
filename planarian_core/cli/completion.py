"""Completes names of sandboxes and statepoints. Runs at every press of Tab: reads the registry, opens nothing else.

Whatever goes wrong there are no suggestions, and no message into the middle of somebody's command line.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from planarian_core.registry import Registry

Suggestions = list[tuple[str, str]]
"""What to put in, and what it is."""


def sandboxes(ctx: typer.Context, incomplete: str) -> Suggestions:
    """Names and ids of the sandboxes."""
    found: Suggestions = []
    with suppress(Exception), _registry(ctx) as registry:
        for record in registry.sandboxes():
            found += [(value, record.spec.workspace) for value in (record.name, record.id) if value]
    return _beginning_with(incomplete, found)


def statepoints(ctx: typer.Context, incomplete: str) -> Suggestions:
    """Names and ids of committed statepoints, the newest first; of the sandbox named on the line, if one is."""
    found: Suggestions = []
    with suppress(Exception), _registry(ctx) as registry:
        wanted = str(ctx.params.get("sandbox") or "")
        owners = [r.id for r in registry.sandboxes() if not wanted or wanted in (r.id, r.name)]
        for statepoint in reversed([s for s in registry.statepoints() if s.sandbox_id in owners]):
            if statepoint.status == "committed":
                what = statepoint.name or statepoint.description or statepoint.created_at
                found += [(value, what) for value in (statepoint.name, statepoint.id) if value]
        found.append(("@head", "the statepoint that the sandbox is at"))
    return _beginning_with(incomplete, found)


def _beginning_with(incomplete: str, found: Suggestions) -> Suggestions:
    return [(value, " ".join(what.split())[:60]) for value, what in found if value.startswith(incomplete)]


@contextmanager
def _registry(ctx: typer.Context) -> Iterator[Registry]:
    from planarian_core.config import default_home
    from planarian_core.registry import Registry

    home = ctx.find_root().params.get("home")
    path = (Path(home).expanduser() if home else default_home()) / "registry.sqlite"
    if not path.stat().st_size:
        raise FileNotFoundError(path)  # looking for names must not make a registry
    registry = Registry(path)
    try:
        yield registry
    finally:
        registry.close()
