"""Pure functions on the graph of statepoints: what a name means, who descends from whom."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from planarian_core.errors import LineageError
from planarian_core.model import Statepoint, Status

_REFERENCE = re.compile(r"(?P<base>.+?)(?:~(?P<up>\d*))?$")
_NAME = re.compile(r"[^\s@~/-][^@~/]{0,99}$")


def check_text(name: str) -> None:
    """Refuse a name that could be mistaken for a reference or an option, or that a terminal can't show as it is."""
    # isprintable: no controls, no line breaks, no bidirectional overrides, no undecodable bytes
    if not _NAME.match(name) or not name.isprintable() or name.startswith(("sp-", "sb-")) or name != name.strip():
        raise LineageError(
            f"{name[:200]!a} can't be a name",
            code="name-invalid",
            remedy="use up to 100 printable characters without @, ~ and /, not beginning with -, sp- or sb-",
        )


def resolve(reference: str, statepoints: Sequence[Statepoint], head: str | None) -> Statepoint:
    """Find the statepoint that ``reference`` means: ``@head``, a name, an id or a unique beginning of one, each with
    an optional ``~N`` for its Nth ancestor.

    Raises:
        LineageError: unknown, ambiguous, not committed, or no such ancestor.
    """
    by_id = {s.id: s for s in statepoints}
    match = _REFERENCE.match(reference)
    base, up = (match["base"], match["up"]) if match else (reference, None)
    steps = 0 if up is None else int(up or 1)
    found = _find(base, by_id, head)
    for step in range(steps):
        parent = by_id.get(found.parent_id or "")
        if parent is None:
            raise LineageError(
                f"{base} has only {step} ancestors here, not {steps}", code="statepoint-unknown", remedy="planarian log"
            )
        found = parent
    if found.status is Status.PRUNED:
        raise LineageError(
            f"{found.id} was pruned: its evidence is left, its files and processes are gone",
            code="statepoint-pruned",
            state="it can't be restored",
            remedy="choose another one: planarian log",
        )
    if found.status is not Status.COMMITTED:
        raise LineageError(
            f"{found.id} is {found.status}, not committed" + (f": {found.error}" if found.error else ""),
            code="statepoint-not-committed",
            state="it can't be restored",
            remedy="choose a committed one: planarian log",
        )
    return found


def _find(base: str, by_id: Mapping[str, Statepoint], head: str | None) -> Statepoint:
    if base in ("@head", "@"):
        if head is None or head not in by_id:
            raise LineageError(
                "there is no statepoint yet, so no @head", code="statepoint-unknown", remedy="planarian snapshot"
            )
        return by_id[head]
    if base in by_id:
        return by_id[base]
    named = [s for s in by_id.values() if s.name == base and s.status is Status.COMMITTED]
    named = named or [s for s in by_id.values() if s.name == base and s.status is Status.PRUNED][-1:]
    if not named and len(base) >= 2:
        prefix = base if base.startswith("sp-") else f"sp-{base}"
        named = [s for i, s in by_id.items() if i.startswith(prefix)]
    if len(named) == 1:
        return named[0]
    if named:
        choices = ", ".join(sorted(s.id for s in named)[:8])
        raise LineageError(
            f"{base!r} is ambiguous: {choices}", code="statepoint-ambiguous", remedy="give more of the id"
        )
    raise LineageError(f"no statepoint is called {base!r}", code="statepoint-unknown", remedy="planarian log")


def children(statepoints: Iterable[Statepoint]) -> dict[str | None, list[Statepoint]]:
    """Statepoints by parent id, in the order given; those whose parent isn't among them under None."""
    every = list(statepoints)
    known = {s.id for s in every}
    grouped: dict[str | None, list[Statepoint]] = {}
    for statepoint in every:
        parent = statepoint.parent_id if statepoint.parent_id in known else None
        grouped.setdefault(parent, []).append(statepoint)
    return grouped
