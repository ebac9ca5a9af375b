"""``log``: the statepoints of a sandbox as a tree."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planarian_core.cli import output
from planarian_core.cli.opening import opened
from planarian_core.cli.options import JsonOption, SandboxOption
from planarian_core.codec import encode
from planarian_core.model import Drill, Hold, Outcome, Statepoint, Status

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

    from planarian_core.runtime import Planarian
    from planarian_core.sandbox import Sandbox

_GAPS_SHOWN = 3
_OUTCOMES_SHOWN = 3


@dataclass(frozen=True)
class Entry:
    """A statepoint and what is known beside it."""

    statepoint: Statepoint
    head: bool
    forks: tuple[str, ...]
    outcomes: tuple[Outcome, ...]
    hold: Hold | None = None
    drill: Drill | None = None
    warm: int = 0
    """How many restored copies stand ready."""
    above: str | None = None
    """The nearest ancestor that is shown."""

    def to_dict(self) -> dict[str, Any]:
        """Without processes and artefacts: those are for ``planarian show``."""
        data = self.statepoint.to_dict()
        for detail in ("files", "processes", "process_list", "timings", "remote", "in_flight"):
            del data[detail]
        beside = {"head": self.head, "forks": list(self.forks), "hold": encode(self.hold)}
        tried = {"drill": encode(self.drill), "warm": self.warm}
        return {**data, **beside, **tried, "outcomes": encode(self.outcomes)}


def log(
    sandbox: SandboxOption = "",
    every: Annotated[bool, typer.Option("--all", "-a", help="Failed, unfinished and all pruned ones, too.")] = False,
    html: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="Write a page with all details instead; - for the standard output.", show_default=False
        ),
    ] = "",
    compared: Annotated[
        int, typer.Option("--diffs", min=0, metavar="N", help="With --html: compare the newest N with their parents.")
    ] = 50,
    as_json: JsonOption = False,
) -> None:
    """Show the statepoints of a sandbox as a tree.

    Each with its name, age, forks, outcomes and what it did not capture; the head is the one that the sandbox is at.
    One line of work goes straight down, what was left by a rollback hangs below where it began. The page of --html
    shows its forks, changes, processes, sizes and timings as well, in one file that needs no network.

    \b
    Example:
      planarian log
      planarian log --html statepoints.html
      planarian log --json | jq -r '.statepoints[] | select(.head) | .id'
    """
    if html == "-" and as_json:
        raise typer.BadParameter("--html - and --json both want the standard output")
    with opened(as_json=as_json) as planarian:
        chosen = planarian.sandbox(sandbox)
        if html:
            from planarian_core.cli.log_html import write_page

            write_page(planarian, chosen, html, every=every, compared=compared, as_json=as_json)
            return
        entries = gather(planarian, chosen, every=every)
        branch, record = planarian.registry.branch(chosen.id), chosen.record
    origin = f" (fork of {branch.forked_from})" if branch.forked_from else ""
    if as_json:
        output.print_json(
            {
                "sandbox": chosen.id,
                "head": branch.head,
                "forked_from": branch.forked_from,
                "statepoints": [entry.to_dict() for entry in entries],
            }
        )
        return
    output.remark(f"{record.id} {record.name}".rstrip() + f": {record.spec.workspace}{origin}")
    if entries:
        output.show(tree(entries))
    else:
        output.remark("There is no statepoint yet. Next: planarian snapshot")


def gather(planarian: Planarian, sandbox: Sandbox, *, every: bool) -> list[Entry]:
    """The sandbox's statepoints in the order in which they were begun; of pruned ones those with a name or outcomes."""
    registry = planarian.registry
    head = registry.branch(sandbox.id).head
    forks: dict[str, list[str]] = {}
    for record in registry.sandboxes():
        source = registry.branch(record.id).forked_from
        if source:
            forks.setdefault(source, []).append(record.name or record.id)
    holds, drills, warm = registry.holds.all(), registry.drills.all(), warm_copies(planarian)
    entries: list[Entry] = []
    above: dict[str | None, str | None] = {}
    for s in registry.statepoints(sandbox.id):
        outcomes = registry.outcomes(s.id)
        nearest = above.get(s.parent_id)
        shown = every or s.status is Status.COMMITTED or (s.status is Status.PRUNED and bool(s.name or outcomes))
        above[s.id] = s.id if shown else nearest
        if shown:
            marks = (holds.get(s.id), drills.get(s.id), warm[s.id])
            entries.append(Entry(s, s.id == head, tuple(forks.get(s.id, ())), outcomes, *marks, nearest))
    return entries


def warm_copies(planarian: Planarian) -> Counter[str]:
    """How many copies of each statepoint stand ready, in any runtime that has this home open."""
    return Counter(s.statepoint_id for s in planarian.registry.standbys.all().values() if s.ready)


def tree(entries: list[Entry]) -> Tree:
    """The entries as a tree. A line of work stays at one level; the one that leads to the head goes on straight."""
    from rich.tree import Tree

    from planarian_core.lineage import children

    by_id = {entry.statepoint.id: entry for entry in entries}
    below = children([replace(entry.statepoint, parent_id=entry.above) for entry in entries])
    line_of_head = _to_head(entries)
    root = Tree("", hide_root=True, guide_style="dim")
    pending: list[tuple[Tree, Statepoint]] = [(root, first) for first in reversed(below.get(None, []))]
    while pending:
        level, statepoint = pending.pop()
        node = level.add(_label(by_id[statepoint.id]))
        following = below.get(statepoint.id, [])
        straight = next((s for s in following if s.id in line_of_head), None)
        straight = straight or next((s for s in reversed(following) if s.status is Status.COMMITTED), None)
        if straight:
            pending.append((level, straight))
        pending += [(node, s) for s in reversed(following) if s is not straight]
    return root


def _to_head(entries: list[Entry]) -> set[str]:
    by_id = {entry.statepoint.id: entry for entry in entries}
    found: set[str] = set()
    at = next((entry for entry in entries if entry.head), None)
    while at is not None and at.statepoint.id not in found:
        found.add(at.statepoint.id)
        at = by_id.get(at.above or "")
    return found


def _label(entry: Entry) -> Text:
    from rich.text import Text

    statepoint = entry.statepoint
    label = Text(statepoint.id, style="bold green" if entry.head else "bold", no_wrap=False)
    if statepoint.name:
        label.append(f" {output.one_line(statepoint.name)}", style="cyan")
    label.append(f" {output.age(statepoint.created_at)}", style="dim")
    if entry.head:
        label.append(" <- head", style="green")
    if entry.hold is not None:
        label.append(" held", style="yellow")
    if entry.warm:
        label.append(" warm" + (f" x{entry.warm}" if entry.warm > 1 else ""), style="green")
    if entry.drill is not None and entry.drill.error:
        label.append(" can't be restored", style="bold red")
    if statepoint.status is not Status.COMMITTED:
        label.append(f" {statepoint.status}", style="red")
    elif statepoint.automatic:
        label.append(" automatic", style="dim")
    if entry.forks:
        label.append(f" forks: {', '.join(map(output.one_line, entry.forks))}", style="magenta")
    for text, style in _details(entry):
        label.append(f"\n  {output.one_line(text)}", style=style)
    return label


def _details(entry: Entry) -> list[tuple[str, str]]:
    statepoint, gaps = entry.statepoint, entry.statepoint.coverage.missing
    lines = []
    if statepoint.description:
        lines.append((statepoint.description, ""))
    if entry.hold is not None and entry.hold.note:
        lines.append((f"held: {entry.hold.note}", "yellow"))
    if entry.drill is not None and entry.drill.error:
        lines.append((f"drill at {entry.drill.created_at}: {entry.drill.error}", "red"))
    if statepoint.error:
        lines.append((f"error: {statepoint.error}", "red"))
    lines += [(f"not captured: {gap.subject} ({gap.reason})", "yellow") for gap in gaps[:_GAPS_SHOWN]]
    if len(gaps) > _GAPS_SHOWN:
        lines.append((f"and {len(gaps) - _GAPS_SHOWN} more: planarian show {statepoint.id}", "yellow"))
    lines += [(f"{o.status}: {o.text}", "blue") for o in entry.outcomes[-_OUTCOMES_SHOWN:]]
    return lines
