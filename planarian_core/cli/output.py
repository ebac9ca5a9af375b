"""How results reach people and programs: text on stdout, remarks on stderr, or one JSON document.

What comes out of a sandbox (names of processes, descriptions, outcomes) is foreign text: it is printed without control
characters and never taken for rich's markup.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from planarian_core.units import size as size  # offered here beside the other ways to show things

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_UNBOUNDED = 1_000_000
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def print_json(data: Any) -> None:
    """Print one JSON document on stdout."""
    print(json.dumps(data, indent=2))


def say(text: str) -> None:
    """Print a result for people, or for the next command in a pipe, on stdout."""
    print(printable(text))


def remark(text: str) -> None:
    """Print what is worth knowing beside the result, on stderr."""
    print(printable(text), file=sys.stderr)


def printable(text: str) -> str:
    """``text`` with its line breaks but without control characters, which could drive the terminal."""
    return _CONTROL.sub("?", text)


def one_line(text: str) -> str:
    """``text`` on one line, without control characters."""
    return printable(" ".join(text.split()))


def console() -> Console:
    """A rich console on stdout. Without a terminal: no colours, and lines as long as they need to be."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _UNBOUNDED
    return Console(file=sys.stdout, width=width, markup=False, emoji=False, highlight=False)


def show(renderable: RenderableType) -> None:
    """Print something that rich renders."""
    terminal = console()
    if terminal.is_terminal:
        terminal.print(renderable)
        return
    lines = terminal.render_lines(renderable, pad=False)
    for line in lines:
        print("".join(segment.text for segment in line if not segment.control).rstrip())


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows below their titles. The first column identifies a row and is never shortened."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    every = [tuple(one_line(cell) for cell in row) for row in rows]
    first = max((len(row[0]) for row in every), default=0)
    for index, title in enumerate(columns):
        table.add_column(title, no_wrap=index == 0, min_width=first if index == 0 else None, overflow="fold")
    for row in every:
        table.add_row(*row)
    show(table)


def show_facts(facts: Mapping[str, str]) -> None:
    """Print labelled lines; empty ones are left out, further lines of a text are indented."""
    width = max((len(label) for label in facts), default=0) + 2
    for label, text in facts.items():
        if text:
            say(f"{label + ':':<{width}}" + text.replace("\n", "\n" + " " * width))


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show on a terminal that something takes its time; silent elsewhere."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield
        return
    from rich.console import Console

    with Console(stderr=True, markup=False).status(f"{what} …"):
        yield


def age(moment: str) -> str:
    """How long ago a time in ISO 8601 was, roughly: ``3 min ago``; the text itself if it is none."""
    try:
        seconds = (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()
    except (ValueError, TypeError):
        return moment
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit} ago"
    return f"{max(int(seconds), 0)} s ago"
