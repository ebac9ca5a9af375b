"""The state proxy: SQL through ``planarian proxy`` against the bare MCP server, on loopback and far from the database.

Both sides are the same MCP client and the same MCP Toolbox for Databases, each on a database of its own in one
PostgreSQL; what is compared is called in turn. Far away means a relay (:mod:`benchmarks.relay`) between Toolbox and
PostgreSQL that passes everything on half the distance later each way, and counts the trips.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from benchmarks.proxy_side import (
    ROWS,
    SERVICE,
    Database,
    Side,
    client,
    clock_reader,
    home,
    proxy_command,
    server,
)
from benchmarks.relay import relay
from benchmarks.timing import Spread
from planarian_core import Planarian, Sandbox
from planarian_core.interfaces import ToolResult
from planarian_core.testing.mcp_servers import TOOLBOX
from planarian_core.testing.postgresql import PrivateCluster
from planarian_remote.postgresql.direct import DirectTarget

Say = Callable[[str], None]


@dataclass(frozen=True)
class Scope:
    """How much is measured: rounds of small statements, of those of 1,000 rows and of ``bulk`` rows; ``effects`` that
    are rolled back, so many times; ``distance`` is the far database's round trip in seconds.
    """

    rounds: int
    thousand_rounds: int
    bulk_rounds: int
    bulk: int
    effects: int
    rollbacks: int
    distance: float = 0.010


FULL = Scope(rounds=100, thousand_rounds=30, bulk_rounds=3, bulk=100_000, effects=1000, rollbacks=3)
QUICK = Scope(rounds=4, thousand_rounds=2, bulk_rounds=1, bulk=5000, effects=20, rollbacks=1)


@dataclass(frozen=True)
class Finding:
    """One operation: ours and the reference in the same rounds, seconds each; trips to the database for each call.

    ``ratio_bar`` and ``seconds_bar`` are what the issue of the proxy asked for, where it asked for something.
    """

    scenario: str
    operation: str
    ours: Spread
    reference: Spread | None = None
    trips: tuple[float, float] | None = None
    ratio_bar: float | None = None
    seconds_bar: float | None = None


@dataclass(frozen=True)
class Operation:
    """A kind of statement; ``statement`` gives the one of a round."""

    name: str
    statement: Callable[[int], str]
    rounds: int
    small: bool = field(default=True)


def operations(scope: Scope) -> list[Operation]:
    """What is measured, in an order in which each finds its rows."""
    some = scope.rounds
    return [
        Operation("read", lambda n: f"SELECT id, name, amount FROM items WHERE id = {n + 1}", some),  # noqa: S608
        Operation("read, the same again", lambda n: "SELECT id, name, amount FROM items WHERE id = 7", some),
        Operation("INSERT, one row", lambda n: f"INSERT INTO items VALUES ({ROWS + 1 + n}, 'new', 1)", some),  # noqa: S608
        Operation("UPDATE, one row", lambda n: f"UPDATE items SET amount = amount + 1 WHERE id = {n + 1}", some),  # noqa: S608
        Operation("UPDATE, the same again", lambda n: "UPDATE items SET amount = amount + 1 WHERE id = 7", some),
        Operation("DELETE, one row", lambda n: f"DELETE FROM items WHERE id = {5000 + n}", some),  # noqa: S608
        Operation(
            "UPDATE, 1,000 rows",
            lambda n: f"UPDATE items SET amount = amount + {n + 1} WHERE id BETWEEN 2001 AND 3000",  # noqa: S608
            scope.thousand_rounds,
            small=False,
        ),
        Operation(
            f"UPDATE, {scope.bulk:,} rows",
            lambda n: f"UPDATE bulk SET amount = amount + {n + 1}",  # noqa: S608
            scope.bulk_rounds,
            small=False,
        ),
    ]


def measure(folder: Path, scope: Scope, say: Say) -> list[Finding]:
    """All scenarios. Uses ``folder`` for homes."""
    found: list[Finding] = []
    with PrivateCluster() as cluster:
        cluster.create_role("agent")
        for run in (_near, _far, _far_by_default, _own_time, _in_the_database, _rollback):
            place = folder / run.__name__.strip("_")
            place.mkdir()
            say(place.name.replace("_", " "))
            found += run(place, cluster, scope)
    return found


def versions() -> dict[str, str]:
    """What is measured against."""
    with PrivateCluster() as cluster, cluster.connect() as connection:
        (version,) = connection.execute("SHOW server_version").fetchone() or ("",)
    return {"postgresql": str(version).split()[0], "toolbox": TOOLBOX.rpartition("@")[2]}


# --- round trips, as a harness sees them ---


def _near(place: Path, cluster: PrivateCluster, scope: Scope) -> list[Finding]:
    return _round_trips(place, cluster, scope, 0.0)


def _far(place: Path, cluster: PrivateCluster, scope: Scope) -> list[Finding]:
    return _round_trips(place, cluster, scope, scope.distance)


def _far_by_default(place: Path, cluster: PrivateCluster, scope: Scope) -> list[Finding]:
    return _round_trips(place, cluster, scope, scope.distance, one_trip=False)


def _round_trips(
    place: Path, cluster: PrivateCluster, scope: Scope, distance: float, *, one_trip: bool = True
) -> list[Finding]:
    scenario = f"{distance * 1000:.0f} ms away" if distance else "loopback"
    scenario += "" if one_trip else ", queryExecMode by default"
    with ExitStack() as stack:
        bare, ours = (Database.make(cluster, scope.bulk) for _ in range(2))
        relays = [stack.enter_context(relay(cluster.port, distance / 2)) for _ in range(2)] if distance else []
        ports = [r.port for r in relays] or [0, 0]
        variables = ours.variables(ports[1])
        served = server(place, one_trip=one_trip)
        planarian, sandbox = stack.enter_context(home(place / "home", served, variables))
        commands = (served, proxy_command(planarian.home, sandbox))

        async def run() -> list[Finding]:
            async with AsyncExitStack() as sessions:
                counters = [r.trips for r in relays] or [lambda: 0, lambda: 0]
                sides = [
                    Side(await sessions.enter_async_context(client(command, environment)), trips)
                    for command, environment, trips in zip(
                        commands, (bare.variables(ports[0]), {}), counters, strict=True
                    )
                ]
                return [await _compare(scenario, operation, sides, bool(distance)) for operation in operations(scope)]

        found = anyio.run(run)
        if distance:
            found.insert(0, _distance(scenario, cluster, bare, relays[0].port, scope.rounds))
        return found


async def _compare(scenario: str, operation: Operation, sides: Sequence[Side], far: bool) -> Finding:
    """Bare and ours in turn; the first round only warms up."""
    samples: tuple[list[float], list[float]] = ([], [])
    before = [0, 0]
    for number in range(operation.rounds + 1):
        if number == 1:
            before = [side.trips() for side in sides]
        for which in (0, 1) if number % 2 else (1, 0):
            seconds = await sides[which].timed(operation.statement(number))
            if number:
                samples[which].append(seconds)
    trips = [(side.trips() - start) / operation.rounds for side, start in zip(sides, before, strict=True)]
    bare, ours = (Spread(tuple(values)) for values in samples)
    return Finding(
        scenario, operation.name, ours, bare,
        trips=(trips[1], trips[0]) if far else None,
        ratio_bar=1.3 if far and operation.small else None,
    )  # fmt: skip


def _distance(scenario: str, cluster: PrivateCluster, database: Database, port: int, rounds: int) -> Finding:
    """How far away it is: ``SELECT 1`` prepared, with a direct connection, through the relay and without."""
    import psycopg

    def spread(dsn: str) -> Spread:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("SELECT 1", prepare=True)
            return Spread(tuple(_seconds(lambda: connection.execute("SELECT 1")) for _ in range(rounds)))

    there, here = (spread(cluster.dsn(database.name, "agent", port=p)) for p in (port, 0))
    return Finding(scenario, "(the distance: SELECT 1 by psycopg, against loopback)", there, here)


# --- where the time goes ---


def _own_time(place: Path, cluster: PrivateCluster, scope: Scope) -> list[Finding]:
    """What the proxy's process adds to a call: a round trip less Toolbox's part by the clock right before it, against
    the same of a client that speaks to Toolbox itself.
    """
    clocks = [place / "bare.clock", place / "ours.clock"]
    databases = [Database.make(cluster, scope.bulk) for _ in range(2)]
    variables = databases[1].variables()
    found: list[Finding] = []
    with home(place / "home", server(place, clocks[1]), variables) as (planarian, sandbox):
        commands = (server(place, clocks[0]), proxy_command(planarian.home, sandbox))

        async def run() -> None:
            async with AsyncExitStack() as sessions:
                sides = [
                    Side(await sessions.enter_async_context(client(command, environment)), inside=clock_reader(clock))
                    for command, environment, clock in zip(
                        commands, (databases[0].variables(), {}), clocks, strict=True
                    )
                ]
                found.extend([await _added(operation, sides) for operation in operations(scope) if operation.small])

        anyio.run(run)
    return found


async def _added(operation: Operation, sides: Sequence[Side]) -> Finding:
    samples: tuple[list[float], list[float]] = ([], [])
    for number in range(operation.rounds + 1):
        for which in (0, 1) if number % 2 else (1, 0):
            sides[which].inside()
            seconds = await sides[which].timed(operation.statement(number))
            if number:
                samples[which].append(seconds - sides[which].inside())
    added = Spread(tuple(ours - bare for bare, ours in zip(*samples, strict=True)))
    return Finding("the proxy's own time", operation.name, added, seconds_bar=0.003)


class _Timed:
    """A direct connection to the database as a tool target, which adds up the seconds of its calls."""

    def __init__(self, dsn: str) -> None:
        self._target = DirectTarget(dsn)
        self.seconds = 0.0

    def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        started = time.perf_counter()
        result = self._target.call(tool, arguments)
        self.seconds += time.perf_counter() - started
        return result

    def tools(self) -> Sequence[Mapping[str, Any]]:
        return self._target.tools()

    def close(self) -> None:
        self._target.close()


def _in_the_database(place: Path, cluster: PrivateCluster, scope: Scope) -> list[Finding]:
    """The statements that reach the database, by psycopg: what the proxy sends for a call, against the bare one."""
    bare, ours = (Database.make(cluster, scope.bulk) for _ in range(2))
    found = []
    with home(place / "home", server(place), ours.variables()) as (planarian, sandbox):
        session = planarian.remote_session(sandbox, SERVICE)
        target = _Timed(cluster.dsn(ours.name, "agent", socket=True))
        reference = _Timed(cluster.dsn(bare.name, "agent", socket=True))
        for operation in operations(scope):
            samples: tuple[list[float], list[float]] = ([], [])
            for number in range(operation.rounds + 1):
                statement = {"sql": operation.statement(number)}
                target.seconds = reference.seconds = 0.0
                reference.call("execute_sql", statement)
                session.call("execute_sql", statement, target)
                if number:
                    samples[0].append(target.seconds)
                    samples[1].append(reference.seconds)
            bar = 2.0 if operation.small and not operation.name.startswith("read") else None
            sent, alone = (Spread(tuple(values)) for values in samples)
            found.append(Finding("in the database", operation.name, sent, alone, ratio_bar=bar))
        target.close()
        reference.close()
    return found


# --- the way back ---


def _rollback(place: Path, cluster: PrivateCluster, scope: Scope) -> list[Finding]:
    """Many recorded one-row effects are undone, and done again, through Toolbox."""
    database = Database.make(cluster, scope.bulk)
    with home(place / "home", server(place), database.variables()) as (planarian, sandbox):
        start = planarian.snapshot(sandbox, name="start")
        _make_effects(planarian, sandbox, scope.effects)
        end = planarian.snapshot(sandbox, name="end")
        back, forth = [], []
        for _ in range(scope.rollbacks):
            back.append(_seconds(lambda: planarian.rollback(sandbox, start, safety=False)))
            forth.append(_seconds(lambda: planarian.rollback(sandbox, end, safety=False)))
    scenario = f"{scope.effects:,} one-row effects"
    return [
        Finding(scenario, "rollback: all undone", Spread(tuple(back)), seconds_bar=2.0),
        Finding(scenario, "rollback of the rollback: all done again", Spread(tuple(forth))),
    ]


def _make_effects(planarian: Planarian, sandbox: Sandbox, count: int) -> None:
    """A third each of INSERT, UPDATE and DELETE."""
    session = planarian.remote_session(sandbox, SERVICE)
    target = session.kind.connect()
    try:
        for number in range(count):
            statement = (
                f"INSERT INTO items VALUES ({ROWS + 1 + number}, 'new', 1)",  # noqa: S608
                f"UPDATE items SET amount = amount + 1 WHERE id = {number + 1}",  # noqa: S608
                f"DELETE FROM items WHERE id = {5000 + number}",  # noqa: S608
            )[number % 3]
            session.call("execute_sql", {"sql": statement}, target)
    finally:
        target.close()


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
