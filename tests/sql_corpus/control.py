"""Broken undos: the negative control. A run with one of them must find violations, or it proves nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import psycopg

from planarian_core.interfaces import ServiceKind
from planarian_core.model import Effect, EffectState

from .proxied import ProxiedSession

CONTROLS = ("nothing", "third")

_TABLES = """
SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND c.relpersistence <> 't'
  AND n.nspname !~ '^(pg_|planarian$|planarian_aside_|information_schema$)'
"""
_EVERY_THIRD = """
DELETE FROM ONLY {table} WHERE ctid IN (
  SELECT ctid FROM (SELECT ctid, row_number() OVER () AS n FROM ONLY {table} WHERE xmin::text::bigint >= {since}) w
  WHERE n % 3 = 1)
"""


class NothingUndone(ProxiedSession):
    """``nothing``: says that it has undone and done again, and does neither."""

    def undo(self, effect: Effect) -> Effect:
        return replace(effect, state=EffectState.UNDONE)

    def redo(self, effect: Effect) -> Effect:
        return replace(effect, state=EffectState.APPLIED)


class EveryThirdLost(ProxiedSession):
    """``third``: every third row that an undo has written is lost, the first one too."""

    def __init__(self, kind: ServiceKind, superuser: psycopg.Connection[Any]) -> None:
        super().__init__(kind)
        self._superuser = superuser
        superuser.execute("SET session_replication_role = replica")  # no trigger and no foreign key in the way

    def undo(self, effect: Effect) -> Effect:
        row = self._superuser.execute("SELECT txid_current()").fetchone()
        undone = super().undo(effect)
        for (table,) in self._superuser.execute(_TABLES).fetchall():
            assert row is not None
            self._superuser.execute(_EVERY_THIRD.format(table=table, since=row[0]).encode())
        return undone


def session(kind: ServiceKind, control: str | None, superuser: psycopg.Connection[Any]) -> ProxiedSession:
    """The session that is to be looked at: broken in the named way, or not."""
    if control == "nothing":
        return NothingUndone(kind)
    return EveryThirdLost(kind, superuser) if control == "third" else ProxiedSession(kind)
