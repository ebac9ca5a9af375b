"""What a saved state says of its environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from planarian_core.errors import ConfigurationError

KEY = "planarian"
"""Of the mark in a saved state, and in a checkpoint's metadata."""


class Mark(TypedDict):
    """Which statepoint of which sandbox a saved state belongs to."""

    sandbox: str
    statepoint: str


def mark_of(found: Any) -> Mark:
    """A mark from plain data, such as a state that was loaded from a file.

    Raises:
        ConfigurationError: it isn't one.
    """
    if isinstance(found, Mapping) and all(isinstance(found.get(key), str) for key in ("sandbox", "statepoint")):
        return Mark(sandbox=found["sandbox"], statepoint=found["statepoint"])
    raise ConfigurationError(
        "the state names no statepoint", code="state-unmarked", remedy="save it with planarian_autogen.save_state"
    )
