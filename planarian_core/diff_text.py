"""A :class:`planarian_core.diff.Diff` in words: lines for people, bounded Markdown for agents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from planarian_core.context import clip, one_line, process_words

if TYPE_CHECKING:
    from planarian_core.diff import Diff, FileChange

LETTERS = {"added": "A", "deleted": "D", "changed": "M", "renamed": "R"}


def file_line(change: FileChange) -> str:
    """One changed file on one line: a letter, its name, and what changed beside content."""
    name = f"{change.source} -> {change.path}" if change.source else change.path
    slash = "/" if change.kind == "directory" and not name.endswith(("/", ".")) else ""
    notes = list(change.details)
    if change.no_text and not change.source:
        notes.append(f"{change.no_text}, {change.size_before} -> {change.size_after} bytes")
    remark = f"  ({one_line('; '.join(notes), 1000)})" if notes else ""
    return f"{LETTERS[change.change]} {one_line(name, 4096)}{slash}{remark}"


def count_line(diff: Diff) -> str:
    """How much changed, in one line."""
    counts = {word: sum(change.change == word for change in diff.files) for word in LETTERS}
    said = ", ".join(f"{count} {word}" for word, count in counts.items() if count) or "none changed"
    more = {0: "", -1: ", and more that were not counted"}.get(diff.omitted, f", and {diff.omitted} more")
    return f"files: {said}{more}"


def beside_files(diff: Diff) -> Iterator[str]:
    """Processes, remote services and coverage, a line each; nothing for what is as it was."""
    yield from (f"process started: {process_words(p)}" for p in diff.started)
    yield from (f"process gone: {process_words(p)}" for p in diff.gone)
    if diff.still and (diff.started or diff.gone):
        yield f"processes still there: {len(diff.still)}"
    for change in diff.remote:
        yield f"remote {change.service}: {change.before or 'not in use'} -> {change.after or 'not in use'}"
        for effect in change.effects:
            yield f"  {one_line(effect.summary, 400)}" + (" (can't be undone)" if effect.pivot else "")
        if change.unknown:
            yield f"  what happened is unknown: {one_line(change.unknown, 300)}"
    for title, gaps in (("only captured before", diff.newly_missing), ("only captured after", diff.no_longer_missing)):
        yield from (f"{title}: {g.domain}: {one_line(g.subject, 200)} ({one_line(g.reason, 300)})" for g in gaps)


def markdown(diff: Diff, limit: int) -> str:
    """The whole as Markdown of at most ``limit`` characters: files, what is beside them, then texts while they fit."""
    head = f"# From {diff.before} to {diff.after}\n\n{count_line(diff)}\n"
    parts = [*(f"- {file_line(change)}" for change in diff.files), *(f"- {line}" for line in beside_files(diff))]
    room = limit - len(head) - 40
    shown: list[str] = []
    for part in parts:
        room -= len(part) + 1
        if room < 0:
            shown.append(f"- … and {len(parts) - len(shown)} more")
            break
        shown.append(part)
    for change in diff.files:
        block = f"\n```diff\n{change.text.replace('```', '` ` `')}```" if change.text else ""
        if block and len(block) < room:
            room -= len(block) + 1
            shown.append(block)
    return clip(head + "\n".join(shown) + "\n", limit)
