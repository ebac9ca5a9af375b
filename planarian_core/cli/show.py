"""``show``: everything about one statepoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planarian_core.cli import output
from planarian_core.cli.log import Entry, warm_copies
from planarian_core.cli.opening import opened, owner
from planarian_core.cli.options import JsonOption, SandboxOption, StatepointArgument
from planarian_core.codec import encode
from planarian_core.model import Status

if TYPE_CHECKING:
    from planarian_core.model import Artefact, Drill, Statepoint
    from planarian_core.runtime import Planarian
    from planarian_core.sandbox import Sandbox


def show(statepoint: StatepointArgument, sandbox: SandboxOption = "", as_json: JsonOption = False) -> None:
    """Show everything about a statepoint.

    What it holds and what it does not, its processes, remote positions, evidence, sizes and timings. A failed
    snapshot can be shown by its id.

    \b
    Example:
      planarian show @head
      planarian show deps --json | jq '.coverage.missing'
    """
    with opened(as_json=as_json) as planarian:
        source = owner(planarian, sandbox, statepoint)
        entry = _entry(planarian, source, statepoint)
    if as_json:
        data = {"head": entry.head, "forks": list(entry.forks), "hold": encode(entry.hold)}
        data |= {"drill": encode(entry.drill), "warm": entry.warm, "outcomes": encode(entry.outcomes)}
        output.print_json({**entry.statepoint.to_dict(), **data})
    else:
        _print(entry)


def _entry(planarian: Planarian, source: Sandbox, reference: str) -> Entry:
    registry = planarian.registry
    found = next((s for s in registry.statepoints(source.id) if s.id == reference), None)
    found = found or planarian.resolve(source, reference)
    grown = {branch.sandbox_id for branch in registry.branches() if branch.forked_from == found.id}
    forks = tuple(record.name or record.id for record in registry.sandboxes() if record.id in grown)
    head = registry.branch(source.id).head == found.id
    marks = (registry.holds.get(found.id), registry.drills.get(found.id), warm_copies(planarian)[found.id])
    return Entry(found, head, forks, registry.outcomes(found.id), *marks)


def _print(entry: Entry) -> None:
    point = entry.statepoint
    output.show_facts(
        {
            "statepoint": point.id + (" (head)" if entry.head else ""),
            "name": point.name,
            "status": point.status.value + (f": {point.error}" if point.error else ""),
            "taken": f"{point.created_at} ({output.age(point.created_at)})" + (", automatic" * point.automatic),
            "sandbox": point.sandbox_id,
            "parent": point.parent_id or "none",
            "forks": ", ".join(entry.forks),
            "held": _hold(entry),
            "warm copies": str(entry.warm or ""),
            "drill": _drill(entry.drill),
            "description": point.description,
            **{f"fact {label}": text for label, text in point.facts.items()},
            "outcomes": "\n".join(f"{o.created_at} {o.status}: {o.text}" for o in entry.outcomes),
            "captured": "\n".join(point.coverage.captured),
            "not captured": "\n".join(f"{g.domain}: {g.subject} ({g.reason})" for g in point.coverage.missing),
            "files": _artefact(point, point.files),
            "processes": _artefact(point, point.processes),
            "running": _processes(point),
            "remote": "\n".join(f"{p.service} at {p.position} ({p.endpoint})" for p in point.remote),
            "timings": ", ".join(f"{step} {seconds * 1000:.1f} ms" for step, seconds in point.timings.items()),
            "base": point.base,
        }
    )


def _hold(entry: Entry) -> str:
    if entry.hold is None:
        return ""
    return f"since {entry.hold.created_at}" + (f": {entry.hold.note}" if entry.hold.note else "")


def _drill(drill: Drill | None) -> str:
    if drill is None:
        return ""
    found = f"can't be restored: {drill.error}" if drill.error else f"was restored in {drill.seconds:.3f} s"
    return f"{drill.created_at}: {found}"


def _artefact(point: Statepoint, artefact: Artefact | None) -> str:
    if artefact is None:
        return ""
    if point.status is Status.PRUNED:
        return "gone: it was pruned"
    return (
        f"{artefact.backend} {artefact.reference}, {output.size(artefact.stored)} added, "
        f"{output.size(artefact.logical)} in all"
    )


def _processes(point: Statepoint) -> str:
    lines = []
    for process in point.process_list:
        ends = " (ends in a restore: it asked for the statepoint)" if process.pid in point.in_flight else ""
        where = f"  in {process.cwd}" if process.cwd else ""
        lines.append(output.one_line(f"{process.pid} {' '.join(process.argv)}{where}") + ends)
    return "\n".join(lines)
