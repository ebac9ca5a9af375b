"""Offers the configured remote services of the kinds known here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from planarian_core.effects import EffectLog
from planarian_core.errors import ConfigurationError
from planarian_core.hookspecs import hookimpl
from planarian_core.interfaces import RemoteService, ServiceKind
from planarian_core.logged_service import LoggedService
from planarian_core.model import SandboxRecord
from planarian_remote.configuration import Table

_KINDS = {
    "sql-postgresql": "planarian_remote.postgresql.kind",
    "sql-sqlite": "planarian_remote.sqlite.kind",
    "declared": "planarian_remote.declared.kind",
    "branching-doltlite": "planarian_remote.branching.doltlite",
    "branching-neon": "planarian_remote.branching.neon",
}
"""Modules with ``make(table, sandbox_id) -> ServiceKind``; imported for a service that is configured."""


@hookimpl
def planarian_services(
    sandbox: SandboxRecord, configured: Mapping[str, Mapping[str, Any]], effects: EffectLog
) -> Sequence[RemoteService]:
    return [LoggedService(_make(name, table, sandbox.id), effects) for name, table in configured.items()]


def _make(name: str, raw: Mapping[str, Any], sandbox_id: str) -> ServiceKind:
    table = Table(name, raw)
    kind = table.text("kind")
    dialect = table.text("dialect", "") if kind in ("sql", "branching") else ""
    module = _KINDS.get(f"{kind}-{dialect}" if dialect else kind)
    if module is None:
        raise ConfigurationError(
            f"{table.source}: kind {kind!r}{f' with dialect {dialect!r}' if dialect else ''} is unknown",
            remedy='kind = "sql" with dialect = "postgresql" or "sqlite"; kind = "branching" with dialect = "doltlite" '
            'or "neon"; kind = "declared"',
        )
    made: ServiceKind = import_module(module).make(table, sandbox_id)
    return made
