"""Offers the configured remote services of the kinds known here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from planarian_core.effects import EffectLog
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
    own = {kind.partition("-")[0] for kind in _KINDS}
    tables = [Table(name, raw) for name, raw in configured.items() if raw["kind"] in own]
    return [LoggedService(_make(table, sandbox.id), effects) for table in tables]


def _make(table: Table, sandbox_id: str) -> ServiceKind:
    kind = table.text("kind")
    dialects = [name.partition("-")[2] for name in _KINDS if name.startswith(f"{kind}-")]
    if dialects:
        kind = f"{kind}-{table.choice('dialect', dialects, '')}"
    module = _KINDS[kind]
    made: ServiceKind = import_module(module).make(table, sandbox_id)
    return made
