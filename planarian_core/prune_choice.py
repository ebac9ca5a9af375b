"""Which statepoints a pruning removes: a pure choice, by the registry's order first and by the clock last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from planarian_core.model import Statepoint, Status

NEWEST = 5
"""Statepoints of a sandbox that stay whatever their age and size, unless somebody says how many."""


@dataclass(frozen=True)
class PrunePolicy:
    """What pruning removes.

    ``keep_last`` of a sandbox's statepoints always stay, the newest in the registry's order, not by the clock. Beyond
    them those older than ``max_age`` (seconds) go, then the oldest until ``max_bytes`` are kept; where neither is
    given, all of them. Never removed are heads, what forks grew from, held ones, those of operations under way, and
    named ones while ``keep_named``. With ``only`` nothing is removed but what of these ids may go.
    """

    keep_last: int | None = None
    keep_named: bool = True
    max_age: float | None = None
    max_bytes: int | None = None
    only: frozenset[str] | None = None

    @property
    def newest(self) -> int:
        return NEWEST if self.keep_last is None else self.keep_last


@dataclass
class Choice:
    """What a policy removes of some statepoints, and the reasons why others stay, counted.

    ``spare``, oldest first, may go as well where ``max_bytes`` asks for it.
    """

    chosen: list[Statepoint]
    spare: list[Statepoint]
    kept: Counter[str]

    def drop_until(self, excess: int) -> None:
        """Choose the oldest of the spare ones until what their captures added comes to ``excess`` bytes."""
        while self.spare and excess > 0:
            self.chosen.append(self.spare.pop(0))
            excess -= added(self.chosen[-1])


def choose(statepoints: Iterable[Statepoint], policy: PrunePolicy, reasons: Mapping[str, str], now: datetime) -> Choice:
    """Apply a policy, ``max_bytes`` apart, to statepoints in the registry's order, of one or more sandboxes."""
    committed = [s for s in statepoints if s.status is Status.COMMITTED]
    following = Counter(s.sandbox_id for s in committed)
    choice = Choice([], [], Counter())
    latest: dict[str, datetime] = {}
    for statepoint in committed:
        following[statepoint.sandbox_id] -= 1
        born = _born(statepoint, latest.get(statepoint.sandbox_id), now)
        latest[statepoint.sandbox_id] = born
        if following[statepoint.sandbox_id] < policy.newest:
            continue
        if policy.only is not None and statepoint.id not in policy.only:
            continue
        old = policy.max_age is not None and (now - born).total_seconds() > policy.max_age
        wanted = old or (policy.max_age is None and policy.max_bytes is None)
        why = reasons.get(statepoint.id) or ("named" if statepoint.name and policy.keep_named else "")
        if why:
            choice.kept[why] += 1
        elif wanted:
            choice.chosen.append(statepoint)
        else:
            choice.spare.append(statepoint)
    return choice


def _born(statepoint: Statepoint, before: datetime | None, now: datetime) -> datetime:
    """When a statepoint was taken, for its age: clocks are set back and forth, and then it counts as younger.

    It is no older than the one before it; one from the future, or whose time can't be read, is of this moment.
    """
    try:
        born = datetime.fromisoformat(statepoint.created_at)
    except ValueError:
        return now
    if born.tzinfo is None:
        born = born.replace(tzinfo=UTC)
    born = min(born, now)
    return max(born, before) if before is not None and before < now else born


def added(statepoint: Statepoint) -> int:
    """Bytes that a statepoint's capture added to the disk."""
    return sum(artefact.stored for artefact in (statepoint.files, statepoint.processes) if artefact)
