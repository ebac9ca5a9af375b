"""A remote service with an undo log: what is the same for every :class:`ServiceKind` (paper, sections 6.1 and 6.2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain

from planarian_core.effects import EffectLog
from planarian_core.errors import CompensationError, RemoteError
from planarian_core.faults import reach
from planarian_core.interfaces import RecognizesEffects, ServiceKind, ToolTarget, VersionsItself
from planarian_core.model import CallClass, Domain, Effect, EffectState, Gap, RemoteEffect, RemotePosition

MARKED = "server-"
"""How a mark begins that a user may give a server (``identity``)."""
_VERSION, _SANDBOX, _FORK = "version", "sandbox", "fork"


class LoggedService:
    """Positions of one configured service, by the undo log (:class:`EffectLog`) and what its kind can do."""

    def __init__(self, kind: ServiceKind, log: EffectLog) -> None:
        self.kind = kind
        self.log = log
        self.name = kind.name
        self.endpoint = kind.endpoint
        self.forkable = isinstance(kind, VersionsItself)

    # --- which server it is ---

    @property
    def mark(self) -> str:
        """What is kept with an effect about its server."""
        return self.kind.mark if isinstance(self.kind, RecognizesEffects) else ""

    def recognize(self, sandbox_id: str, target: ToolTarget | None) -> None:
        """See that the configuration names the server on which the sandbox's effects were made.

        Raises:
            CompensationError: ``service-changed``: another one. Or it can't be found out.
        """
        if not isinstance(self.kind, RecognizesEffects):
            return
        effect = self.log.newest(sandbox_id, self.name)
        if effect is None or self.kind.recognizes(effect, target):
            return
        made_on = f" on {effect.server}" if effect.server not in ("", self.mark) else ""
        raise CompensationError(
            f"{self.name} ({self.mark or self.endpoint}) isn't where {sandbox_id} made its effect {effect.number}"
            f"{made_on} ({effect.summary}): it is another server, or an older copy",
            code="service-changed",
            state="nothing was called or changed",
            remedy=f"let [services.{self.name}] of planarian.toml name the former one again, and give the new one "
            f"another name{self._renamed(effect)}",
        )

    def _renamed(self, effect: Effect) -> str:
        by_name = effect.server.startswith(MARKED)
        return f'; if it is the same one at another place, say identity = "{effect.server}" there' if by_name else ""

    # --- positions ---

    def settle(self, sandbox_id: str, target: ToolTarget | None = None) -> None:
        """As :meth:`RemoteService.settle`; through the caller's connection where it has one."""
        unsettled = self._unsettled(sandbox_id)
        first = next(unsettled, None)
        if first is None:
            return
        if self.forkable:  # connecting to the wrong one would make a branch there
            self.recognize(sandbox_id, None)
        with self._connected(target) as connection:
            self.recognize(sandbox_id, connection)
            for effect in chain([first], unsettled):
                outcome = self.kind.settle(effect, connection)
                self.log.update(
                    effect, outcome.state, summary=outcome.summary, details=outcome.details, pivot=outcome.pivot
                )

    def _unsettled(self, sandbox_id: str) -> Iterator[Effect]:
        """The effects of which nobody knows how they ended, oldest first; then those whose entries were lost, each
        entered once the one before is settled.
        """
        yield from self.log.unsettled(sandbox_id, self.name)
        while (lost := self.log.reclaim(sandbox_id, self.name, self.mark)) is not None:
            yield lost

    def capture(self, sandbox_id: str) -> RemotePosition:
        position = str(self.log.position(sandbox_id, self.name))
        details = {}
        if isinstance(self.kind, VersionsItself):
            self.recognize(sandbox_id, None)
            details = {_VERSION: self.kind.versions.commit(sandbox_id), _SANDBOX: sandbox_id}
        return RemotePosition(self.name, self.endpoint, position, details=details)

    def origin(self, sandbox_id: str) -> RemotePosition | None:
        return None if isinstance(self.kind, VersionsItself) else RemotePosition(self.name, self.endpoint, "0")

    def plan(self, position: RemotePosition, sandbox_id: str) -> tuple[RemoteEffect, ...]:
        undo, redo = self._way(position, sandbox_id)
        return tuple(shown(effect) for effect in undo) + tuple(shown(effect, redo=True) for effect in redo)

    def rehearse(self, position: RemotePosition, sandbox_id: str) -> None:
        if isinstance(self.kind, VersionsItself):
            self.recognize(sandbox_id, None)
            self.kind.versions.check(sandbox_id, _version(position))
            return
        undo, redo = (_without_pivots(effects) for effects in self._way(position, sandbox_id))
        if undo or redo:
            with self._connected() as target:
                self.recognize(sandbox_id, target)
                self.kind.rehearse(undo, redo, target)

    def compensate(self, position: RemotePosition, sandbox_id: str) -> tuple[RemoteEffect, ...]:
        undo, redo = self._way(position, sandbox_id)
        done: list[RemoteEffect] = []

        def moved(effect: Effect, state: EffectState) -> None:
            # What a power cut takes back is found to be done by the next attempt; the journal's entry makes it durable.
            self.log.update(effect, state, durable=state is effect.state)
            if state is effect.state:
                return
            done.append(shown(effect, redo=state is EffectState.APPLIED))
            reach("compensate.between")

        reach("compensate.begun")
        if isinstance(self.kind, VersionsItself):
            self.recognize(sandbox_id, None)
            self.kind.versions.reset(sandbox_id, _version(position))
            for effect in (*_without_pivots(undo), *_without_pivots(redo)):
                moved(effect, EffectState.UNDONE if effect in undo else EffectState.APPLIED)
        elif _without_pivots(undo) or _without_pivots(redo):
            with self._connected() as target:
                self.recognize(sandbox_id, target)
                self.kind.move(_without_pivots(undo), _without_pivots(redo), target, moved)
        for effect in undo:
            if effect.call_class is CallClass.PIVOT:
                self.log.update(effect, EffectState.KEPT)
        for effect in redo:
            if effect.call_class is CallClass.PIVOT:
                self.log.update(effect, EffectState.APPLIED)
        reach("compensate.done")
        return tuple(done)

    def _way(self, position: RemotePosition, sandbox_id: str) -> tuple[list[Effect], list[Effect]]:
        if not position.position.isdecimal():
            raise CompensationError(f"{position.position!r} is no position of {self.name}", code="undo-data-missing")
        of = position.details.get(_SANDBOX, sandbox_id)
        # A statepoint of the sandbox that this one was forked from lies before all that this one did.
        return self.log.way(sandbox_id, self.name, int(position.position) if of == sandbox_id else 0)

    @contextmanager
    def _connected(self, target: ToolTarget | None = None) -> Iterator[ToolTarget]:
        if target is not None:
            yield target
            return
        try:
            own = self.kind.connect()
        except RemoteError as error:
            raise CompensationError(
                f"the remote service {self.name} can't be reached: {error.message}",
                code="service-unreachable",
                state=error.state,
                remedy=error.remedy or "see that its server runs, then try again",
            ) from error
        try:
            yield own
        finally:
            own.close()

    # --- forks, the end ---

    def fence(self, sandbox_id: str, source_id: str, position: RemotePosition) -> Gap | None:
        if isinstance(self.kind, VersionsItself):
            self.kind.versions.branch(sandbox_id, source_id, _version(position))
            return None
        return Gap(Domain.REMOTE, self.name, "the service can't branch: this fork may not call it")

    def adopt(self, source_id: str, fork_id: str, theirs: RemotePosition, point: RemotePosition) -> RemotePosition:
        """The position of a sandbox that takes over what its fork is at: the fork's version; of the effects in its own
        log those before the fork point, and the fork's pivots, which stay in effect however far it goes back later.
        """
        own = int(point.position) if point.details.get(_SANDBOX) == source_id else 0
        there = int(theirs.position) if theirs.details.get(_SANDBOX) == fork_id else 0
        if isinstance(self.kind, VersionsItself):
            self.kind.versions.take_over(source_id, _version(theirs))
        at = self.log.carry(fork_id, there, self.name, source_id, own)
        details = {**theirs.details, _SANDBOX: source_id, _FORK: fork_id}
        return RemotePosition(self.name, self.endpoint, str(at), details=details)

    def reclaim(self, sandbox_id: str, kept: Iterable[RemotePosition | None]) -> None:
        """Drop the undo data that no statepoint needs any more. ``kept``: the positions of those that stay, None for
        one from before the service was configured.

        Raises:
            CompensationError: the service can't be reached; nothing was dropped.
        """
        kept = list(kept)
        if isinstance(self.kind, VersionsItself):
            self.recognize(sandbox_id, None)
            self.kind.versions.keep(sandbox_id, [_version(position) for position in kept if position])
            return
        positions = {int(position.position) if position else 0 for position in kept}
        effects = self.log.dispensable(sandbox_id, self.name, positions)
        undoable = _without_pivots(effects)
        if undoable:
            with self._connected() as target:
                self.recognize(sandbox_id, target)
                self.kind.forget(undoable, target)
            self.log.forgot(undoable)

    def forget(self, sandbox_id: str) -> None:
        effects = _without_pivots(self.log.entries(sandbox_id, self.name))
        with suppress(CompensationError, RemoteError):  # a server that is gone must not keep a sandbox from going
            if isinstance(self.kind, VersionsItself):
                self.recognize(sandbox_id, None)
                self.kind.versions.drop(sandbox_id)
            elif effects:
                with self._connected() as target:
                    self.recognize(sandbox_id, target)
                    self.kind.forget(effects, target)
        self.log.forget(sandbox_id, self.name)


def adopted(position: RemotePosition) -> bool:
    """Whether a position is one that a sandbox took over from its fork."""
    return _FORK in position.details


def shown(effect: Effect, *, redo: bool = False) -> RemoteEffect:
    """An effect as a rollback's report and a plan have it."""
    return RemoteEffect(
        effect.service,
        str(effect.number),
        effect.summary,
        pivot=effect.call_class is CallClass.PIVOT,
        redo=redo,
        reason=effect.reason,
    )


def _without_pivots(effects: Sequence[Effect]) -> list[Effect]:
    return [effect for effect in effects if effect.call_class is not CallClass.PIVOT]


def _version(position: RemotePosition) -> str:
    version = position.details.get(_VERSION)
    if not isinstance(version, str):
        raise CompensationError(
            f"the statepoint holds no version of the service {position.service}",
            code="undo-data-missing",
            state="nothing was changed",
            remedy="choose another statepoint",
        )
    return version
