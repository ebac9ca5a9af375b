"""Offers ``planarian proxy``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from planarian_core.hookspecs import CommandGroup, hookimpl


@hookimpl
def planarian_commands() -> Mapping[str, Callable[..., Any] | CommandGroup]:
    return {}
