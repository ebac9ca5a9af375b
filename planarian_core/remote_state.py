"""The remote part of statepoints: which services, what a rollback undoes there, consent, and fences for forks.

The statepoint manager says when; the services themselves, and hooks, do it (paper, sections 4.3 and 6.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planarian_core.errors import CompensationError, ConfigurationError
from planarian_core.interfaces import RemoteService
from planarian_core.logged_service import LoggedService
from planarian_core.model import Domain, Gap, RemoteEffect, RemotePosition, SandboxRecord, Statepoint, Status
from planarian_core.plugin_manager import PluginManager
from planarian_core.registry import Registry


@dataclass(frozen=True)
class CompensationPlan:
    """Which services go back where, what that undoes (newest first for each), and what it can't."""

    moves: tuple[tuple[RemoteService, RemotePosition], ...]
    effects: tuple[RemoteEffect, ...]
    gaps: tuple[Gap, ...]


class RemoteState:
    """The remote services of sandboxes."""

    def __init__(self, registry: Registry, plugins: PluginManager, configured: Mapping[str, Mapping[str, Any]]) -> None:
        self._registry = registry
        self._plugins = plugins
        self._configured = configured

    def services(self, record: SandboxRecord) -> list[RemoteService]:
        """The remote services that a sandbox may use."""
        fenced = self._fenced(record)
        return [service for service in self.offered(record) if service.name not in fenced]

    def offered(self, record: SandboxRecord) -> list[RemoteService]:
        """The configured services, fenced off or not; ConfigurationError when two have one name."""
        groups = self._plugins.hook.planarian_services(
            sandbox=record, configured=self._configured, effects=self._registry.effects
        )
        found = [service for group in groups for service in group]
        names = [service.name for service in found]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigurationError(f"two remote services are named {twice[0]!r}", remedy="rename one of them")
        for name, table in self._configured.items():
            if name not in names:
                raise ConfigurationError(
                    f"[services.{name}]: no plugin offers the kind {table['kind']!r}",
                    remedy='kind = "sql", "branching" or "declared", or install the plugin that offers it',
                )
        return found

    def settle(self, record: SandboxRecord, services: Sequence[RemoteService]) -> None:
        """Find out how calls ended that a killed proxy left behind; before positions are asked for."""
        for service in services:
            service.settle(record.id)

    def _fenced(self, record: SandboxRecord) -> set[str]:
        return {gap.subject for gap in self._registry.fences(record.id)}

    def capture(self, record: SandboxRecord, services: Sequence[RemoteService]) -> tuple[RemotePosition, ...]:
        """The position of each service, now; also of one that isn't configured any more and may be again."""
        positions = [self._position(record, service) for service in services]
        known = {service.name for service in services}
        left = sorted((name, at) for name, at in self._registry.effects.positions(record.id).items())
        positions += [RemotePosition(name, "", str(at)) for name, at in left if name not in known]
        return tuple(positions)

    def _position(self, record: SandboxRecord, service: RemoteService) -> RemotePosition:
        position: RemotePosition = self._plugins.hook.planarian_capture(sandbox=record, service=service)
        return position

    def adopt(self, source: SandboxRecord, fork: Statepoint, point: Statepoint) -> tuple[RemotePosition, ...]:
        """The positions of a sandbox that takes over a fork's state: the fork's version where both have one, else the
        sandbox's own, now. ``fork`` is the fork's captured state, ``point`` where it was forked from.
        """
        theirs = {position.service: position for position in fork.remote}
        before = {position.service: position for position in point.remote}
        positions = []
        for service in self.services(source):
            name = service.name
            if isinstance(service, LoggedService) and service.forkable and name in theirs and name in before:
                positions.append(service.adopt(source.id, fork.sandbox_id, theirs[name], before[name]))
            else:
                positions.append(self._position(source, service))
        return tuple(positions)

    def plan(self, record: SandboxRecord, statepoint: Statepoint) -> CompensationPlan:
        """What going back to a statepoint means; CompensationError when it can't be done. Changes nothing."""
        fenced = self._fenced(record)
        positions = {position.service: position for position in statepoint.remote if position.service not in fenced}
        services = {service.name: service for service in self.services(record)}
        self.settle(record, list(services.values()))
        positions = {name: p for name, p in positions.items() if not self._stays(record, p, services.get(name))}
        gaps = []
        for name in sorted(services.keys() - positions.keys()):
            origin = services[name].origin(record.id)
            if origin is None:
                reason = f"came into use after {statepoint.id}: its effects stay"
                gaps.append(Gap(Domain.REMOTE, name, reason))
            else:
                positions[name] = origin
        moves: list[tuple[RemoteService, RemotePosition]] = []
        effects: list[RemoteEffect] = []
        for name, position in positions.items():
            if name not in services:
                raise CompensationError(
                    f"{statepoint.id} holds a position of the remote service {name!r}, which isn't configured now",
                    code="service-missing",
                    state="nothing was changed",
                    remedy="configure the service again",
                )
            moves.append((services[name], position))
            effects += services[name].plan(position, record.id)
        return CompensationPlan(tuple(moves), tuple(effects), tuple(gaps))

    def _stays(self, record: SandboxRecord, position: RemotePosition, service: RemoteService | None) -> bool:
        """Whether a position taken while its service was not configured asks for nothing: the service still isn't, and
        nothing was done since; or it has versions, and that position holds none.
        """
        if position.endpoint or position.details:  # it was configured then
            return False
        if service is None:
            return position.position == str(self._registry.effects.position(record.id, position.service))
        return service.forkable and isinstance(service, LoggedService)

    def rehearse(self, record: SandboxRecord, plan: CompensationPlan) -> None:
        """See that the services can go there, before anything is touched (guarantee 3); CompensationError if not."""
        for service, position in plan.moves:
            service.rehearse(position, record.id)

    def consent(self, record: SandboxRecord, plan: CompensationPlan, *, given: bool) -> list[Gap]:
        """The pivots that a rollback passes, as gaps; CompensationError unless somebody agreed to them."""
        pivots = [effect for effect in plan.effects if effect.pivot and not effect.redo]
        if pivots and not given and not self._plugins.hook.planarian_approve(sandbox=record, effects=pivots):
            names = "; ".join(f"{e.service}: {e.summary}" for e in pivots[:5])
            raise CompensationError(
                f"the rollback passes effects that can't be undone: {names}",
                code="pivot-needs-consent",
                state="nothing was changed",
                remedy="agree with --accept-pivots, or choose a later statepoint",
            )
        return [
            Gap(
                Domain.REMOTE, f"{e.service}: {e.summary}", f"{e.reason or 'declared irreversible'}; it stays in effect"
            )
            for e in pivots
        ]

    def compensate(self, record: SandboxRecord, plan: CompensationPlan, undone: list[RemoteEffect]) -> None:
        """Undo, service by service; ``undone`` grows as it goes, so that a failure leaves what was done known."""
        for service, position in plan.moves:
            effects = self._plugins.hook.planarian_compensate(position=position, sandbox=record, service=service)
            undone += effects or ()

    def reclaim(self, record: SandboxRecord) -> list[Gap]:
        """Drop undo data that no committed statepoint needs; returns the services that could not be reached. The
        caller excludes others from the sandbox.
        """
        committed = [s for s in self._registry.statepoints(record.id) if s.status is Status.COMMITTED]
        unreachable = []
        for service in self.services(record):
            if not isinstance(service, LoggedService):
                continue
            positions = [{p.service: p for p in s.remote}.get(service.name) for s in committed]
            try:
                service.reclaim(record.id, positions)
            except CompensationError as error:
                unreachable.append(Gap(Domain.REMOTE, service.name, error.message))
        return unreachable

    def forget(self, record: SandboxRecord) -> None:
        """A sandbox is removed: the services drop what they keep for it."""
        for service in self.offered(record):
            service.forget(record.id)

    def fence(self, source: SandboxRecord, fork: SandboxRecord, statepoint: Statepoint) -> list[Gap]:
        """Keep a fork away from services that can't branch (guarantee 5)."""
        positions = {position.service: position for position in statepoint.remote}
        gaps = list(self._registry.fences(source.id))
        offered = {service.name for service in self.offered(source)}
        gaps += [
            Gap(Domain.REMOTE, name, "it isn't configured now: this fork may not call it when it is again")
            for name in sorted(positions.keys() - offered - {gap.subject for gap in gaps})
        ]
        for service in self.services(source):
            position = positions.get(service.name)
            if position is None:
                gap: Gap | None = Gap(Domain.REMOTE, service.name, "not part of the statepoint")
            else:
                gap = service.fence(fork.id, source.id, position)
            if gap is not None:
                gaps.append(gap)
        for gap in gaps:
            self._registry.fence(fork.id, gap)
        return gaps
