"""How results reach people and programs: text on stdout, remarks on stderr, or one JSON document.

What comes out of a sandbox (names of processes, descriptions, outcomes) is foreign text: it is printed without control
characters and never taken for rich's markup.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from planarian_core.units import size as size  # offered here beside the other ways to show things

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_UNBOUNDED = 1_000_000
_PATIENCE = 0.5
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
def working(what: str) -> Iterator[Callable[[str], None]]:
    """Say on a terminal what takes its time and for how long by now, in a line that goes away; silent elsewhere.

    What is done within half a second shows nothing. Gives a function that changes the words.
    """
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda text: None
        return
    words, ended, started = [what], threading.Event(), time.monotonic()

    def show_line() -> None:
        while not ended.wait(_PATIENCE):
            line = f"{one_line(words[0])} … {time.monotonic() - started:.0f} s"
            print(f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)

    line = threading.Thread(target=show_line, daemon=True)
    line.start()
    try:
        yield lambda text: words.__setitem__(0, text)
    finally:
        ended.set()
        line.join()
        if time.monotonic() - started > _PATIENCE:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


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
