"""Undoing effects and doing them again: compared before, verified after, resumable between any two calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from planarian_core.errors import CompensationConflict, CompensationError, RemoteError
from planarian_core.faults import reach
from planarian_core.interfaces import Moved, ToolTarget
from planarian_core.model import Effect, EffectState
from planarian_remote.declared.calling import shown
from planarian_remote.declared.declaration import Compare
from planarian_remote.declared.images import Image, Unreadable, failed, from_kept, make, same, take, touched, whole
from planarian_remote.declared.templates import MISSING, canonical, result_text
from planarian_remote.declared.undo_data import MadeStep, Progress, UndoData, pack, unpack

_UNREADABLE = "unreadable"
"""No digest: neither what a call left nor what was there before."""


@dataclass(frozen=True)
class _Turn:
    """One effect on its way: from the image ``start`` to the image ``end``, by ``steps``."""

    effect: Effect
    data: UndoData
    undoing: bool

    @property
    def verb(self) -> str:
        return "undone" if self.undoing else "made again"

    @property
    def start(self) -> Image:
        return self.known if self.undoing else self.data.before

    @property
    def end(self) -> Image:
        return self.data.before if self.undoing else self.known

    @property
    def known(self) -> Image:
        """What the call left."""
        if self.data.after is not None:
            return self.data.after
        if not self.data.reads:
            return {}
        if self.data.expect is None:
            raise self.impossible("what the call left could not be read")
        return self.data.expect

    @property
    def touched(self) -> list[str]:
        """The objects that the call changed."""
        return touched(self.data.before, self.known) if self.data.reads else []

    def names(self, now: Image) -> list[str]:
        """The objects that are compared: those that the call changed, and those that no one else may have."""
        reads = self.data.made_reads(Compare.ALWAYS)
        others = whole(reads, self.data.before, self.known, now) if reads else ()
        return sorted({*self.touched, *others})

    @property
    def steps(self) -> tuple[MadeStep, ...]:
        steps = self.data.undo if self.undoing else self.data.redo
        if not self.undoing and self.data.why_not:
            raise self.impossible(self.data.why_not)
        if steps is None:
            raise self.impossible("its result, which that needs, isn't known")
        return steps

    @property
    def resumes(self) -> bool:
        return self.data.progress is not None and self.data.progress.undoing is self.undoing

    def impossible(self, why: str) -> CompensationError:
        return CompensationError(
            f"effect {self.effect.number} of {self.effect.service} can't be {self.verb}: {self.effect.summary}: {why}",
            code="undo-impossible" if self.undoing else "redo-impossible",
            state="this effect was not touched",
            remedy="choose another statepoint",
        )

    def conflict(self, names: str) -> CompensationConflict:
        return CompensationConflict(
            f"effect {self.effect.number} of {self.effect.service} can't be {self.verb} ({self.effect.summary}): "
            f"somebody else has changed since: {names}",
            state="what they wrote was left alone",
            remedy="bring that back to what the call left, or choose a statepoint after it",
        )

    def broken(self, why: str) -> CompensationError:
        return CompensationError(
            f"effect {self.effect.number} of {self.effect.service} could not be {self.verb} ({self.effect.summary}): "
            f"{why}",
            code="service-refuses",
            state="this effect may be half-way; what was done before it stays recorded",
            remedy="remove the cause, then roll back again: it goes on from there",
        )


# --- the rehearsal ---


@dataclass
class _Rehearsal:
    """What objects would be, after the turns rehearsed so far; and every value that those turns left behind.

    Two effects may touch one object under two names (``a`` and ``./a``, a file and its folder). So a value that is not
    what an effect left is only a conflict for certain when none of the turns before explains it. One that reads in
    another way may explain anything: whether a name is there says nothing of the content that a move brings with it.
    What is uncertain is decided when the effects are really moved, each compared once more.
    """

    target: ToolTarget
    objects: dict[str, str | None] = field(default_factory=dict)
    explained: set[str | None] = field(default_factory=set)
    ways: set[tuple[str, str]] = field(default_factory=set)

    def rehearse(self, turn: _Turn) -> None:
        _ = turn.steps
        _check_redo_needs(turn, self.target)
        reads = turn.data.made_reads(Compare.ALWAYS)
        ways = {(read.tool, canonical(read.read.value)) for read in reads}
        uncertain = not self.ways <= ways
        self.ways |= ways
        try:
            now = {**take(reads, self.target, Compare.ALWAYS), **self.objects}
        except RemoteError as error:
            raise turn.impossible(f"what it changed can't be read: {error}") from error
        except Unreadable as error:
            if not uncertain:
                raise turn.impossible(f"what it changed can't be read: {error}") from error
            now = self.objects
        names = turn.names(now)
        strange = [name for name in names if now.get(name) not in (turn.start.get(name), turn.end.get(name))]
        if not (turn.resumes or uncertain) and any(now.get(name) not in self.explained for name in strange):
            raise turn.conflict(shown(strange, turn.start, now))
        for name in names:
            self.explained |= {turn.start.get(name), turn.end.get(name)}
            self.objects[name] = turn.end.get(name)


def rehearse(undo: Sequence[Effect], redo: Sequence[Effect], target: ToolTarget) -> None:
    """See that :func:`move` would succeed, as far as that can be known without changing anything."""
    rehearsal = _Rehearsal(target)
    for effect in undo:
        rehearsal.rehearse(_Turn(effect, unpack(effect), undoing=True))
    for effect in redo:
        rehearsal.rehearse(_Turn(effect, unpack(effect), undoing=False))


def _check_redo_needs(turn: _Turn, target: ToolTarget) -> None:
    if turn.undoing or turn.resumes:
        return
    for kept_read in turn.data.redo_needs:
        read = from_kept(kept_read)
        try:
            there = make(read, target) is not MISSING
        except Unreadable as error:
            raise turn.impossible(str(error)) from error
        if not there:
            raise turn.impossible(f"{read.label} isn't there any more")


# --- the move ---


def move(undo: Sequence[Effect], redo: Sequence[Effect], target: ToolTarget, moved: Moved) -> None:
    """Undo effects, in this order, then do others again, in this order."""
    turns = [_Turn(effect, unpack(effect), undoing=True) for effect in undo]
    turns += [_Turn(effect, unpack(effect), undoing=False) for effect in redo]
    done = _taken(turns, target)
    for number, turn in enumerate(turns):
        if number >= done:
            _take(turn, target, moved)
        moved(*_recorded(turn))


def _recorded(turn: _Turn) -> tuple[Effect, EffectState]:
    state = EffectState.UNDONE if turn.undoing else EffectState.APPLIED
    if turn.data.progress is None:
        return turn.effect, state
    return replace(turn.effect, details=pack(replace(turn.data, progress=None))), state


def _taken(turns: Sequence[_Turn], target: ToolTarget) -> int:
    """How many of the turns were taken already, but not recorded, by the present state of everything that they touch:
    the most that fit it. 0 where none fits, as when an object has two names: each is compared for itself then, which
    finds the one turn that a kill can leave unrecorded.
    """
    if any(turn.resumes for turn in turns):
        return 0  # the one before was recorded when this one was begun
    wanted = {name: turn.end.get(name) for turn in turns for name in turn.touched}
    if not wanted:
        return 0
    now: dict[str, str | None] = {}
    for turn in turns:
        if any(name not in now for name in turn.touched):
            found = _now(turn, target, unreadable=dict.fromkeys(turn.touched, _UNREADABLE))
            now |= {name: found.get(name) for name in {*turn.touched, *found} if name in wanted}
    differing = {name for name in wanted if wanted[name] != now.get(name)}
    for count in range(len(turns), 0, -1):
        if not differing:
            return count
        for name in turns[count - 1].touched:
            wanted[name] = turns[count - 1].start.get(name)
            (differing.discard if wanted[name] == now.get(name) else differing.add)(name)
    return 0


def _take(turn: _Turn, target: ToolTarget, moved: Moved) -> None:
    steps, now = turn.steps, _now(turn, target)
    names = turn.names(now)
    if turn.data.reads and (not turn.touched or same(names, now, turn.end)):
        return
    if not turn.resumes:
        _check_start(turn, names, now, target)
    _make(turn, steps, target, moved)
    _verify(turn, target)


def _check_start(turn: _Turn, names: Sequence[str], now: Image, target: ToolTarget) -> None:
    if not same(names, now, turn.start):
        raise turn.conflict(shown(names, turn.start, now))
    late = turn.data.late or {}
    if turn.undoing and late:
        present = _now(turn, target, Compare.LATE)
        if touched(late, present):
            raise turn.conflict(shown(touched(late, present), late, present))


def _make(turn: _Turn, steps: Sequence[MadeStep], target: ToolTarget, moved: Moved) -> None:
    first = turn.data.progress.step if turn.resumes and turn.data.progress else 0
    for number in range(first, len(steps)):
        if len(steps) > 1:
            progress = replace(turn.data, progress=Progress(turn.undoing, number))
            moved(replace(turn.effect, details=pack(progress)), turn.effect.state)
        step = steps[number]
        try:
            result = target.call(step.tool, step.arguments)
        except RemoteError as error:
            raise turn.broken(f"{step.tool}: {error.message}") from error
        reach("declared.step")
        if failed(result) and not (turn.resumes and number == first):  # made a second time, it may find nothing to do
            raise turn.broken(f"{step.tool} reports: {result_text(result)[:500]}")


def _verify(turn: _Turn, target: ToolTarget) -> None:
    now = _now(turn, target)
    names = turn.names(now)
    if not same(names, now, turn.end):
        raise turn.broken(f"the calls went through, but these are not as they should be: {shown(names, turn.end, now)}")


def _now(turn: _Turn, target: ToolTarget, compare: Compare = Compare.ALWAYS, unreadable: Image | None = None) -> Image:
    """The present image; ``unreadable`` where it can't be read, if given."""
    try:
        return take(turn.data.made_reads(compare), target, compare)
    except Unreadable as error:
        if unreadable is not None:
            return unreadable
        raise turn.broken(f"what it changed can't be read: {error}") from error
    except RemoteError as error:
        raise turn.broken(error.message) from error
