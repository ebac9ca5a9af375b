"""``planarian proxy check``: whether calls of a service are undone, tried on a scratch server."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from planarian_core import Planarian
from planarian_core.errors import ConfigurationError
from planarian_core.interfaces import RemoteService
from planarian_core.model import SandboxRecord, SandboxSpec


class Report(Protocol):
    """What a trial found."""

    @property
    def ok(self) -> bool: ...

    def to_dict(self) -> dict[str, Any]: ...

    def to_text(self) -> str: ...


@runtime_checkable
class Drills(Protocol):
    """A service kind that can try its inverses."""

    def drill(self) -> Report:
        """Call and undo on a scratch server, never on the real one."""


def check(planarian: Planarian, service: str) -> Report:
    """The trial of a service's calls; needs no sandbox.

    Raises:
        ConfigurationError: there is no such service, or its kind has nothing to try.
    """
    record = SandboxRecord(SandboxSpec("sb-check", "", "", "", ""), "", "", "", "")
    kind = getattr(_service(planarian, record, service), "kind", None)
    if not isinstance(kind, Drills):
        raise ConfigurationError(
            f"{service} has nothing to check: its kind derives the inverses and tries each before it is kept",
            remedy='services of kind "declared" can be checked',
        )
    return kind.drill()


def _service(planarian: Planarian, record: SandboxRecord, name: str) -> RemoteService:
    offered = {service.name: service for service in planarian.statepoints.remote.offered(record)}
    if name not in offered:
        raise ConfigurationError(
            f"no remote service {name!r} is configured",
            code="service-unknown",
            remedy=f"configured: {', '.join(offered) or 'none yet'}",
        )
    return offered[name]
