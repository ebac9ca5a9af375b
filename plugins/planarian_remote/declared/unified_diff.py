"""Applying a unified diff exactly: no fuzz, no offsets."""

from __future__ import annotations

import re
from collections.abc import Sequence

_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_LINE = re.compile(r"[^\n]*\n|[^\n]+\Z")


def patched(text: str, diff: str) -> str:
    """What a unified diff makes of a text. Lines end with ``\\n`` alone; what stands around the hunks is not looked at.

    Raises:
        ValueError: the diff is malformed, or made for another text.
    """
    old, parts = _LINE.findall(text), diff.split("\n")
    new: list[str] = []
    position = at = 0
    while at < len(parts):
        match = _HUNK.match(parts[at])
        at += 1
        if match is None:
            continue
        start, removed = int(match[1]), _count(match[2])
        begin = start - 1 if removed else start
        if not position <= begin <= len(old):
            raise ValueError(f"a hunk begins in line {start}")
        new += old[position:begin]
        at, before, after = _hunk(parts, at, removed, _count(match[4]))
        position = begin + len(before)
        if old[begin:position] != before:
            raise ValueError(f"the lines from {begin + 1} on are others")
        new += after
    return "".join([*new, *old[position:]])


def _count(text: str | None) -> int:
    return 1 if text is None else int(text)


def _hunk(parts: Sequence[str], at: int, removed: int, added: int) -> tuple[int, list[str], list[str]]:
    """Where a hunk ends, the lines that it finds, and those that it leaves; each with its line end."""
    before: list[str] = []
    after: list[str] = []
    while len(before) < removed or len(after) < added:
        if at >= len(parts) or parts[at][:1] not in ("+", "-", " "):
            raise ValueError("a hunk is shorter than it says")
        sign, line = parts[at][0], parts[at][1:]
        at += 1
        if at < len(parts) and parts[at].startswith("\\"):
            at += 1
        else:
            line += "\n"
        if sign != "+":
            before.append(line)
        if sign != "-":
            after.append(line)
    if len(before) != removed or len(after) != added:
        raise ValueError("a hunk has other lines than it says")
    return at, before, after
