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
from planarian_remote.declared.templates import MISSING, result_text
from planarian_remote.declared.undo_data import MadeStep, Progress, UndoData, pack, unpack


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
        if self.data.after is None:
            raise self.impossible("what the call left could not be read")
        return self.data.after

    def names(self, now: Image) -> list[str]:
        """The objects that are compared: those that the call touched, and those that no one else may have."""
        if not self.data.reads:
            return []
        reads = self.data.made_reads(Compare.ALWAYS)
        return sorted({*touched(self.data.before, self.known), *whole(reads, self.data.before, self.known, now)})

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
            code="undo-data-missing" if self.undoing else "redo-impossible",
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
    what an effect left is only a conflict for certain when none of the turns before explains it; what is uncertain is
    decided when the effects are really moved, each compared once more.
    """

    target: ToolTarget
    objects: dict[str, str | None] = field(default_factory=dict)
    explained: set[str | None] = field(default_factory=set)

    def rehearse(self, turn: _Turn) -> None:
        _ = turn.steps
        _check_redo_needs(turn, self.target)
        now = {**_now(turn, self.target), **self.objects}
        names = turn.names(now)
        strange = [name for name in names if now.get(name) not in (turn.start.get(name), turn.end.get(name))]
        if not turn.resumes and any(now.get(name) not in self.explained for name in strange):
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
    for effect in undo:
        _turn(_Turn(effect, unpack(effect), undoing=True), target, moved)
    for effect in redo:
        _turn(_Turn(effect, unpack(effect), undoing=False), target, moved)


def _turn(turn: _Turn, target: ToolTarget, moved: Moved) -> None:
    steps, now = turn.steps, _now(turn, target)
    names = turn.names(now)
    there = bool(names) and same(names, now, turn.end)
    if not there:
        if not turn.resumes:
            _check_start(turn, now, target)
        _make(turn, steps, target, moved)
        _verify(turn, target)
    state = EffectState.UNDONE if turn.undoing else EffectState.APPLIED
    done = replace(turn.data, progress=None)
    moved(turn.effect if done == turn.data else replace(turn.effect, details=pack(done)), state)


def _check_start(turn: _Turn, now: Image, target: ToolTarget) -> None:
    names = turn.names(now)
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


def _now(turn: _Turn, target: ToolTarget, compare: Compare = Compare.ALWAYS) -> Image:
    try:
        return take(turn.data.made_reads(compare), target, compare)
    except Unreadable as error:
        raise turn.broken(f"what it changed can't be read: {error}") from error
    except RemoteError as error:
        raise turn.broken(error.message) from error
