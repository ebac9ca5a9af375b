"""What a probe finds out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Availability:
    """What this host allows. ``reason`` says why not (or what is limited); ``remedy`` is the command that mends it."""

    available: bool
    reason: str = ""
    remedy: str = ""
