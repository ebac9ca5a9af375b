"""A home with one sandbox and a service ``sql`` on PostgreSQL, for tests: direct, or through MCP Toolbox."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planarian_core import Planarian
from planarian_core.interfaces import ToolResult
from planarian_core.sandbox import Sandbox
from planarian_core.testing import mcp_servers
from planarian_core.testing.postgresql import PrivateCluster
from planarian_core.testing.postgresql_contents import DatabaseContents, Dump
from planarian_core.testing.workloads import remove_all

if TYPE_CHECKING:
    import psycopg

NAME, ROLE = "db", "agent"
HIDDEN = ("planarian", r"planarian\_aside\_%")
"""Schemas of ours: undo data, and tables that were dropped and may come back."""

_SOURCE = """\
kind: source
name: {name}
type: postgres
host: 127.0.0.1
port: {port}
database: {database}
user: {user}
password: {password}
queryExecMode: exec
"""
_READ_ONLY = "queryParams:\n  default_transaction_read_only: 'on'\n"
_TOOL = """\
kind: tool
name: {name}
type: postgres-execute-sql
source: {source}
description: Run one SQL statement.
"""


@dataclass
class SqlWorld:
    """``port``: where the service finds the server, if not where it is (a relay); ``more``: keys of the service's
    table, as TOML has them.
    """

    folder: Path
    cluster: PrivateCluster
    database: str
    through: str = "direct"
    port: int = 0
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def prepare(self) -> None:
        """Write the configuration and make the sandbox. Again: only the configuration."""
        (self.folder / "workspace").mkdir(exist_ok=True)
        self.home.mkdir(mode=0o700, exist_ok=True)
        (self.home / "planarian.toml").write_text(self.table())
        with self.open() as planarian:
            if not planarian.registry.sandboxes():
                planarian.create_sandbox(
                    self.folder / "workspace", sandbox="directory", filesystem="copy", process="respawn"
                )

    def open(self) -> Planarian:
        return Planarian.open(self.home)

    @contextmanager
    def opened(self) -> Iterator[tuple[Planarian, Sandbox]]:
        with self.open() as planarian:
            yield planarian, planarian.sandbox()

    def call(self, statement: object, **arguments: object) -> ToolResult:
        """Send one statement as a proxy does, in a runtime of its own."""
        with self.opened() as (planarian, sandbox):
            session = planarian.remote_session(sandbox, NAME)
            target = session.kind.connect()
            try:
                return session.call("execute_sql", {"sql": statement, **arguments}, target)
            finally:
                target.close()

    def done(self, statement: str) -> None:
        """Send a statement that must succeed."""
        result = self.call(statement)
        assert not result.get("isError"), result

    def snapshot(self) -> str:
        with self.opened() as (planarian, sandbox):
            return planarian.snapshot(sandbox).id

    def rollback(self, statepoint: str) -> None:
        with self.opened() as (planarian, sandbox):
            planarian.rollback(sandbox, statepoint)

    def states(self) -> list[str]:
        """Of the effects in the undo log, oldest first."""
        with self.opened() as (planarian, sandbox):
            return [str(effect.state) for effect in planarian.effects(sandbox)]

    def remove(self) -> None:
        with self.open() as planarian:
            remove_all(planarian)

    # --- past the service ---

    def connect(self, role: str = ROLE) -> psycopg.Connection[tuple[Any, ...]]:
        return self.cluster.connect(self.database, role)

    def run(self, *statements: str) -> None:
        """Run statements as another writer does."""
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def dump(self) -> Dump:
        with self.connect("postgres") as connection:
            return DatabaseContents(connection, HIDDEN).dump()

    # --- configuration ---

    def table(self) -> str:
        """The service's table in ``planarian.toml``; writes Toolbox's configuration."""
        keys = dict(self.more)
        if self.through == "direct":
            dsn = self.cluster.dsn(self.database, ROLE, port=self.port)
            keys["dsn"] = json.dumps(dsn)
        else:
            keys |= {
                "command": mcp_servers.as_configuration(mcp_servers.toolbox(self._toolbox())),
                "tool": '"execute_sql"',
                "read_tool": '"read_sql"',
            }
        lines = [f"[services.{NAME}]", 'kind = "sql"', 'dialect = "postgresql"']
        return "\n".join([*lines, *(f"{key} = {value}" for key, value in keys.items())]) + "\n"

    def _toolbox(self) -> Path:
        where = {
            "port": self.port or self.cluster.port, "database": self.database, "user": ROLE,
            "password": self.cluster.password,
        }  # fmt: skip
        parts = [
            _SOURCE.format(name="database", **where),
            _SOURCE.format(name="reading", **where) + _READ_ONLY,
            _TOOL.format(name="execute_sql", source="database"),
            _TOOL.format(name="read_sql", source="reading"),
        ]
        path = self.folder / "tools.yaml"
        path.write_text("---\n".join(parts))
        return path


@contextmanager
def sql_world(folder: Path, cluster: PrivateCluster, database: str, **options: Any) -> Iterator[SqlWorld]:
    """A :class:`SqlWorld`, prepared; removed in the end."""
    world = SqlWorld(folder, cluster, database, **options)
    world.prepare()
    try:
        yield world
    finally:
        world.remove()
