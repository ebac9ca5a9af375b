"""Offers ``planarian proxy`` and ``planarian mcp``, and the story of ``planarian demo --remote``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from planarian_core.hookspecs import CommandGroup, hookimpl

if TYPE_CHECKING:
    from planarian_core.testing.demonstration import Demonstration


@hookimpl
def planarian_commands() -> Mapping[str, Callable[..., Any] | CommandGroup]:
    from planarian_mcp.command import proxy
    from planarian_mcp.primitives_command import mcp

    return {"mcp": mcp, "proxy": proxy}


@hookimpl
def planarian_demos() -> Mapping[str, Callable[[Demonstration], None]]:
    from planarian_mcp.demo import remote_story

    return {"remote": remote_story}
