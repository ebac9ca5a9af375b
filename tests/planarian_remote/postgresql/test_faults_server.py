"""The server's side breaks: a backend or the whole server is killed, in a call and in a rollback."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from planarian_core.errors import PlanarianError
from planarian_core.testing.postgresql import PrivateCluster
from planarian_core.testing.postgresql_service import SqlWorld, sql_world

pytestmark = pytest.mark.needs("postgresql")


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[PrivateCluster]:
    """These tests end servers: not the one of the other tests."""
    with PrivateCluster(fsync=False) as cluster:
        cluster.create_role("agent")
        yield cluster


@pytest.fixture(params=["direct", pytest.param("toolbox", marks=pytest.mark.needs("npm"))])
def world(request: pytest.FixtureRequest, tmp_path: Path, own_cluster: PrivateCluster) -> Iterator[SqlWorld]:
    database = own_cluster.create_database(owner="agent")
    with sql_world(tmp_path, own_cluster, database, through=request.param) as made:
        made.run(
            "CREATE TABLE t (k int PRIMARY KEY, n int)",
            "INSERT INTO t SELECT i, i FROM generate_series(1, 100) i",
        )
        made.done("UPDATE t SET n = n + 1 WHERE k < 50")
        yield made


class Background:
    """Something that a thread does, and what it raised."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.error: BaseException | None = None
        self.result: Any = None
        self._work = work
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._work()
        except BaseException as error:
            self.error = error

    def wait(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()


@contextmanager
def locked(world: SqlWorld) -> Iterator[None]:
    """Another session has the last row; who wants it must wait."""
    connection = world.connect()
    connection.execute("BEGIN")
    connection.execute("SELECT FROM t WHERE k = 40 FOR UPDATE")
    try:
        yield
    finally:
        with suppress(psycopg.Error):
            connection.execute("ROLLBACK")
        connection.close()


def waiting_backend(world: SqlWorld) -> int:
    """The process that waits for the row."""
    with world.connect("postgres") as connection:
        for _ in range(3000):
            found = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            ).fetchone()
            if found:
                return int(found[0])
            time.sleep(0.01)
    raise AssertionError("nobody waits")


def until_it_answers(world: SqlWorld) -> None:
    for _ in range(3000):
        with suppress(psycopg.Error), world.connect("postgres") as connection:
            connection.execute("SELECT 1")
            return
        time.sleep(0.01)
    raise AssertionError("the server doesn't come back")


def kill_backend(world: SqlWorld) -> None:
    """SIGKILL to one backend: the server ends all the others and recovers."""
    os.kill(waiting_backend(world), signal.SIGKILL)
    until_it_answers(world)


def end_backend(world: SqlWorld) -> None:
    with world.connect("postgres") as connection:
        connection.execute("SELECT pg_terminate_backend(%s)", [waiting_backend(world)])


def kill_server(world: SqlWorld) -> None:
    waiting_backend(world)
    world.cluster.kill9()
    world.cluster.start()


DEATHS = [kill_backend, end_backend, kill_server]


@pytest.mark.parametrize("death", DEATHS)
def test_death_in_a_call(world: SqlWorld, death: Callable[[SqlWorld], None]) -> None:
    early, before = world.dump(), world.snapshot()
    with locked(world):
        calling = Background(lambda: world.call("UPDATE t SET n = n * 2 WHERE k BETWEEN 30 AND 60"))
        death(world)
    calling.wait()
    assert isinstance(calling.error, PlanarianError), calling.result
    assert calling.error.code == "service-unreachable"
    assert world.dump() == early
    world.done("UPDATE t SET n = 0 WHERE k = 1")
    assert world.states() == ["applied", "void", "applied"]
    world.rollback(before)
    assert world.dump() == early


@pytest.mark.parametrize("death", DEATHS)
def test_death_in_a_rollback(world: SqlWorld, death: Callable[[SqlWorld], None]) -> None:
    early, before = world.dump(), world.snapshot()
    world.done("UPDATE t SET n = n * 2 WHERE k BETWEEN 30 AND 60")
    world.done("DELETE FROM t WHERE k > 90")
    late, after = world.dump(), world.snapshot()
    with locked(world):
        going = Background(lambda: world.rollback(before))
        death(world)
    going.wait()
    assert isinstance(going.error, PlanarianError)
    assert world.dump() == late
    assert world.states() == ["applied"] * 3
    world.rollback(before)
    assert world.dump() == early
    world.rollback(after)
    assert world.dump() == late


def test_the_server_is_away(world: SqlWorld) -> None:
    before = world.snapshot()
    world.done("UPDATE t SET n = 0")
    late = world.dump()
    world.cluster.stop("immediate")
    try:
        with pytest.raises(PlanarianError) as calling:
            world.call("UPDATE t SET n = 1")
        with pytest.raises(PlanarianError) as going:
            world.rollback(before)
    finally:
        world.cluster.start()
    assert (calling.value.code, going.value.code) == ("service-unreachable", "service-unreachable")
    assert world.dump() == late
    world.rollback(before)
    assert world.states()[:2] == ["applied", "undone"]
    assert set(world.states()[2:]) <= {"void"}
