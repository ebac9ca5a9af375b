"""``log --html``: the statepoints of a sandbox and of its forks as the data of one page.

What it shows was written by agents and by programs in sandboxes: every text is bounded and freed of control characters,
and all texts together keep to a budget, of which the newest statepoints have the first share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planarian_core.cli import output, page_file
from planarian_core.cli.html import page
from planarian_core.diff_text import beside_files, count_line
from planarian_core.errors import PlanarianError
from planarian_core.model import Artefact, Drill, Hold, SandboxRecord, Standby, Statepoint, Status, utc_now

if TYPE_CHECKING:
    from planarian_core.diff import Diff
    from planarian_core.runtime import Planarian
    from planarian_core.sandbox import Sandbox

_CHARACTERS = 24_000_000
_SCARCE = 80
_LINE = 300
_TEXT = 4000
_ROWS = 60
_TEXTS = 12
_SETTLED = (Status.COMMITTED, Status.PRUNED)


class Budget:
    """Cuts texts: each at its own limit, and at a few words when all the characters of the page are spent."""

    def __init__(self, characters: int = _CHARACTERS) -> None:
        self.left = characters
        self.scarce = False

    def text(self, text: str, limit: int = _LINE) -> str:
        """``text`` without control characters; the middle of what is too long is cut out, and that is said."""
        if self.left < len(text) and len(text) > _SCARCE:
            self.scarce = True
            limit = _SCARCE
        if len(text) > limit:
            head = limit * 2 // 3
            cut = len(text) - limit
            text = f"{text[:head]} [{cut} characters left out] {text[len(text) - (limit - head) :]}"
        self.left -= len(text)
        return output.printable(text)

    def rows(self, items: Iterable[tuple[Any, ...]], limit: int = _LINE) -> list[list[Any]]:
        """The texts of each row bounded; what is no text stays as it is."""
        return [[self.text(cell, limit) if isinstance(cell, str) else cell for cell in row] for row in items]


Changes = Callable[[Statepoint, Budget], Mapping[str, Any] | None]
"""What a statepoint changed against its parent; None where that isn't shown."""


class Comparisons:
    """Compares statepoints with their parents, as many as are wanted of those that it is asked for first."""

    def __init__(self, planarian: Planarian, wanted: int, tell: Callable[[str], None]) -> None:
        self._planarian = planarian
        self._wanted = wanted
        self._done = 0
        self._tell = tell

    def __call__(self, point: Statepoint, budget: Budget) -> Mapping[str, Any] | None:
        parent = self._planarian.registry.find(point.parent_id) if point.parent_id else None
        if self._done >= self._wanted or parent is None or {point.status, parent.status} != {Status.COMMITTED}:
            return None
        if _same(point, parent):
            return {"summary": "none changed", "paths": [], "more": 0, "beside": [], "texts": [], "texts_more": 0}
        self._done += 1
        self._tell(f"comparing statepoint {self._done} of at most {self._wanted}")
        try:
            return self._compared(self._planarian.diff(parent, point), budget)
        except PlanarianError as error:
            return {"error": budget.text(error.message, _TEXT)}

    def _compared(self, found: Diff, budget: Budget) -> Mapping[str, Any]:
        texts = [(change.path, change.text) for change in found.files if change.text]
        notes = ("; ".join([*change.details, *filter(None, [change.no_text])]) for change in found.files)
        names = (f"{change.source} → {change.path}" if change.source else change.path for change in found.files)
        paths = zip((change.change.value for change in found.files), names, notes, strict=True)
        return {
            "summary": count_line(found).removeprefix("files: "),
            "paths": budget.rows(list(paths)[:_ROWS]),
            "more": max(0, len(found.files) - _ROWS + max(found.omitted, 0)),
            "beside": [budget.text(line) for line in list(beside_files(found))[:_ROWS]],
            "texts": budget.rows(texts[:_TEXTS], _TEXT),
            "texts_more": max(0, len(texts) - _TEXTS),
        }


def _same(point: Statepoint, parent: Statepoint) -> bool:
    """Whether a statepoint shares everything with its parent: then there is nothing to compare."""
    if point.remote != parent.remote or point.process_list != parent.process_list:
        return False
    pairs = ((point.files, parent.files), (point.processes, parent.processes))
    return all(
        (mine is None and theirs is None)
        or (mine is not None and theirs is not None and bool(mine.owner) and mine.owner == parent.owner(theirs))
        for mine, theirs in pairs
    )


def write_page(planarian: Planarian, sandbox: Sandbox, file: str, *, every: bool, compared: int, as_json: bool) -> None:
    """Write the page to ``file``, ``-`` for the standard output, and say where it is."""
    path = Path(file).absolute()
    if file != "-":
        page_file.check(path)  # before the work
    with output.working("drawing the statepoints") as tell:
        data = picture(planarian, sandbox, every=every, changes=Comparisons(planarian, compared, tell))
        text = page(data)
    if file == "-":
        print(text)
        return
    page_file.write(path, text)
    if as_json:
        output.print_json({"html": str(path), "sandbox": sandbox.id, "statepoints": len(data["statepoints"])})
    else:
        output.say(str(path))


def picture(planarian: Planarian, sandbox: Sandbox, *, every: bool, changes: Changes | None = None) -> dict[str, Any]:
    """Everything that the page shows. The same registry gives the same, but for ``generated_at``.

    Args:
        every: failed and unfinished snapshots, too.
        changes: asked for each statepoint, newest first.
    """
    from planarian_core import __version__

    registry = planarian.registry
    origin = registry.branch(sandbox.id).forked_from
    all_points = registry.statepoints()
    family = _family(planarian, sandbox.id, all_points)
    known = {record.id for record in family}
    points = [
        point
        for point in all_points
        if (point.sandbox_id in known and (every or point.status in _SETTLED)) or point.id == origin
    ]
    beside, budget = _Beside(planarian), Budget()
    shown = [beside.entry(point, budget, changes(point, budget) if changes else None) for point in reversed(points)]
    return {
        "generated_at": utc_now(),
        "planarian": __version__,
        "sandbox": sandbox.id,
        "sandboxes": [_sandbox(planarian, record, budget) for record in family],
        "returns": sorted(_returns(planarian, family, points).items()),
        "left_out": "long texts are cut short: there are too many for one page" if budget.scarce else "",
        "statepoints": shown[::-1],
    }


def _family(planarian: Planarian, sandbox_id: str, points: list[Statepoint]) -> list[SandboxRecord]:
    """The sandbox, and what was forked from its statepoints, or from theirs, in the order in which they were made."""
    records = planarian.registry.sandboxes()
    owners = {point.id: point.sandbox_id for point in points}
    sources = {b.sandbox_id: owners.get(b.forked_from or "") for b in planarian.registry.branches()}
    found = {sandbox_id}
    while True:
        grown = found | {record.id for record in records if sources.get(record.id) in found}
        if grown == found:
            return [record for record in records if record.id in found]
        found = grown


def _sandbox(planarian: Planarian, record: SandboxRecord, budget: Budget) -> dict[str, Any]:
    branch = planarian.registry.branch(record.id)
    return {
        "id": record.id,
        "name": budget.text(record.name),
        "workspace": budget.text(record.spec.workspace),
        "backends": f"{record.spec.backend}, {record.filesystem}, {record.process}",
        "head": branch.head,
        "forked_from": branch.forked_from,
    }


def _returns(planarian: Planarian, family: list[SandboxRecord], points: list[Statepoint]) -> Counter[str]:
    """How often each statepoint was returned to: where a sandbox's next one doesn't grow from the one before."""
    found: Counter[str] = Counter()
    for record in family:
        branch = planarian.registry.branch(record.id)
        at = branch.forked_from
        for point in points:
            if point.sandbox_id != record.id or point.status not in _SETTLED:
                continue
            if at is not None and point.parent_id not in (at, None):
                found[str(point.parent_id)] += 1
            at = point.id
        if branch.head not in (at, None):
            found[str(branch.head)] += 1
    return found


class _Beside:
    """What the registry keeps beside the statepoints, read once."""

    def __init__(self, planarian: Planarian) -> None:
        self._registry = planarian.registry
        self._holds: dict[str, Hold] = self._registry.holds.all()
        self._drills: dict[str, Drill] = {drill.statepoint_id: drill for drill in self._registry.drills.all().values()}
        self._copies: dict[str, list[Standby]] = {}
        for standby in self._registry.standbys.all().values():
            self._copies.setdefault(standby.statepoint_id, []).append(standby)

    def entry(self, point: Statepoint, budget: Budget, changes: Mapping[str, Any] | None) -> dict[str, Any]:
        """One statepoint as the page takes it."""
        outcomes = self._registry.outcomes(point.id)
        running = point.process_list
        hold = self._holds.get(point.id)
        return {
            "id": point.id,
            "sandbox": point.sandbox_id,
            "parent": point.parent_id,
            "at": point.created_at,
            "status": point.status.value,
            "name": budget.text(point.name),
            "description": budget.text(point.description, _TEXT),
            "error": budget.text(point.error, _TEXT),
            "automatic": point.automatic,
            "facts": budget.rows(list(point.facts.items())[:_ROWS], _TEXT // 4),
            "facts_more": max(0, len(point.facts) - _ROWS),
            "files": _part(point.files),
            "processes": _part(point.processes),
            "running": budget.rows(
                (p.pid, " ".join(p.argv), p.cwd, p.state, p.pid in point.in_flight) for p in running[:_ROWS]
            ),
            "running_more": max(0, len(running) - _ROWS),
            "remote": budget.rows((r.service, r.position, r.endpoint) for r in point.remote[:_ROWS]),
            "captured": [budget.text(text) for text in point.coverage.captured[:_ROWS]],
            "missing": budget.rows((g.domain.value, g.subject, g.reason) for g in point.coverage.missing[:_ROWS]),
            "missing_more": max(0, len(point.coverage.missing) - _ROWS),
            "timings": [[budget.text(step), seconds] for step, seconds in point.timings.items()],
            "outcomes": budget.rows(
                ((o.status, o.text, o.author, o.created_at) for o in outcomes[-_ROWS:]), _TEXT // 2
            ),
            "outcomes_more": max(0, len(outcomes) - _ROWS),
            "held": budget.text(hold.note) if hold else None,
            "drill": self._drill(point.id, budget),
            "warm": self._warm(point.id),
            "changes": changes,
        }

    def _drill(self, statepoint_id: str, budget: Budget) -> dict[str, Any] | None:
        drill = self._drills.get(statepoint_id)
        if drill is None:
            return None
        return {"error": budget.text(drill.error), "seconds": drill.seconds, "at": drill.created_at}

    def _warm(self, statepoint_id: str) -> dict[str, int] | None:
        copies = self._copies.get(statepoint_id)
        if not copies:
            return None
        ready = [standby for standby in copies if standby.ready]
        return {"copies": len(copies), "ready": len(ready), "memory": sum(standby.memory for standby in ready)}


def _part(artefact: Artefact | None) -> dict[str, Any] | None:
    if artefact is None:
        return None
    return {
        "backend": artefact.backend,
        "stored": artefact.stored,
        "logical": artefact.logical,
        "owner": artefact.owner,
    }
