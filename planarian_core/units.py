"""Sizes and durations as people write them."""

from __future__ import annotations

import re

from planarian_core.errors import ConfigurationError

_SIZE = re.compile(r"(\d+)\s*(?:([kmgt])(?:i?b)?|b)?", re.IGNORECASE)
_DURATION = re.compile(r"(\d+)\s*(s|min|m|h|d|w)", re.IGNORECASE)
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def parse_size(text: str) -> int:
    """Bytes of ``4G``, ``512M``, ``100k`` (powers of 1024) or a bare number; ConfigurationError for anything else."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigurationError(
            f"{text!r} is no size: say 4G, 512M, or a number of bytes", code="size-invalid", remedy="write it so"
        )
    exponent = " kmgt".index(match[2].lower()) if match[2] else 0
    return int(match[1]) << 10 * exponent


def parse_duration(text: str) -> float:
    """Seconds of ``90s``, ``30min``, ``12h``, ``7d`` or ``2w``; ConfigurationError for anything else."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ConfigurationError(
            f"{text!r} is no duration: say 30min, 12h, 7d or 2w", code="duration-invalid", remedy="write it so"
        )
    return float(int(match[1]) * _SECONDS[match[2].lower()])


def parse_share(text: str, whole: int) -> int:
    """Bytes of a size, or of a percentage of ``whole`` such as ``1%``; ConfigurationError for anything else."""
    percent = re.fullmatch(r"(\d{1,2}(?:\.\d+)?)\s*%", text.strip())
    return int(whole * float(percent[1]) / 100) if percent else parse_size(text)


def size(count: int) -> str:
    """A number of bytes for people: ``4.0 GiB``."""
    amount = float(count)
    for unit in _UNITS[:-1]:
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} {_UNITS[-1]}"
