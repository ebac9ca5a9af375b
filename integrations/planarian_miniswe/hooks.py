"""Offers ``planarian demo``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from planarian_core.hookspecs import hookimpl


@hookimpl
def planarian_commands() -> Mapping[str, Callable[..., Any]]:
    from planarian_miniswe.demo import demo

    return {"demo": demo}
