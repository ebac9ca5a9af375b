"""Rows as images: what SQLite stores, exactly, also as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

Value = None | int | float | str | bytes
Row = tuple[Value, ...]


def same(one: Row | None, other: Row | None) -> bool:
    """Whether two images are equal in types and bits: 1 isn't 1.0, 0.0 isn't -0.0, text isn't a blob."""
    if one is None or other is None:
        return one is other
    if one != other or [*map(type, one)] != [*map(type, other)]:
        return False
    return 0.0 not in one or repr(one) == repr(other)


def dump(data: Any) -> bytes:
    """As JSON: floats come back with the same bits, infinities too; blobs are objects with their ``hex``."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), default=_hex).encode()


def load(encoded: bytes) -> Any:
    return json.loads(encoded, object_hook=_unhex)


def as_row(data: Sequence[Any] | None) -> Row | None:
    return None if data is None else tuple(data)


def _hex(value: bytes) -> dict[str, str]:
    return {"hex": value.hex()}


def _unhex(data: dict[str, Any]) -> Any:
    return bytes.fromhex(data["hex"]) if data.keys() == {"hex"} else data


def shown_row(row: Row) -> str:
    """A row for people, bounded."""
    text = ", ".join(repr(value)[:60] for value in row[:8])
    return f"({text}{', …' if len(row) > 8 else ''})"
