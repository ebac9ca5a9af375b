"""A SQLite database with the service kind that serves it, and another writer: what tests of undo and redo need."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from planarian_core.errors import RemoteError
from planarian_core.interfaces import ServiceKind, ToolResult, ToolTarget
from planarian_core.logged_service import LoggedService
from planarian_core.model import CallClass, Effect, EffectState, RemoteCall, RemotePosition, Verdict
from planarian_core.registry import Registry
from planarian_core.testing.sqlite_contents import Contents, contents

if TYPE_CHECKING:
    import apsw

SANDBOX = "sb-test"


class ServedDatabase:
    """Calls are made as a session makes them, with an undo log of their own."""

    def __init__(self, path: Path, kind: ServiceKind, registry: Registry, other: apsw.Connection) -> None:
        self.path = path
        self.kind = kind
        self.log = registry.effects
        self.registry = registry
        self.other = other
        self.service = LoggedService(kind, self.log)
        self.target: ToolTarget = kind.connect()

    def close(self) -> None:
        self.target.close()
        self.other.close(True)
        self.registry.close()

    # --- past the service ---

    def script(self, sql: str) -> list[tuple[Any, ...]]:
        """As another writer, or to prepare."""
        return self.other.execute(sql).fetchall()

    def contents(self) -> Contents:
        return contents(self.path)

    # --- through it ---

    def call(self, sql: str, tool: str = "execute_sql") -> ToolResult:
        """One call as a session makes it, the log included."""
        call = RemoteCall(tool, {"sql": sql, "query": sql, "table_name": sql})
        verdict = self.kind.classify(call)
        if verdict.call_class is CallClass.READ_ONLY:
            found = self.kind.read(call, self.target)
            if not isinstance(found, Verdict):
                return found
            verdict = found
        if verdict.call_class is CallClass.REFUSED:
            raise RemoteError(verdict.reason, code="call-refused")
        effect = self.log.begin(SANDBOX, self.kind.name, call, verdict, sql)
        try:
            outcome = self.kind.run(call, effect, self.target)
        except RemoteError as error:
            if error.code in ("call-refused", "service-error"):
                self.log.update(effect, EffectState.VOID)
            raise
        self.log.update(effect, outcome.state, summary=outcome.summary, details=outcome.details)
        return outcome.result

    def change(self, sql: str, tool: str = "execute_sql") -> ToolResult:
        """A call that must take effect."""
        result = self.call(sql, tool)
        assert self.effects()[-1].state is EffectState.APPLIED, result
        return result

    def effects(self) -> list[Effect]:
        return self.log.entries(SANDBOX)

    def position(self) -> RemotePosition:
        return self.service.capture(SANDBOX)

    def go(self, position: RemotePosition) -> tuple[str, ...]:
        """Go there, as a rollback does; returns what was said of each effect."""
        self.service.settle(SANDBOX)
        self.service.rehearse(position, SANDBOX)
        return tuple(effect.summary for effect in self.service.compensate(position, SANDBOX))

    def there_and_back(self, *statements: str) -> None:
        """Make changes, and see that undoing and doing them again are exact: each, and all together."""
        states, positions = [self.contents()], [self.position()]
        for sql in statements:
            self.change(sql)
            states.append(self.contents())
            positions.append(self.position())
            self.go(positions[-2])
            assert self.contents() == states[-2], f"undone: {sql}"
            self.go(positions[-1])
            assert self.contents() == states[-1], f"done again: {sql}"
        for index in (0, -1):
            self.go(positions[index])
            assert self.contents() == states[index]
