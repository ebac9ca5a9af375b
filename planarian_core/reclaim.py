"""Holds and pruning: which statepoints stay, and giving up the others without losing what anybody needs.

A pruned statepoint keeps its record, evidence and outcomes; what it held is gone, once nobody else shares it. The
order is safe against a crash: first the registry says that it can't be restored, then its artefacts go, then what no
artefact needs is collected; the journal entry ends last, and :meth:`Reclaimer.finish` goes on where a killed runtime
stopped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from planarian_core import quota
from planarian_core.errors import LineageError, PlanarianError, SandboxError
from planarian_core.faults import reach
from planarian_core.interfaces import Collects, SharesPages
from planarian_core.model import Artefact, Domain, Hold, SandboxRecord, Statepoint, Status, new_id, utc_now
from planarian_core.prune_choice import Choice, PrunePolicy, added, choose
from planarian_core.registry import Operation, Registry
from planarian_core.statepoint_manager import StatepointManager

HOME = "home"
"""In place of a sandbox's id: prunings go one after the other, under a lock of the home's own."""


@dataclass(frozen=True)
class Pruned:
    """What a pruning did, or would do (``dry_run``).

    ``freed`` are bytes really freed, as far as backends can tell; of a dry run what the captures had added, of which
    others may share some. ``left`` is what the statepoints asked about still take. ``kept`` counts, by reason, those
    that stay though they aren't among the newest; ``busy`` sandboxes were passed over.
    """

    statepoints: tuple[str, ...] = ()
    freed: int = 0
    left: int = 0
    kept: Mapping[str, int] = field(default_factory=dict)
    busy: tuple[str, ...] = ()
    dry_run: bool = False


# --- holds ---


def hold(registry: Registry, statepoint: Statepoint, note: str = "") -> Hold:
    """Keep a statepoint from every pruning until it is released; a second hold replaces the note.

    Raises:
        LineageError: it was pruned just now.
    """
    held = Hold(statepoint.id, note, utc_now())
    with registry.transaction() as connection:
        if registry.statepoint(statepoint.id).status is not Status.COMMITTED:
            raise LineageError(
                f"{statepoint.id} was pruned meanwhile", code="statepoint-not-committed", remedy="planarian log"
            )
        registry.holds.put(statepoint.id, held, connection)
    return held


def protected(registry: Registry) -> dict[str, str]:
    """Why statepoints can't be pruned now, by id; names apart, which a policy may give up."""
    reasons = {standby.statepoint_id: "a warm copy" for standby in registry.standbys.all().values()}
    for operation in registry.operations():
        for needed in (operation.statepoint_id, operation.safety_id):
            reasons[needed or ""] = "an operation under way"
    for branch in registry.branches():
        reasons[branch.forked_from or ""] = "a fork grew from it"
        reasons[branch.head or ""] = "a head"
    reasons |= dict.fromkeys(registry.holds.all(), "held")
    reasons.pop("", None)
    return reasons


# --- pruning ---


class Reclaimer:
    """Prunes the statepoints of one home."""

    def __init__(self, statepoints: StatepointManager) -> None:
        self._statepoints = statepoints
        self._registry = statepoints.registry
        self._sandboxes = statepoints.sandboxes
        self._plugins = statepoints.plugins

    def prune(
        self,
        records: Sequence[SandboxRecord],
        policy: PrunePolicy,
        *,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> Pruned:
        """Give up the statepoints of these sandboxes that ``policy`` doesn't keep.

        Args:
            timeout: seconds to wait for another pruning of this home.

        Raises:
            PlanarianError: ``prune-not-freed`` and ``prune-unfinished`` say what was given up all the same.
        """
        if dry_run:
            choice, left = self._choose(records, policy), self._stored(records)
            size = sum(map(added, choice.chosen))
            ids = tuple(s.id for s in choice.chosen)
            return Pruned(ids, size, left - size, dict(choice.kept), dry_run=True)
        try:
            alone = self._sandboxes.lock(HOME).acquire(exclusive=True, timeout=timeout)
        except SandboxError as error:
            raise SandboxError(
                "another pruning is under way",
                code="prune-busy",
                state="nothing was changed",
                remedy="wait for its end",
            ) from error
        with alone:
            return self._prune(records, policy)

    def _stored(self, records: Sequence[SandboxRecord]) -> int:
        return sum(quota.stored(self._registry, record.id) for record in records)

    def _choose(self, records: Sequence[SandboxRecord], policy: PrunePolicy) -> Choice:
        ids = {record.id for record in records}
        if len(ids) == 1:
            own = self._registry.statepoints(*ids)
        else:
            own = [s for s in self._registry.statepoints() if s.sandbox_id in ids]
        choice = choose(own, policy, self._reasons(), datetime.now(UTC))
        if policy.max_bytes is not None:
            choice.drop_until(self._stored(records) - policy.max_bytes - sum(map(added, choice.chosen)))
        return choice

    def _reasons(self) -> dict[str, str]:
        """As :func:`protected`, without the copies that are this runtime's own: they go with their statepoint."""
        own = {copy.statepoint_id for copy in self._statepoints.standbys.copies()}
        return {i: why for i, why in protected(self._registry).items() if why != "a warm copy" or i not in own}

    def _prune(self, records: Sequence[SandboxRecord], policy: PrunePolicy) -> Pruned:
        """Rounds: where captures share what they added, giving one up frees less than it had added."""
        result = Pruned()
        busy: set[str] = set()
        while True:
            choice = self._choose([r for r in records if r.id not in busy], policy)
            result = replace(result, kept=dict(choice.kept))
            given_up, freed = self._give_up(choice.chosen, busy)
            result = replace(
                result, statepoints=(*result.statepoints, *given_up), freed=result.freed + freed, busy=tuple(busy)
            )
            if not given_up or policy.max_bytes is None:
                return replace(result, left=self._stored(records))

    def _give_up(self, chosen: Sequence[Statepoint], busy: set[str]) -> tuple[list[str], int]:
        """Prune what is chosen and can be had now; the ids, and the bytes freed."""
        operations = []
        for sandbox_id in dict.fromkeys(s.sandbox_id for s in chosen):
            try:
                held = self._sandboxes.lock(sandbox_id).acquire(exclusive=True, timeout=0)
            except SandboxError:
                busy.add(sandbox_id)
                continue
            with held:
                operation = self._mark([s for s in chosen if s.sandbox_id == sandbox_id])
            if operation is not None:
                operations.append(operation)
        ids = [i for operation in operations for i in operation.details["statepoints"]]
        return ids, self._reclaim(operations, resumed=False) if operations else 0

    def _mark(self, chosen: Sequence[Statepoint]) -> Operation | None:
        """The commit point: from here they can't be restored. None where all of them came to be needed meanwhile."""
        for statepoint in chosen:
            for copy in self._statepoints.standbys.copies(statepoint.id):
                self._statepoints.standbys.spare(copy)
        return self._registry.prune(chosen, Operation(new_id("op"), "prune", HOME), lambda: protected(self._registry))

    def finish(self, operation: Operation) -> str:
        """Go on with a pruning that was cut off. The caller holds the lock of :data:`HOME`. Idempotent."""
        self._reclaim([operation], resumed=True)
        return f"{len(operation.details['statepoints'])} statepoints are pruned, and what they alone needed is gone"

    def _reclaim(self, operations: Sequence[Operation], *, resumed: bool) -> int:
        """Remove what marked statepoints alone needed, and end the operations; returns the bytes freed."""
        marked = {s.id: s for o in operations for i in o.details["statepoints"] if (s := self._registry.find(i))}
        try:
            reach("prune.marked")
            shared: Counter[str] = Counter()
            for statepoint in marked.values():
                record = self._registry.sandbox(statepoint.sandbox_id)
                shared.update(self._statepoints.drop_artefacts(record, statepoint))
            reach("prune.dropped")
            collected, failure = self._collect(marked.values())
            reach("prune.collected")
        except (OSError, PlanarianError) as error:
            cause = error.message if isinstance(error, PlanarianError) else error
            raise PlanarianError(
                f"the pruning was cut short: {cause}",
                code="prune-unfinished",
                state=f"{len(marked)} statepoints are pruned; not all of their space is free yet",
                remedy="planarian recover",
            ) from error
        account = _Account(self._registry, marked)
        freed = account.dropped(self._collecting)
        for domain, sizes in ((Domain.FILES, collected), (Domain.PROCESSES, shared)):
            for backend, size in sizes.items():
                account.collected(domain, backend, account.share(domain, backend) if resumed else size)
        self._registry.settle(list(account.records.values()), operations)
        if failure is not None:
            raise failure
        return freed + sum(collected.values()) + shared.total()

    def _collecting(self, artefact: Artefact) -> bool:
        """Whether what it takes is told when it goes, and not by what it once added."""
        if artefact.domain is Domain.FILES:
            return isinstance(self._plugins.filesystem(artefact.backend), Collects)
        return isinstance(self._plugins.process(artefact.backend), SharesPages)

    def _collect(self, marked: Iterable[Statepoint]) -> tuple[dict[str, int], PlanarianError | None]:
        """Bytes freed by backend; what went wrong doesn't undo the pruning, and the next one collects again."""
        freed: dict[str, int] = {}
        failure: PlanarianError | None = None
        for name in sorted({s.files.backend for s in marked if s.files}):
            backend = self._plugins.filesystem(name)
            if not isinstance(backend, Collects):
                continue
            freed[name] = 0
            try:
                freed[name] = backend.collect()
            except PlanarianError as error:
                failure = PlanarianError(
                    f"the space of pruned statepoints can't be freed: {error.message}",
                    code="prune-not-freed",
                    state=f"the statepoints are pruned; {error.state or 'nothing was freed'}",
                    remedy=error.remedy or "mend the cause, then prune again",
                )
                failure.__cause__ = error
        return freed, failure


class _Account:
    """What pruned statepoints still take: an artefact that others share stays accounted for to the one that added it.

    ``records`` are the pruned ones as they are to be recorded. In them ``stored`` is what is left behind, so that the
    sum over all statepoints stays what the disk holds.
    """

    def __init__(self, registry: Registry, marked: Mapping[str, Statepoint]) -> None:
        self._registry = registry
        self._marked = marked
        self.records = {i: replace(s, files=_bare(s.files), processes=_bare(s.processes)) for i, s in marked.items()}

    def dropped(self, collecting: Callable[[Artefact], bool]) -> int:
        """Take out what went when it was dropped; returns its bytes."""
        freed = 0
        for statepoint in self._marked.values():
            for artefact in (statepoint.files, statepoint.processes):
                if artefact is None or collecting(artefact):
                    continue
                owner = statepoint.owner(artefact)
                if not self._registry.sharers(artefact.domain, owner):
                    freed += self._clear(owner, artefact.domain)
        return freed

    def _clear(self, owner: str, domain: Domain) -> int:
        """Take out what nobody needs any more; returns its bytes."""
        freed = 0
        for found in self._accounted(owner, domain):
            artefact = getattr(found, domain.value)
            if artefact is None or found.status is not Status.PRUNED:
                continue
            self.records[found.id] = replace(found, **{domain.value: replace(artefact, stored=0)})
            freed += int(artefact.stored)
        return freed

    def _accounted(self, owner: str, domain: Domain) -> list[Statepoint]:
        """To whom it may be accounted: its owner; where that went with its sandbox, one of those that shared it."""
        found = self.records.get(owner) or self._registry.find(owner)
        if found is not None:
            return [found]
        known = {s.id: s for s in self._registry.statepoints()} | self.records
        return [s for s in known.values() if (a := getattr(s, domain.value)) is not None and a.owner == owner]

    def share(self, domain: Domain, backend: str) -> int:
        """Bytes that those that are being pruned had added in a backend that tells what goes."""
        parts = (getattr(s, domain.value) for s in self._marked.values())
        return sum(part.stored for part in parts if part is not None and part.backend == backend)

    def collected(self, domain: Domain, backend: str, freed: int) -> None:
        """Take out ``freed`` bytes that were collected in a backend, of earlier pruned ones first the oldest's."""
        pruned = [s for s in self._registry.statepoints() if s.status is Status.PRUNED and s.id not in self._marked]
        for statepoint in (*pruned, *self._marked.values()):
            found = self.records.get(statepoint.id, statepoint)
            part = getattr(found, domain.value)
            if part is None or part.backend != backend or not part.stored:
                continue
            taken = min(freed, part.stored)
            freed -= taken
            self.records[found.id] = replace(found, **{domain.value: replace(part, stored=part.stored - taken)})


def _bare(artefact: Artefact | None) -> Artefact | None:
    return replace(artefact, logical=0, details={}) if artefact else None
