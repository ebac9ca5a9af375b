"""Rows as images: what SQLite stores, exactly, also as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

Value = None | int | float | str | bytes
Row = tuple[Value, ...]


def same(one: Row | None, other: Row | None) -> bool:
    """Whether two images are equal in types and bits: 1 isn't 1.0, 0.0 isn't -0.0, text isn't a blob."""
    return one == other and repr(one) == repr(other)


def encode_row(row: Row | None) -> list[Any] | None:
    """JSON-safe for :func:`dump`, which writes floats so that they come back with the same bits."""
    if row is None:
        return None
    return [{"hex": value.hex()} if isinstance(value, bytes) else value for value in row]


def decode_row(data: Sequence[Any] | None) -> Row | None:
    if data is None:
        return None
    return tuple(bytes.fromhex(value["hex"]) if isinstance(value, dict) else value for value in data)


def dump(data: Any) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()


def shown_row(row: Row) -> str:
    """A row for people, bounded."""
    text = ", ".join(repr(value)[:60] for value in row[:8])
    return f"({text}{', …' if len(row) > 8 else ''})"
