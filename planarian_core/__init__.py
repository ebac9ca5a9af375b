"""Planarian: statepoints over an agent's files, processes and remote state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planarian_core.hookspecs import hookimpl

if TYPE_CHECKING:
    from planarian_core.runtime import Planarian
    from planarian_core.sandbox import Sandbox

__all__ = ["Planarian", "Sandbox", "hookimpl"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name == "Planarian":
        from planarian_core.runtime import Planarian

        return Planarian
    if name == "Sandbox":
        from planarian_core.sandbox import Sandbox

        return Sandbox
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
