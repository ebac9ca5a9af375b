"""The demo's remote state: a private PostgreSQL with customers and orders, MCP Toolbox before it, and a witness."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planarian_core.errors import BackendUnavailable
from planarian_core.testing.mcp_servers import TOOLBOX, toolbox
from planarian_core.testing.postgresql import PrivateCluster, why_no_postgresql

if TYPE_CHECKING:
    import psycopg

SERVICE = "shop"
_SCHEMA = """
CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL, email text NOT NULL);
CREATE TABLE orders (
    id int PRIMARY KEY, customer int NOT NULL REFERENCES customers ON DELETE CASCADE, amount numeric(8, 2) NOT NULL
);
INSERT INTO customers VALUES (1, 'Ann Lee', 'ann@example.org'), (2, 'Ann Roy', 'Ann@example.org'),
    (3, 'Bo Chen', 'bo@example.org'), (4, 'Bo Chen', 'bo@example.org '), (5, 'Cy Diaz', 'CY@example.org');
INSERT INTO orders VALUES (1, 1, 12.50), (2, 1, 7.00), (3, 2, 99.90), (4, 3, 20.00), (5, 4, 5.25), (6, 5, 31.00);
"""
REPORT = (
    "SELECT c.id, c.email, count(o.id)::int AS orders, coalesce(sum(o.amount), 0)::text AS spent "
    "FROM customers c LEFT JOIN orders o ON o.customer = c.id GROUP BY c.id ORDER BY c.id"
)


def require() -> None:
    """Everything that the story needs is here.

    Raises:
        BackendUnavailable: it isn't; the remedy says what to install.
    """
    missing = [name for name in ("mcp", "psycopg") if importlib.util.find_spec(name) is None]
    if missing:
        raise BackendUnavailable(
            f"the demo needs {' and '.join(missing)}", code="extra-missing", remedy="pip install 'planarian[mcp,sql]'"
        )
    reason = why_no_postgresql()
    if reason:
        raise BackendUnavailable(f"the demo needs PostgreSQL: {reason}", remedy="apt-get install postgresql")
    if shutil.which("npm") is None:
        raise BackendUnavailable(f"the demo needs npm for {TOOLBOX}", remedy="apt-get install nodejs npm")


def configuration(service: str, command: Sequence[str], variables: Mapping[str, str]) -> str:
    """``planarian.toml`` with one service: PostgreSQL through Toolbox with the tools of ``demo_toolbox.yaml``."""
    table = [f"{name} = {json.dumps(value)}" for name, value in variables.items()]
    return "\n".join(
        (
            f"[services.{service}]",
            'kind = "sql"',
            'dialect = "postgresql"',
            f"command = {json.dumps(list(command))}",
            'tool = "execute_sql"',
            'argument = "sql"',
            'read_tool = "read_sql"',
            f"[services.{service}.env]",
            *table,
            "",
        )
    )


class Shop:
    """The database. ``witness`` is a connection of the story's own, past the proxy and past Toolbox."""

    def __init__(self, cluster: PrivateCluster, witness: psycopg.Connection[tuple[Any, ...]], place: Path) -> None:
        self._witness = witness
        configuration = place / "toolbox.yaml"
        configuration.write_text((files("planarian_mcp") / "demo_toolbox.yaml").read_text())
        self._command = toolbox(configuration, "--log-level", "ERROR", "--disable-version-check")
        self._variables = {
            "PGHOST": "127.0.0.1",
            "PGPORT": str(cluster.port),
            "PGDATABASE": SERVICE,
            "PGUSER": "agent",
            "PGPASSWORD": cluster.password,
        }

    @property
    def configuration(self) -> str:
        """``planarian.toml`` of a home whose agents may use the shop."""
        return configuration(SERVICE, self._command, self._variables)

    def report(self) -> list[tuple[str, ...]]:
        """What a report must say now."""
        return [tuple(str(value) for value in row) for row in self._witness.execute(REPORT).fetchall()]

    def rows(self) -> str:
        """Every row of every table, as text."""
        return "\n".join(
            f"{table} {row[0]}"
            for table in ("customers", "orders")
            for row in self._witness.execute(f"SELECT t::text FROM {table} t ORDER BY id").fetchall()  # noqa: S608  # names of ours
        )


@contextmanager
def shop(place: Path) -> Iterator[Shop]:
    """Open the shop for one story."""
    require()
    with PrivateCluster() as cluster:
        cluster.create_role("agent")
        cluster.create_database(SERVICE, owner="agent")
        with cluster.connect(SERVICE, "agent") as owner:
            owner.execute(_SCHEMA)
        with cluster.connect(SERVICE) as witness:
            yield Shop(cluster, witness, place)
