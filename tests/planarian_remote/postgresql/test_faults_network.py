"""The network to the server is cut: before a statement arrives, while it waits, and before its reply comes back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from planarian_core.errors import PlanarianError
from planarian_core.testing.postgresql import PrivateCluster
from planarian_core.testing.postgresql_service import SqlWorld, sql_world
from planarian_core.testing.relay import CuttableRelay

pytestmark = pytest.mark.needs("postgresql")


@pytest.fixture
def relay(postgresql: PrivateCluster) -> Iterator[CuttableRelay]:
    with CuttableRelay(postgresql.port) as made:
        yield made


@pytest.fixture(params=["direct", pytest.param("toolbox", marks=pytest.mark.needs("npm"))])
def world(
    request: pytest.FixtureRequest, tmp_path: Path, postgresql: PrivateCluster, database: str, relay: CuttableRelay
) -> Iterator[SqlWorld]:
    with sql_world(tmp_path, postgresql, database, through=request.param, port=relay.port) as made:
        made.run(
            "CREATE TABLE t (k int PRIMARY KEY, n int)",
            "INSERT INTO t SELECT i, i FROM generate_series(1, 100) i",
        )
        made.done("UPDATE t SET n = n + 1 WHERE k < 50")
        yield made
        relay.mend()


def in_background(work: Callable[[], Any]) -> Callable[[], PlanarianError]:
    """Begin it; the function returned waits for the error that it must end with."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def error() -> PlanarianError:
        thread.join(60)
        assert not thread.is_alive()
        assert raised, "it succeeded"
        assert isinstance(raised[0], PlanarianError), raised
        return raised[0]

    return error


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it doesn't happen")


def waits(world: SqlWorld) -> bool:
    """Whether a backend waits for a row."""
    with world.connect("postgres") as connection:
        return bool(
            connection.execute(
                "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            ).fetchall()
        )


def test_cut_before_a_call(world: SqlWorld, relay: CuttableRelay) -> None:
    early, before = world.dump(), world.snapshot()
    relay.cut()
    assert in_background(lambda: world.call("DELETE FROM t"))().code == "service-unreachable"
    relay.mend()
    assert world.dump() == early
    world.done("UPDATE t SET n = 0 WHERE k = 1")
    world.rollback(before)
    assert world.dump() == early


def test_the_reply_is_lost(world: SqlWorld, relay: CuttableRelay) -> None:
    """The statement has had its effect, and nobody was told."""
    early, before = world.dump(), world.snapshot()
    with world.opened() as (planarian, sandbox):
        session = planarian.remote_session(sandbox, "db")
        target = session.kind.connect()
        session.call("execute_sql", {"sql": "SELECT 1"}, target)
        session.call("execute_sql", {"sql": "UPDATE t SET n = n"}, target)  # all is installed and connected
        error = in_background(lambda: session.call("execute_sql", {"sql": "UPDATE t SET n = n * 2"}, target))
        relay.swallow_replies()
        wait_until(lambda: world.dump() != early)
        assert relay.wait_for_reply()
        relay.cut()
        assert error().code == "service-unreachable"
        target.close()
    relay.mend()
    late, after = world.dump(), world.snapshot()
    assert late != early
    assert world.states()[-1] == "applied"
    world.rollback(before)
    assert world.dump() == early
    world.rollback(before)
    assert world.dump() == early, "nothing is undone twice"
    world.rollback(after)
    assert world.dump() == late


def test_cut_while_a_statement_waits(world: SqlWorld, relay: CuttableRelay) -> None:
    """Its backend lives on, and would commit when it gets the row: what is settled stays so."""
    early, before = world.dump(), world.snapshot()
    with world.connect() as other:
        other.execute("BEGIN")
        other.execute("SELECT FROM t WHERE k = 40 FOR UPDATE")
        error = in_background(lambda: world.call("UPDATE t SET n = n * 2 WHERE k BETWEEN 30 AND 60"))
        wait_until(lambda: waits(world))
        relay.cut()
        assert error().code == "service-unreachable"
        relay.mend()
        settled = in_background_or_done(world.snapshot)
        time.sleep(0.3)
        other.execute("ROLLBACK")
    settled()
    wait_until(lambda: not waits(world))
    state = world.states()[-1]
    assert state in ("void", "applied")
    assert (world.dump() == early) is (state == "void")
    world.rollback(before)
    assert world.dump() == early


def in_background_or_done(work: Callable[[], Any]) -> Callable[[], None]:
    """Begin what may fail or not; the function returned waits for its end."""
    thread = threading.Thread(target=lambda: _quietly(work))
    thread.start()

    def wait() -> None:
        thread.join(60)
        assert not thread.is_alive()

    return wait


def _quietly(work: Callable[[], Any]) -> None:
    try:
        work()
    except PlanarianError:
        return


def test_cut_in_a_rollback(world: SqlWorld, relay: CuttableRelay) -> None:
    early, before = world.dump(), world.snapshot()
    world.done("UPDATE t SET n = n * 2")
    world.done("DELETE FROM t WHERE k > 90")
    late = world.dump()
    with world.connect() as other:
        other.execute("BEGIN")
        other.execute("SELECT FROM t WHERE k = 40 FOR UPDATE")
        error = in_background(lambda: world.rollback(before))
        wait_until(lambda: waits(world))
        relay.cut()
        error()
        assert world.dump() == late
        other.execute("ROLLBACK")
    relay.mend()
    world.rollback(before)
    assert world.dump() == early
    assert world.states() == ["applied", "undone", "undone"]
