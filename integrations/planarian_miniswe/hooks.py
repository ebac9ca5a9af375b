"""Offers the story of ``planarian demo``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from planarian_core.hookspecs import hookimpl

if TYPE_CHECKING:
    from planarian_core.testing.demonstration import Demonstration


@hookimpl
def planarian_demos() -> Mapping[str, Callable[[Demonstration], None]]:
    from planarian_miniswe.demo import agent_story

    return {"agent": agent_story}
