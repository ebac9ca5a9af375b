"""What happens around one call: the reads before it, the choice of its inverse, the reads after it; and after a crash
the question what became of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from secrets import token_hex
from typing import Any

from planarian_core.errors import CompensationError, RemoteError
from planarian_core.faults import reach
from planarian_core.interfaces import CallOutcome, ToolResult, ToolTarget
from planarian_core.model import Effect, EffectState, RemoteCall
from planarian_remote.declared.declaration import Compare, Read, Step, Tool, Undo
from planarian_remote.declared.images import (
    Image,
    MadeRead,
    Unreadable,
    check_allowed,
    failed,
    fill,
    find,
    image_of,
    kept,
    make,
    same,
    take,
    touched,
)
from planarian_remote.declared.templates import MISSING, ResultView, Unresolved, canonical, evaluate, uses
from planarian_remote.declared.undo_data import MadeStep, UndoData, pack, unpack

_UNKNOWN = "the tool reported an error, and no read that is declared tells whether it changed something all the same"


@dataclass(frozen=True)
class Prepared:
    """A call that can be made: what undoing it takes as far as it is known, and what the rest is filled in from."""

    tool: Tool
    call: RemoteCall
    way: Undo
    scope: Mapping[str, Any]
    data: UndoData
    limit: int

    @property
    def details(self) -> dict[str, Any]:
        return pack(self.data, self.limit)


def prepare(tool: Tool, call: RemoteCall, settings: Mapping[str, str], target: ToolTarget, limit: int) -> Prepared:
    """Make the reads before a call and fill in what undoing it takes.

    Raises:
        RemoteError: ``call-refused``: it could not be undone.
    """
    scope: dict[str, Any] = {"call": call.arguments, "settings": settings, "unique": token_hex(16)}
    try:
        for template in tool.distinct:
            _check_distinct(evaluate(template, scope))
        scope["found"] = {one.name: find(one, scope, target) for one in tool.finds}
        reads, scope["before"], image = _read_before(tool.before, scope, target)
        way = _choose(tool, scope["before"])
        _check_needs(way.needs, scope, target)
        again = (Step(call.tool, call.arguments),) if way.redo is None else way.redo
        data = UndoData(
            image,
            tuple(kept(read) for read in reads),
            expect=_expected(tool, reads, scope),
            undo=_filled(way.steps, scope),
            redo=(MadeStep(call.tool, call.arguments),) if way.redo is None else _filled(again, scope),
            why_not="" if tool.repeats else f"made again, {tool.name} might do something else",
            redo_needs=tuple(kept(fill(read, scope)) for read in way.redo_needs),
        )
        prepared = Prepared(tool, call, way, scope, data, limit)
        pack(data, limit)
    except (Unreadable, Unresolved) as error:
        raise RemoteError(
            f"{call.tool} was refused, because it could not be undone: {error}",
            code="call-refused",
            state="nothing was changed",
        ) from error
    return prepared


def run(prepared: Prepared, effect: Effect, target: ToolTarget) -> CallOutcome:
    """Make the call, and see what it left."""
    result = target.call(prepared.call.tool, prepared.call.arguments)
    reach("declared.called")
    blind = failed(result) and not prepared.data.made_reads(Compare.ALWAYS)
    if blind and prepared.tool.fails_clean:
        return CallOutcome(result, EffectState.VOID, effect.summary)
    data, note = _seen(prepared, result, target)
    if data.after is not None and data.reads and not touched(data.before, data.after):
        return CallOutcome(result, EffectState.VOID, effect.summary)
    if blind:  # what a read finds after it may have been there before: that is why it failed
        return CallOutcome(result, EffectState.APPLIED, f"{effect.summary} (it reports an error)", pivot=_UNKNOWN)
    try:
        details = pack(data, prepared.limit)
    except Unresolved as error:  # the call is made: that it can't be undone can only be said now
        details, note = pack(replace(prepared.data, undo=None)), str(error)
    return CallOutcome(result, EffectState.APPLIED, f"{effect.summary} ({note})" if note else effect.summary, details)


def settle(effect: Effect, target: ToolTarget, patience: float = 0) -> CallOutcome:
    """What became of a call whose end nobody saw, decided by reading again. That it did not happen is believed
    ``patience`` seconds after it was sent: a server that lives on may still be at it.

    Raises:
        CompensationError: ``effect-undecided``.
    """
    data = unpack(effect)
    if not data.reads:
        raise _undecided(effect, "no read is declared that shows it")
    try:
        now = take(data.made_reads(Compare.ALWAYS), target, Compare.ALWAYS)
    except Unreadable as error:
        raise _undecided(effect, f"what it would have changed can't be read: {error}") from error
    makes = touched(data.before, data.expect if data.expect is not None else now)
    if same(makes, data.before, now):  # or it makes no difference
        left = patience - _age(effect) if patience and (makes or data.expect is None) else 0
        if left > 0:
            raise _undecided(effect, "the server may still be at it", f"try again in {math.ceil(left)} s; or ")
        return CallOutcome({}, EffectState.VOID, effect.summary)
    if data.expect is None:
        raise _undecided(effect, "something has changed, but the declaration doesn't say what the call makes")
    if not same(makes, data.expect, now):
        raise _undecided(effect, f"neither as before nor as the call makes it: {shown(makes, data.expect, now)}")
    late = _late(data, target)
    return CallOutcome({}, EffectState.APPLIED, effect.summary, pack(replace(data, after=data.expect, late=late)))


def shown(names: Sequence[str], wanted: Image, now: Image) -> str:
    """The objects that differ, bounded."""
    differing = [name for name in names if wanted.get(name) != now.get(name)]
    return "; ".join(differing[:5]) + (f" and {len(differing) - 5} more" if len(differing) > 5 else "")


# --- before ---


def _read_before(
    declared: Sequence[Read], scope: Mapping[str, Any], target: ToolTarget
) -> tuple[list[MadeRead], dict[str, Any], dict[str, str | None]]:
    """The reads that are compared later, all values by name, and the image."""
    reads: list[MadeRead] = []
    values: dict[str, Any] = {}
    image: dict[str, str | None] = {}
    for one in declared:
        if one.compare is Compare.LATE:
            reads.append(fill(one, scope))
            continue
        try:
            read = fill(one, scope)
            value = make(read, target)
            check_allowed(read, value)
        except Unreadable:
            if one.compare is Compare.NEVER:
                continue  # without a value: what uses it is not known then
            raise
        values[one.name] = value
        if one.compare is Compare.ALWAYS:
            reads.append(read)
            image |= image_of(read, value)
    return reads, values, image


def _choose(tool: Tool, values: Mapping[str, Any]) -> Undo:
    def there(name: str) -> bool:
        return values.get(name, MISSING) is not MISSING

    for way in tool.undo:
        if all(map(there, way.exists)) and not any(map(there, way.absent)):
            if way.refuse:
                raise Unreadable(way.refuse)
            return way
    raise Unreadable("none of its declared inverses applies")


def _check_needs(needs: Sequence[Read], scope: Mapping[str, Any], target: ToolTarget) -> None:
    for read in needs:
        made = fill(read, scope)
        if make(made, target) is MISSING:
            raise Unreadable(f"{made.label} isn't there")


def _filled(steps: Sequence[Step], scope: Mapping[str, Any]) -> tuple[MadeStep, ...] | None:
    """The calls, filled in; None while they need the result."""
    if "result" not in scope and any(uses(step.arguments, "result") for step in steps):
        return None
    made = [(step, _made_step(step, scope)) for step in steps]
    return tuple(one for step, one in made if not (step.unless_empty and one.arguments.get(step.unless_empty) == []))


def _check_distinct(values: Any) -> None:
    if isinstance(values, list) and len({canonical(value) for value in values}) < len(values):
        raise Unreadable("it names something twice")


def _made_step(step: Step, scope: Mapping[str, Any]) -> MadeStep:
    arguments = evaluate(step.arguments, scope)
    if not isinstance(arguments, Mapping):
        raise Unresolved(f"the arguments of {step.tool} are no table")
    return MadeStep(step.tool, arguments)


def _expected(tool: Tool, reads: Sequence[MadeRead], scope: Mapping[str, Any]) -> dict[str, str | None] | None:
    """The image that the call should make; None where that isn't known (Unreadable where it can't be one)."""
    if not tool.expect:
        return None
    image: dict[str, str | None] = {}
    try:
        for read in reads:
            if read.read.compare is Compare.ALWAYS:
                image |= image_of(read, evaluate(tool.expect[read.name], scope))
    except Unresolved:
        return None
    return image


# --- after ---


def _seen(prepared: Prepared, result: ToolResult, target: ToolTarget) -> tuple[UndoData, str]:
    """The undo data with what the call left, and a note where that isn't as declared. The call is made and its result
    is the agent's: nothing here may fail. What stays unknown can't be undone, and a rollback says so beforehand.
    """
    data, note = prepared.data, ""
    after: Image | None = None
    scope = {**prepared.scope, "result": ResultView(result)}
    try:
        if data.undo is None:
            data = replace(data, undo=_filled(prepared.way.steps, scope))
        if data.redo is None and prepared.way.redo is not None:
            data = replace(data, redo=_filled(prepared.way.redo, scope))
        made = [fill(read, scope) for read in prepared.tool.after]
        data = replace(data, reads=(*data.reads, *(kept(read) for read in made)))
    except (Unresolved, Unreadable) as error:
        return replace(data, undo=None), f"its undo is not known: {error}"
    try:
        after = take(data.made_reads(Compare.ALWAYS), target, Compare.ALWAYS)
        data = replace(data, late=_late(data, target))
    except (Unreadable, RemoteError) as error:
        note = f"what it left can't be read: {error}"
    if data.expect is not None and not failed(result):
        if after is not None and touched(data.expect, after):
            note = f"it left something else than expected: {shown(touched(data.expect, after), data.expect, after)}"
        after = data.expect
    return replace(data, after=after), note


def _late(data: UndoData, target: ToolTarget) -> dict[str, str | None]:
    try:
        return take(data.made_reads(Compare.LATE), target, Compare.LATE)
    except Unreadable:
        return {}


def _age(effect: Effect) -> float:
    """Seconds since an effect was sent; 0 where the clock was set back since."""
    return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(effect.made_at)).total_seconds())


def _undecided(effect: Effect, why: str, first: str = "") -> CompensationError:
    return CompensationError(
        f"nobody saw how effect {effect.number} of {effect.service} ended ({effect.summary}), and it can't be found "
        f"out: {why}",
        code="effect-undecided",
        state="calls, snapshots and rollbacks with this service wait for that",
        remedy=f"{first}look there, then say it: planarian effects --service {effect.service} --settle {effect.number} "
        "--as void (or applied)",
    )
