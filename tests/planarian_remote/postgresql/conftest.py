"""An agent that sends statements through the service kind, and somebody else who looks and writes past it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from planarian_core.errors import RemoteError
from planarian_core.interfaces import ToolResult
from planarian_core.model import CallClass, Effect, EffectState, RemoteCall, Verdict
from planarian_core.testing.postgresql import PrivateCluster
from planarian_remote.configuration import Table
from planarian_remote.postgresql.kind import make


class Agent:
    """Sends statements as a session of the proxy does, without a home; keeps its effects, newest last."""

    def __init__(self, dsn: str, sandbox: str = "sb-1", **table: Any) -> None:
        raw = {"kind": "sql", "dialect": "postgresql", **({"dsn": dsn} if dsn else {}), **table}
        self.kind = make(Table("db", raw), sandbox)
        self.target = self.kind.connect()
        self.sandbox = sandbox
        self.effects: list[Effect] = []
        self._number = 0

    def verdict(self, statement: object) -> Verdict:
        return self.kind.classify(RemoteCall("execute_sql", {"sql": statement}))

    def __call__(self, statement: str) -> list[str]:
        """Make a call that must succeed; the texts of its items."""
        result = self.result(statement)
        assert not result.get("isError"), result
        return [item["text"] for item in result["content"]]

    def result(self, statement: str) -> ToolResult:
        call = RemoteCall("execute_sql", {"sql": statement})
        verdict = self.kind.classify(call)
        if verdict.call_class is CallClass.READ_ONLY:
            found = self.kind.read(call, self.target)
            if not isinstance(found, Verdict):
                return found
            verdict = found
        if verdict.call_class is CallClass.REFUSED:
            raise RemoteError(verdict.reason, code="call-refused")
        effect = self.effect(call)
        outcome = self.kind.run(call, effect, self.target)
        if outcome.state is EffectState.APPLIED:
            self.effects.append(effect)
        return outcome.result

    def effect(self, call: RemoteCall, number: int = 0) -> Effect:
        if not number:
            self._number += 1
            number = self._number
        return Effect(
            self.sandbox, "db", number, 0, call.tool, call.digest, CallClass.COMPENSABLE, EffectState.SENT
        )  # fmt: skip

    def refused(self, statement: str) -> str:
        """Make a call that must be refused; why it was."""
        with pytest.raises(RemoteError) as caught:
            self.result(statement)
        assert caught.value.code == "call-refused", caught.value
        return caught.value.message

    def undo(self, count: int = 0) -> list[tuple[Effect, EffectState]]:
        """Undo the newest effects, or all."""
        moved: list[tuple[Effect, EffectState]] = []
        effects = self.effects[::-1][: count or None]
        self.kind.rehearse(effects, [], self.target)
        self.kind.move(effects, [], self.target, lambda effect, state: moved.append((effect, state)))
        return moved

    def redo(self, count: int = 0) -> None:
        """Do the same effects again."""
        self.kind.move([], self.effects[-count:], self.target, lambda effect, state: None)


class Observer:
    """Another client of the same database."""

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self.connection = connection

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.connection.execute(statement.encode())

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(query.encode()).fetchall()

    def text(self, table: str) -> list[str]:
        """A table's rows as text, sorted."""
        return [row[0] for row in self.rows(f'SELECT t::text FROM {table} t ORDER BY t::text COLLATE "C"')]  # noqa: S608


@pytest.fixture
def other(postgresql: PrivateCluster, database: str) -> Iterator[Observer]:
    with postgresql.connect(database, "agent") as connection:
        yield Observer(connection)


@pytest.fixture
def make_agent(postgresql: PrivateCluster, database: str) -> Iterator[Callable[..., Agent]]:
    made: list[Agent] = []

    def agent(sandbox: str = "sb-1", role: str = "agent", **table: Any) -> Agent:
        made.append(Agent(postgresql.dsn(database, role), sandbox, **table))
        return made[-1]

    yield agent
    for one in made:
        one.target.close()


@pytest.fixture
def agent(make_agent: Callable[..., Agent]) -> Agent:
    return make_agent()
