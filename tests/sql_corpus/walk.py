"""One regression file in a database of its own, statement by statement, with a dump between any two steps."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from planarian_core.model import Effect, EffectState
from planarian_core.testing.postgresql_contents import DatabaseContents, Dump, differences

from .proxied import StatementSession
from .script import Script, Statement
from .tally import DML, Tally, Violation

_WRITES = re.compile(r"\b(insert\s+into|update|delete\s+from|merge\s+into)\b", re.IGNORECASE)
_TWO_WORDS = ("CREATE", "DROP", "ALTER")
_SKIPPED = re.compile(r"\s*(create|drop|alter)\s+(database|tablespace)\b|\s*alter\s+system\b", re.IGNORECASE)
"""Of the whole cluster, in which other files run at the same time."""


def command_of(statement: str) -> str:
    """What to count a statement as."""
    words = re.findall(r"[A-Za-z]+", statement[:200])
    first = words[0].upper() if words else "?"
    if first == "WITH":
        writes = _WRITES.search(statement)
        return writes[0].split()[0].upper() if writes else "SELECT"
    rest = [word.upper() for word in words[1:] if word.upper() not in ("OR", "REPLACE", "UNIQUE", "TEMP", "TEMPORARY")]
    return f"{first} {rest[0]}" if first in _TWO_WORDS and rest else first


class Walk:
    """``bare``: a session of the same role beside the proxy, for what psql would do and the proxy doesn't."""

    def __init__(
        self,
        file: str,
        bare: psycopg.Connection[Any],
        plain: psycopg.Connection[Any],
        contents: DatabaseContents,
        proxied: StatementSession,
    ) -> None:
        self.tally = Tally()
        self._file = file
        self._bare = bare
        self._plain = plain
        self._contents = contents
        self._proxied = proxied
        self._known: Dump | None = None

    def run(self, script: Script) -> Tally:
        for statement in script:
            self.tally.statements += 1
            if _SKIPPED.match(statement.text):
                self.tally.bare["of the whole cluster"] += 1
            elif self._bare.info.transaction_status is not TransactionStatus.IDLE:
                self.tally.bare["in a transaction block"] += 1
                self._run_bare(statement, script)
            elif statement.ending not in ("", "g", "gx"):
                self.tally.bare["of psql"] += 1
                self._run_bare(statement, script)
            else:
                self._send(statement, script)
        return self.tally

    # --- through the proxy ---

    def _send(self, statement: Statement, script: Script) -> None:
        before = self._now()
        try:
            sent = self._proxied.send(statement.text)
        except Exception as error:  # whatever it is, it is no answer to a statement
            self._violated(statement, f"the call failed ({error!r})", before)
            return
        if sent.what == "accepted" and sent.effect is not None:
            self._there_and_back(statement, sent.effect, before)
            return
        if not self._same(statement, f"{sent.what}, and changed something", before):
            return
        command = command_of(statement.text)
        if sent.what == "read":
            self.tally.reads += 1
            return
        if sent.what == "refused":
            self.tally.refuse(command, sent.why)
        if command in DML and self._plainly_succeeds(statement.text):
            self.tally.turn_away(command, f"{sent.what}: {sent.why}")
        elif sent.what == "failed":
            self.tally.failed += 1
        self._run_bare(statement, script)

    def _there_and_back(self, statement: Statement, effect: Effect, before: Dump) -> None:
        after = self._now(anew=True)
        self.tally.changed += after != before
        if effect.state is EffectState.VOID:
            if self._same(statement, "reported as without effect, and changed something", before):
                self.tally.exact[command_of(statement.text)] += 1
            return
        try:
            undone = self._proxied.undo(effect)
            if not self._same(statement, "not undone exactly", before):
                return
            self.tally.sequences += self._now().sequences != before.sequences
            self._proxied.redo(undone)
        except Exception as error:
            self._violated(statement, f"can't be undone or done again ({error!r})", after)
            return
        if self._same(statement, "not done again exactly", after):
            self.tally.exact[command_of(statement.text)] += 1

    def _same(self, statement: Statement, otherwise: str, wanted: Dump) -> bool:
        if self._now(anew=True) == wanted:
            return True
        self._violated(statement, otherwise, wanted)
        return False

    def _violated(self, statement: Statement, broken: str, wanted: Dump) -> None:
        found = self._now(anew=True)
        lines = tuple(differences(wanted, found))
        self.tally.violations.append(Violation(self._file, statement.line, statement.text, broken, lines))

    def _now(self, anew: bool = False) -> Dump:
        if self._known is None or anew:
            self._known = self._contents.dump()
        return self._known

    def _plainly_succeeds(self, statement: str) -> bool:
        """Whether the role could do it in a fresh session, in a transaction of its own; it isn't kept."""
        try:
            self._plain.execute("BEGIN")
            self._plain.execute(statement.encode())
            self._plain.execute("SET CONSTRAINTS ALL IMMEDIATE")
            return self._plain.info.transaction_status is TransactionStatus.INTRANS
        except psycopg.Error:
            return False
        finally:
            with contextlib.suppress(psycopg.Error):
                self._plain.execute("ROLLBACK")

    # --- past it ---

    def _run_bare(self, statement: Statement, script: Script) -> None:
        self._known = None
        run_bare(self._bare, statement, script)


def run_bare(connection: psycopg.Connection[Any], statement: Statement, script: Script) -> None:
    """Run a statement as psql does: an error is printed, here not even that."""
    text = statement.text.encode(errors="surrogateescape")
    with contextlib.suppress(psycopg.Error), connection.cursor() as cursor:
        if statement.data is not None:
            with cursor.copy(text) as copy:
                copy.write(statement.data.encode(errors="surrogateescape"))
            return
        if re.match(r"copy\b.*\bto\s+stdout\b", statement.text, re.IGNORECASE | re.DOTALL):
            with cursor.copy(text) as copy:
                for _ in copy:
                    pass
            return
        cursor.execute(text)
        if cursor.description and statement.ending == "gset":
            assert cursor.pgresult is not None
            for number, column in enumerate(cursor.description):  # as text: no value is too odd for that
                value = cursor.pgresult.get_value(0, number) if cursor.pgresult.ntuples else None
                if value is not None:
                    script.variables[statement.argument + column.name] = value.decode(errors="surrogateescape")
        elif cursor.description and statement.ending == "gexec":
            for row in cursor.fetchall():
                for further in row:
                    run_bare(connection, Statement(str(further), statement.line), script)
