"""The undo log: what sandboxes changed on remote services, as the home knows it (paper, section 6.1).

Effects of one sandbox on one service form a tree (:class:`Effect`): a new one's parent is the newest that is in force.
A *position* is the number of an effect, and means that this one, its parent, that one's parent and so on are in force,
and no others. Going to a position is therefore: undo what is in force and not part of it, do again what is part of it
and not in force. That a rollback can itself be rolled back follows.

For services that keep undo data where the effect is (``sql``), the truth is there; this log is written before a call
is sent and after it ended, and :meth:`ServiceKind.settle` brings the two together after a crash.

An entry is durable before its call is sent; for such services, that its number may be in use is
(:class:`planarian_core.effect_reservations.EffectReservations`).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from planarian_core.codec import decode
from planarian_core.database import Database, to_json
from planarian_core.effect_reservations import EffectReservations
from planarian_core.errors import CompensationError
from planarian_core.model import CallClass, Effect, EffectState, RemoteCall, Verdict, utc_now

_LOST = "(a call whose entry was lost when the host went down)"
_CARRIED = "carried"
"""In the details of a fork's effect that is in its source's log too: the fork, and the number there."""


class EffectLog:
    """The undo log of one home. Each change is atomic and, unless said otherwise, durable."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.reservations = EffectReservations(database)

    # --- writing ---

    def begin(
        self,
        sandbox_id: str,
        service: str,
        call: RemoteCall,
        verdict: Verdict,
        summary: str,
        details: Mapping[str, Any] | None = None,
        server: str = "",
        ahead: bool = False,
    ) -> Effect:
        """Enter a call that is about to be sent, as ``SENT``, under the next number, with what undoing it takes.

        ``ahead``: the service can say by the number alone what became of it, so a reservation is enough.
        """
        for durable in (False, True) if ahead else (True,):
            with self._database.transaction(durable=durable) as connection:
                last, parent = _newest(connection, sandbox_id, service)
                if ahead and not self.reservations.covers(connection, sandbox_id, service, last + 1):
                    if not durable:
                        continue
                    self.reservations.extend(connection, sandbox_id, service, last + 1)
                effect = Effect(
                    sandbox_id, service, last + 1, parent, call.tool, call.digest, verdict.call_class,
                    EffectState.SENT, verdict.reason, summary, utc_now(), details or {}, server=server,
                )  # fmt: skip
                _insert(connection, effect)
                break
        return effect

    def reclaim(self, sandbox_id: str, service: str, server: str = "") -> Effect | None:
        """Enter the next call, as ``SENT``, that may have been made before the host was started anew, under a number
        that was reserved; None where there is no such number, and the reservation is gone then.

        The entry before is settled first: which effects are in force decides the parent.
        """
        through = self.reservations.of_former_boot(sandbox_id, service)
        if through is None:
            return None
        with self._database.transaction() as connection:
            last, parent = _newest(connection, sandbox_id, service)
            if last >= through:
                self.reservations.settled(connection, sandbox_id, service)
                return None
            effect = Effect(
                sandbox_id, service, last + 1, parent, "", "", CallClass.COMPENSABLE, EffectState.SENT, "", _LOST,
                utc_now(), server=server,
            )  # fmt: skip
            _insert(connection, effect)
        return effect

    def carry(self, fork_id: str, position: int, service: str, source_id: str, parent: int) -> int:
        """Enter the pivots that a fork made, as its log has them at ``position``, into the log of its source, after
        ``parent``: they are in effect, whoever made them. Returns the position that has them; idempotent.

        They come as ``KEPT``, and are the source's own once it goes to that position.
        """
        chain = _chain(self._tree(fork_id, service), position)
        made = [
            effect
            for effect in self.entries(
                fork_id, service, states=[EffectState.APPLIED, EffectState.UNDONE, EffectState.KEPT]
            )
            if effect.call_class is CallClass.PIVOT and (effect.number in chain or effect.state is EffectState.KEPT)
        ]
        before = {effect.number: effect for effect in self.entries(source_id, service)}
        number = max(before, default=0)
        carried = []
        for effect in made:
            origin = [fork_id, effect.number]
            known = [e for e in before.values() if e.details.get(_CARRIED) == origin]
            found = next((e for e in known if e.parent == parent or effect.number not in chain), None)
            if found is None:
                number += 1
                summary = f"{effect.summary} (made by the fork {fork_id})"
                found = replace(
                    effect, sandbox_id=source_id, number=number, parent=parent, state=EffectState.KEPT,
                    summary=summary, details={_CARRIED: origin},
                )  # fmt: skip
                carried.append(found)
            if effect.number in chain:
                parent = found.number
        with self._database.transaction() as connection:
            for effect in carried:
                _insert(connection, effect)
        return parent

    def update(
        self,
        effect: Effect,
        state: EffectState,
        *,
        summary: str = "",
        details: Mapping[str, Any] | None = None,
        pivot: str = "",
        durable: bool = True,
    ) -> Effect:
        """Record what became of an effect. Not ``durable``: where it can be found out again from the service.
        ``pivot``: why it is one, though its call was none.
        """
        changed = replace(
            effect,
            call_class=CallClass.PIVOT if pivot else effect.call_class,
            reason=pivot or effect.reason,
            state=state,
            summary=summary or effect.summary,
            details=effect.details if details is None else details,
        )
        with self._database.transaction(durable=durable) as connection:
            connection.execute(
                "UPDATE effects SET state = ?, record = ? WHERE sandbox_id = ? AND service = ? AND number = ?",
                (state.value, to_json(changed), effect.sandbox_id, effect.service, effect.number),
            )
        return changed

    def forget(self, sandbox_id: str, service: str = "") -> None:
        """Drop what is known of a sandbox, or of its effects on one service."""
        where, arguments = "sandbox_id = ?", [sandbox_id]
        if service:
            where, arguments = f"{where} AND service = ?", [*arguments, service]
        with self._database.transaction() as connection:
            for table in ("effects", "effect_reservations"):
                connection.execute(f"DELETE FROM {table} WHERE {where}", arguments)  # noqa: S608  # constants

    # --- reading ---

    def entries(self, sandbox_id: str, service: str = "", *, states: Iterable[EffectState] = ()) -> list[Effect]:
        """Effects of a sandbox, in the order of their numbers; of one service, or all; in some states, or all."""
        query, arguments = "SELECT record FROM effects WHERE sandbox_id = ?", [sandbox_id]
        if service:
            query, arguments = f"{query} AND service = ?", [*arguments, service]
        wanted = [state.value for state in states]
        if wanted:
            query, arguments = f"{query} AND state IN ({','.join('?' * len(wanted))})", [*arguments, *wanted]
        records = self._database.records(f"{query} ORDER BY service, number", *arguments)
        return [decode(Effect, record) for record in records]

    def position(self, sandbox_id: str, service: str) -> int:
        """The number of the newest effect in force; 0 where none is."""
        query = (
            "SELECT COALESCE(MAX(number), 0) FROM effects WHERE sandbox_id = ? AND service = ? AND state = 'applied'"
        )
        return int(self._database.rows(query, sandbox_id, service)[0][0])

    def positions(self, sandbox_id: str) -> dict[str, int]:
        """The same for each service of which an effect is in force."""
        query = "SELECT service, MAX(number) FROM effects WHERE sandbox_id = ? AND state = 'applied' GROUP BY service"
        return {service: int(number) for service, number in self._database.rows(query, sandbox_id)}

    def unsettled(self, sandbox_id: str, service: str = "") -> Sequence[Effect]:
        """The effects of which nobody knows yet how they ended."""
        return self.entries(sandbox_id, service, states=[EffectState.SENT])

    def newest(self, sandbox_id: str, service: str) -> Effect | None:
        """The newest effect that could still be undone or done again; where none could, the newest whose end nobody
        knows.
        """
        query = (
            "SELECT record FROM effects WHERE sandbox_id = ? AND service = ? AND state IN ('applied', 'undone', 'sent')"
            " AND json_extract(record, '$.call_class') <> 'pivot' "
            "AND NOT COALESCE(json_extract(record, '$.forgotten'), 0) ORDER BY state = 'sent', number DESC LIMIT 1"
        )
        found = self._database.records(query, sandbox_id, service)
        return decode(Effect, found[0]) if found else None

    def equal(self, sandbox_id: str, service: str, digest: str) -> Effect | None:
        """The newest pivot equal to a call that a rollback left in effect."""
        query = (
            "SELECT record FROM effects WHERE sandbox_id = ? AND service = ? AND digest = ? AND state = 'kept' "
            "ORDER BY number DESC LIMIT 1"
        )
        found = self._database.records(query, sandbox_id, service, digest)
        return decode(Effect, found[0]) if found else None

    def way(self, sandbox_id: str, service: str, position: int) -> tuple[list[Effect], list[Effect]]:
        """What to undo (newest first), and what to do again (oldest first), to get to a position.

        Raises:
            CompensationError: ``undo-data-missing``: the log doesn't hold it.
        """
        rows = self._tree(sandbox_id, service)
        wanted = _chain(rows, position)
        if position and position not in wanted:
            raise _missing(f"holds no effect {position} of {sandbox_id} on {service}")
        undo = sorted((n for n, (_, state) in rows.items() if state == "applied" and n not in wanted), reverse=True)
        redo = sorted(n for n in wanted if rows[n][1] != "applied")
        way = self._load(sandbox_id, service, undo), self._load(sandbox_id, service, redo)
        for effect in (*way[0], *way[1]):
            if effect.forgotten:
                raise _missing(f"dropped the undo data of effect {effect.number} of {sandbox_id} on {service}")
        return way

    def dispensable(self, sandbox_id: str, service: str, positions: Iterable[int]) -> list[Effect]:
        """The effects that no way between these positions and the present leads over: nobody will undo them or do
        them again.
        """
        rows = self._tree(sandbox_id, service)
        chains = [_chain(rows, position) for position in {*positions, self.position(sandbox_id, service)}]
        needed = set[int]().union(*chains) - chains[0].intersection(*chains)
        left = [
            number for number, (_, state) in rows.items() if state in ("applied", "undone") and number not in needed
        ]
        return [effect for effect in self._load(sandbox_id, service, sorted(left)) if not effect.forgotten]

    def forgot(self, effects: Sequence[Effect]) -> None:
        """The undo data of effects is dropped; that they were made stays known."""
        with self._database.transaction() as connection:
            connection.executemany(
                "UPDATE effects SET record = ? WHERE sandbox_id = ? AND service = ? AND number = ?",
                [(to_json(replace(e, forgotten=True, details={})), e.sandbox_id, e.service, e.number) for e in effects],
            )

    def _tree(self, sandbox_id: str, service: str) -> dict[int, tuple[int, str]]:
        """Parent and state of each effect, by number."""
        query = "SELECT number, parent, state FROM effects WHERE sandbox_id = ? AND service = ?"
        return {number: (parent, state) for number, parent, state in self._database.rows(query, sandbox_id, service)}

    def _load(self, sandbox_id: str, service: str, numbers: Sequence[int]) -> list[Effect]:
        query = (
            "SELECT record FROM effects WHERE sandbox_id = ?1 AND service = ?2 "
            "AND number IN (SELECT value FROM json_each(?3))"
        )
        found = self._database.records(query, sandbox_id, service, json.dumps(list(numbers)))
        effects = {effect.number: effect for effect in (decode(Effect, record) for record in found)}
        return [effects[number] for number in numbers]


def _newest(connection: sqlite3.Connection, sandbox_id: str, service: str) -> tuple[int, int]:
    """The last number, and the newest that is in force; 0 where there is none."""
    last, applied = connection.execute(
        "SELECT COALESCE(MAX(number), 0), COALESCE(MAX(number) FILTER (WHERE state = 'applied'), 0) "
        "FROM effects WHERE sandbox_id = ? AND service = ?",
        (sandbox_id, service),
    ).fetchone()
    return last, applied


def _insert(connection: sqlite3.Connection, effect: Effect) -> None:
    connection.execute(
        "INSERT INTO effects (sandbox_id, service, number, parent, state, digest, record) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            effect.sandbox_id, effect.service, effect.number, effect.parent, effect.state.value, effect.digest,
            to_json(effect),
        ),
    )  # fmt: skip


def _chain(rows: Mapping[int, tuple[int, str]], position: int) -> set[int]:
    """The effects that are in force at a position."""
    chain = set()
    while position in rows:
        chain.add(position)
        position = rows[position][0]
    return chain


def _missing(what: str) -> CompensationError:
    return CompensationError(
        f"the undo log {what}",
        code="undo-data-missing",
        state="nothing was changed",
        remedy="choose another statepoint",
    )
