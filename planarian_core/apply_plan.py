"""What to do with each path that a sandbox changed: the three-way comparison of an application to the host.

*Base* is what the sandbox began with (or what was applied last), *theirs* what it made of it, *ours* the host's
workspace now. Where ours is as the base, theirs is applied; where ours is as theirs, there is nothing to do; else it is
a conflict.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from planarian_core.applied_store import FileState, state_of
from planarian_core.apply_policy import held_back, runs_on_host, sanitised
from planarian_core.comparison import compare
from planarian_core.file_tree import FileEntry, FileKind, FileTree
from planarian_core.text_diff import content_of, unified
from planarian_core.tree_changes import above_path

_MOST_REPORTS = 50


class Verdict(StrEnum):
    """What becomes of a path."""

    APPLY = "apply"
    SAME = "same"
    CONFLICT = "conflict"
    HELD_BACK = "held back"


@dataclass(frozen=True)
class Decision:
    """One path. ``ours`` and ``theirs`` are what is there and what comes, None for nothing; ``dropped`` names what of
    theirs does not come along.
    """

    path: str
    verdict: Verdict
    ours: FileEntry | None
    theirs: FileEntry | None
    was: FileState | None
    becomes: FileState | None
    reason: str = ""
    dropped: tuple[str, ...] = ()

    @property
    def writes(self) -> bool:
        return self.verdict is Verdict.APPLY

    @property
    def change(self) -> str:
        return "added" if self.ours is None else "deleted" if self.theirs is None else "changed"


@dataclass(frozen=True)
class Ends:
    """The three trees, all of the workspace. ``applied``: what the sandbox applied last, by path."""

    base: FileTree
    theirs: FileTree
    ours: FileTree
    applied: Mapping[str, FileState | None] = field(default_factory=dict)


def plan(
    ends: Ends, paths: Sequence[str] = (), *, force: bool = False, with_git_config: bool = False
) -> list[Decision]:
    """Decide about every path that differs, in order of paths.

    Args:
        paths: only these, with all below them.
        force: theirs, where there would be a conflict.
        with_git_config: let pass what git and its like may execute.
    """
    chosen = [path for path in _candidates(ends) if not paths or any(_is_in(path, top) for top in paths)]
    planner = _Planner(ends, force, with_git_config)
    for path in sorted(set(chosen)):
        planner.decide(path)
    planner.settle_directories()
    return [planner.decisions[path] for path in sorted(planner.decisions)]


def _candidates(ends: Ends) -> Iterator[str]:
    yield from (difference.path for difference in compare(ends.base, ends.theirs) if difference.path)
    yield from ends.applied


def _is_in(path: str, top: str) -> bool:
    return not top or path == top or path.startswith(f"{top}/")


class _Planner:
    def __init__(self, ends: Ends, force: bool, with_git_config: bool) -> None:
        self._ends = ends
        self._force = force
        self._with_git_config = with_git_config
        self.decisions: dict[str, Decision] = {}

    def decide(self, path: str) -> None:
        """Parents come before what is in them."""
        ends = self._ends
        base, ours, theirs = (tree.entry(path) for tree in (ends.base, ends.ours, ends.theirs))
        reason = held_back(path, theirs)
        if not reason and not self._with_git_config:
            reason = runs_on_host(path, theirs or base, ends.theirs, ends.ours)
        dropped = _dropped(theirs)
        theirs = sanitised(theirs)[0] if theirs is not None else None
        becomes, is_now = state_of(ends.theirs, path, theirs if not reason else None), state_of(ends.ours, path, ours)
        decision = Decision(path, Verdict.SAME, ours, theirs, is_now, becomes, dropped=dropped)
        if reason:
            self._put(decision, Verdict.HELD_BACK, reason)
            return
        began = ends.applied[path] if path in ends.applied else self._base_state(path, base)
        if began == becomes and dropped and dropped != _dropped(base):
            self._put(decision, Verdict.HELD_BACK, f"{', '.join(dropped)}: never written to the host")
        elif becomes in (is_now, began):
            self._put(decision, Verdict.SAME)
        elif (blocked := self._blocked(path, theirs)) is not None:
            self._put(decision, *blocked)
        elif is_now == began:
            self._put(decision, Verdict.APPLY)
        elif _both_directories(ours, theirs):
            self._put(decision, Verdict.SAME)  # its mode was changed on both sides: the host's stays
        else:
            self._conflict(decision, _why(base, ours, theirs))

    def _base_state(self, path: str, base: FileEntry | None) -> FileState | None:
        return state_of(self._ends.base, path, sanitised(base)[0] if base else None)

    def _put(self, decision: Decision, verdict: Verdict, reason: str = "") -> None:
        self.decisions[decision.path] = replace(decision, verdict=verdict, reason=reason)

    def _conflict(self, decision: Decision, reason: str) -> None:
        if not self._force:
            self._put(decision, Verdict.CONFLICT, reason)
            return
        self._put(decision, Verdict.APPLY, f"although {reason}")
        if decision.ours is not None and decision.ours.kind is FileKind.DIRECTORY:
            for path, entry in _all_below(self._ends.ours, decision.path):
                state = state_of(self._ends.ours, path, entry)
                self.decisions[path] = Decision(path, Verdict.APPLY, entry, None, state, None, "the directory goes")

    def _blocked(self, path: str, theirs: FileEntry | None) -> tuple[Verdict, str] | None:
        """Whether the directory that a path is to be in isn't one on the host, and won't be."""
        if theirs is None or self._will_be_directory(path.rpartition("/")[0]):
            return None
        for above in above_path(path):
            if self._will_be_directory(above):
                continue
            there, decision = self._ends.ours.entry(above), self.decisions.get(above)
            if decision is not None and decision.verdict is Verdict.HELD_BACK:
                return Verdict.HELD_BACK, f"{above} is held back"
            if not self._force:
                what = "is gone from" if there is None else "is no directory in"
                return Verdict.CONFLICT, f"{above} {what} the workspace"
            self._make_parent(above, there)
        return None

    def _will_be_directory(self, path: str) -> bool:
        decision = self.decisions.get(path)
        if not path or (decision is not None and decision.writes):
            return True
        there = self._ends.ours.entry(path)
        return there is not None and there.kind is FileKind.DIRECTORY

    def _make_parent(self, path: str, there: FileEntry | None) -> None:
        theirs = self._ends.theirs.entry(path)
        assert theirs is not None
        entry = sanitised(theirs)[0]
        states = state_of(self._ends.ours, path, there), state_of(self._ends.theirs, path, entry)
        self.decisions[path] = Decision(path, Verdict.APPLY, there, entry, *states, "what comes needs it")

    def settle_directories(self) -> None:
        """A directory goes only when all that is in it on the host goes; else it stays, or blocks what comes."""
        for path in sorted(self.decisions, reverse=True):
            decision = self.decisions[path]
            is_directory = decision.ours is not None and decision.ours.kind is FileKind.DIRECTORY
            goes = decision.theirs is None or decision.theirs.kind is not FileKind.DIRECTORY
            if not (decision.writes and is_directory and goes):
                continue
            staying = [
                name for child in self._ends.ours.children(path) if not self._goes(name := f"{path}/{child.name}")
            ]
            if staying and decision.theirs is None:
                self._put(decision, Verdict.HELD_BACK, f"{staying[0]} is in it, and stays")
            elif staying:
                self._put(decision, Verdict.CONFLICT, f"{staying[0]} is in the directory that it takes the place of")

    def _goes(self, path: str) -> bool:
        decision = self.decisions.get(path)
        return decision is not None and decision.writes and decision.theirs is None


def _dropped(entry: FileEntry | None) -> tuple[str, ...]:
    return sanitised(entry)[1] if entry is not None else ()


def _both_directories(ours: FileEntry | None, theirs: FileEntry | None) -> bool:
    return all(entry is not None and entry.kind is FileKind.DIRECTORY for entry in (ours, theirs))


def _why(base: FileEntry | None, ours: FileEntry | None, theirs: FileEntry | None) -> str:
    here = "deleted" if ours is None else "added" if base is None else "changed"
    there = "deleted" if theirs is None else "added" if base is None else "changed"
    return f"it was {here} in the workspace, and {there} in the sandbox"


def _all_below(tree: FileTree, path: str) -> Iterator[tuple[str, FileEntry]]:
    todo = [path]
    while todo:
        above = todo.pop()
        for child in tree.children(above):
            below = f"{above}/{child.name}"
            yield below, child
            if child.kind is FileKind.DIRECTORY:
                todo.append(below)


def reports(ends: Ends, conflicts: Iterable[Decision]) -> dict[str, str]:
    """Of conflicts in texts: what each side did to the base, as two unified diffs. Bounded."""
    found: dict[str, str] = {}
    for decision in conflicts:
        if len(found) >= _MOST_REPORTS:
            break
        path = decision.path
        base = content_of(ends.base, path, ends.base.entry(path))
        sides = (("workspace", ends.ours, decision.ours), ("sandbox", ends.theirs, decision.theirs))
        texts = [
            unified(base, content_of(tree, path, entry), (f"before/{path}", f"{side}/{path}"))[0]
            for side, tree, entry in sides
        ]
        if any(texts):
            found[path] = "".join(texts)
    return found
