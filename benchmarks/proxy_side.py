"""The two sides that ``proxy`` compares: an MCP client before bare Toolbox, and the same before ``planarian proxy``."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from mcp import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client

from planarian_core import Planarian, Sandbox
from planarian_core.testing.mcp_servers import toolbox
from planarian_core.testing.postgresql import PrivateCluster
from planarian_mcp.demo_shop import configuration

SERVICE = "items"
ROWS = 10_000
_CLI = "from planarian_core.cli.main import main; main()"
_TABLES = """
CREATE TABLE items (id int PRIMARY KEY, name text NOT NULL, amount numeric NOT NULL);
CREATE TABLE bulk (id int PRIMARY KEY, name text NOT NULL, amount numeric NOT NULL);
INSERT INTO items SELECT n, 'item ' || n, n FROM generate_series(1, {rows}) n;
INSERT INTO bulk SELECT n, 'item ' || n, n FROM generate_series(1, {bulk}) n;
ANALYZE;
"""


@dataclass(frozen=True)
class Database:
    """A new database with the tables of the benchmark, its owner an ordinary role."""

    cluster: PrivateCluster
    name: str

    @classmethod
    def make(cls, cluster: PrivateCluster, bulk: int) -> Database:
        name = cluster.create_database(owner="agent")
        with cluster.connect(name, "agent") as owner:
            owner.execute(_TABLES.format(rows=ROWS, bulk=bulk))
        return cls(cluster, name)

    def variables(self, port: int = 0) -> dict[str, str]:
        """What Toolbox's configuration asks for; ``port``: of a relay."""
        return {
            "PGHOST": "127.0.0.1",
            "PGPORT": str(port or self.cluster.port),
            "PGDATABASE": self.name,
            "PGUSER": "agent",
            "PGPASSWORD": self.cluster.password,
        }


def server(folder: Path, clock: Path | None = None, *, one_trip: bool = True) -> list[str]:
    """Toolbox's command; with a ``clock``, its times are written there. Not ``one_trip``: as Toolbox is by default."""
    settings = folder / "toolbox.yaml"
    text = (files("planarian_mcp") / "demo_toolbox.yaml").read_text()
    settings.write_text(text if one_trip else text.replace("queryExecMode: exec\n", ""))
    command = toolbox(settings, "--log-level", "ERROR", "--disable-version-check")
    before = [sys.executable, str(Path(__file__).with_name("stdio_clock.py")), str(clock)] if clock else []
    return [*before, *command]


@contextmanager
def home(folder: Path, command: Sequence[str], variables: Mapping[str, str]) -> Iterator[tuple[Planarian, Sandbox]]:
    """A home that knows the service, and a sandbox that costs nothing: what is measured is remote."""
    folder.mkdir()
    (folder / "planarian.toml").write_text(configuration(SERVICE, command, variables))
    workspace = folder.with_name(f"{folder.name}-workspace")
    workspace.mkdir()
    with Planarian.open(folder) as planarian:
        sandbox = planarian.create_sandbox(workspace, sandbox="directory", filesystem="copy", process="none")
        try:
            yield planarian, sandbox
        finally:
            planarian.remove_sandbox(sandbox)


@dataclass(frozen=True)
class Side:
    """One MCP client. ``trips`` counts them at the relay; ``inside`` sums up what Toolbox took, by its clock."""

    session: ClientSession
    trips: Callable[[], int] = lambda: 0
    inside: Callable[[], float] = lambda: 0.0

    async def timed(self, statement: str) -> float:
        """Seconds of one call of ``execute_sql``.

        Raises:
            RuntimeError: it failed.
        """
        started = time.perf_counter()
        result: Any = await self.session.call_tool("execute_sql", {"sql": statement})
        seconds = time.perf_counter() - started
        if result.is_error:
            raise RuntimeError(f"{statement}: {' '.join(content.text for content in result.content)}")
        return seconds


@asynccontextmanager
async def client(command: Sequence[str], variables: Mapping[str, str]) -> AsyncIterator[ClientSession]:
    """An MCP client over stdio."""
    parameters = StdioServerParameters(command=command[0], args=list(command[1:]), env=dict(variables))
    async with stdio_client(parameters) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        await session.list_tools()  # as a harness does; the client then knows the schemas of results
        yield session


def proxy_command(folder: Path, sandbox: Sandbox) -> list[str]:
    """``planarian proxy`` as a harness would start it."""
    return [sys.executable, "-c", _CLI, "--home", str(folder), "proxy", SERVICE, "--sandbox", sandbox.id]


def clock_reader(path: Path) -> Callable[[], float]:
    """The seconds that a server's clock has written since it was read last."""
    path.touch()
    position = 0

    def read() -> float:
        nonlocal position
        text = path.read_text()[position:]
        position += len(text)
        return sum(float(line) for line in text.split())

    return read
