"""Remote services from the caller's side: their calls, the undo log, consent to pivots.

Methods of :class:`planarian_core.runtime.Planarian`, which takes them up under their names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from planarian_core.errors import ConfigurationError, LineageError
from planarian_core.logged_service import LoggedService
from planarian_core.model import Approval, Effect, EffectState
from planarian_core.remote_session import Ask, RemoteSession
from planarian_core.sandbox import Sandbox

if TYPE_CHECKING:
    from planarian_core.runtime import Planarian


def remote_session(
    self: Planarian, sandbox: Sandbox, service: str, *, approve_all: bool = False, ask: Ask | None = None
) -> RemoteSession:
    """Calls of a configured remote service on behalf of a sandbox; what ``planarian proxy`` is made of.

    Args:
        service: a name from ``[services.NAME]`` of the home's configuration.
        approve_all: let every pivot run, but ask about one that repeats what a rollback left in effect.
        ask: asks whoever sits at the harness about a pivot.

    Raises:
        ConfigurationError: there is no such service.
        CompensationError: ``service-changed``, where the service has versions.
    """
    offered = self.statepoints.remote.offered(sandbox.record)
    for found in offered:
        if found.name == service and isinstance(found, LoggedService):
            return RemoteSession(
                self.registry, self.plugins, self.sandboxes, sandbox.record, found, approve_all=approve_all, ask=ask
            )
    known = ", ".join(s.name for s in offered) or "none yet"
    raise ConfigurationError(
        f"no remote service {service!r} is configured",
        code="service-unknown",
        remedy=f"add [services.{service}] to {self.home / 'planarian.toml'}; configured: {known}",
    )


def effects(self: Planarian, sandbox: Sandbox, service: str = "") -> list[Effect]:
    """The undo log of a sandbox: its remote effects in the order in which they were made, undone ones too."""
    return sorted(self.registry.effects.entries(sandbox.id, service), key=lambda effect: effect.made_at)


def settle_effect(self: Planarian, sandbox: Sandbox, service: str, number: int, state: str) -> Effect:
    """Say what became of an effect that is ``sent``, where the service can't tell.

    Args:
        state: ``applied`` or ``void``.

    Raises:
        LineageError: ``effect-unknown``: there is none of that number, or its end is known.
    """
    with self.sandboxes.hold(sandbox.id, exclusive=True):
        for effect in self.registry.effects.unsettled(sandbox.id, service):
            if effect.number == number:
                return self.registry.effects.update(effect, EffectState(state))
    raise LineageError(
        f"effect {number} of {service} isn't one whose end is unknown",
        code="effect-unknown",
        state="nothing was changed",
        remedy=f"planarian effects --sandbox {sandbox.id}",
    )


def approvals(self: Planarian) -> list[Approval]:
    """The pivots that wait for a user's consent, and those that have it and were not made yet."""
    return list(self.registry.approvals.all().values())


def approve(self: Planarian, approval_id: str, *, granted: bool = True) -> Approval:
    """Allow a pivot that was refused for want of consent, once; or forget the request.

    Raises:
        LineageError: ``approval-unknown``.
    """
    found = self.registry.approvals.get(approval_id)
    if found is None:
        raise LineageError(
            f"no call waits as {approval_id}", code="approval-unknown", remedy="planarian approve --list"
        )
    changed = replace(found, granted=granted)
    if granted:
        self.registry.approvals.put(approval_id, changed)
    else:
        self.registry.approvals.remove(approval_id)
    return changed
