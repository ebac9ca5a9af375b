"""A service's name that is pointed at another server: noticed before anything is called there."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from planarian_core import Planarian
from planarian_core.errors import CompensationError, PlanarianError
from planarian_core.interfaces import TargetServer
from planarian_core.model import EffectState
from planarian_core.testing import mcp_servers
from planarian_core.testing.fakes import FakePlugin
from planarian_remote.configuration import Table

_STORE = """
[services.notes]
kind = "declared"
command = {command}
{more}
[services.notes.tools.put]
class = "compensable"
before.pair = {{ tool = "get", arguments = {{ key = "${{call.key}}" }}, value = "${{result.structuredContent.value}}" }}
expect.pair = "${{call.value}}"
undo = [{{ calls = [{{ tool = "put", arguments = {{ key = "${{call.key}}", value = "${{before.pair}}" }} }}] }}]
"""


class World:
    """A home whose one service can be moved to another server (``a`` or ``b``), and what that holds."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self.kind = kind
        self.home = folder / "home"
        self.home.mkdir()
        (folder / "workspace").mkdir()
        for name in "ab":
            self._make(name)
        self.name("a")
        with self.open() as planarian:
            planarian.create_sandbox(folder / "workspace", sandbox="fake", filesystem="fake", process="fake")

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.db"

    def _make(self, name: str) -> None:
        script = "CREATE TABLE pairs (key TEXT PRIMARY KEY, value TEXT); INSERT INTO pairs VALUES ('k', 'old');"
        if self.kind == "doltlite":
            from planarian_remote.branching.engine import Connection
            from planarian_remote.branching.library import find

            connection = Connection(find(), self.path(name), create=True)
            for statement in [*script.split(";")[:-1], "SELECT dolt_commit('-A', '-m', 'made')"]:
                connection.execute(statement)
            connection.close()
            return
        with closing(sqlite3.connect(self.path(name))) as database:
            database.executescript(script)

    def name(self, name: str, more: str = "") -> None:
        """Write the configuration."""
        if self.kind == "declared":
            command = mcp_servers.as_configuration(mcp_servers.store(self.path(name)))
            table = _STORE.format(command=command, more=more)
        else:
            kind = {"sqlite": "sql", "doltlite": "branching"}[self.kind]
            table = f'[services.notes]\nkind = "{kind}"\ndialect = "{self.kind}"\npath = "{self.path(name)}"\n{more}\n'
        (self.home / "planarian.toml").write_text(table)

    @contextmanager
    def open(self) -> Iterator[Planarian]:
        with Planarian.open(self.home, plugins=[FakePlugin()]) as planarian:
            yield planarian

    def put(self, value: str) -> None:
        with self.open() as planarian:
            session = planarian.remote_session(planarian.sandbox(), "notes")
            with closing(session.kind.connect()) as target:
                if self.kind == "declared":
                    session.call("put", {"key": "k", "value": value}, target)
                else:
                    session.call("execute_sql", {"sql": f"UPDATE pairs SET value = '{value}'"}, target)  # noqa: S608

    def snapshot(self) -> str:
        with self.open() as planarian:
            return planarian.snapshot(planarian.sandbox()).id

    def rollback(self, statepoint: str) -> None:
        with self.open() as planarian:
            planarian.rollback(planarian.sandbox(), statepoint)

    def states(self) -> list[EffectState]:
        with self.open() as planarian:
            return [effect.state for effect in planarian.effects(planarian.sandbox())]

    def value(self, name: str) -> str:
        """What the server holds, looked at past everything (of doltlite: what the sandbox sees)."""
        if self.kind == "doltlite":
            with self.open() as planarian:
                session = planarian.remote_session(planarian.sandbox(), "notes")
                with closing(session.kind.connect()) as target:
                    found = session.call("execute_sql", {"sql": "SELECT value FROM pairs"}, target)
            return str(found["content"][0]["text"])
        with closing(sqlite3.connect(self.path(name))) as database:
            return str(database.execute("SELECT value FROM pairs").fetchone()[0])

    def refused(self, doing: Callable[[], object]) -> None:
        before = self.path("b").read_bytes()
        with pytest.raises(PlanarianError) as caught:
            doing()
        assert (caught.value.code, caught.value.state) == ("service-changed", "nothing was called or changed")
        assert "planarian.toml" in caught.value.remedy
        assert self.kind == "declared" or self.path("b").read_bytes() == before
        assert self.kind == "doltlite" or self.value("b") == "old"


@pytest.fixture(
    params=["declared", "sqlite", pytest.param("doltlite", marks=pytest.mark.needs("doltlite"))],
)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return World(tmp_path, request.param)


def test_calls_and_rollbacks_are_refused_and_nothing_is_touched_there(world: World) -> None:
    early = world.snapshot()
    world.put("new")
    world.name("b")
    world.refused(lambda: world.put("newer"))
    world.refused(lambda: world.rollback(early))
    assert world.states() == [EffectState.APPLIED]
    world.name("a")
    assert "new" in world.value("a")
    world.rollback(early)
    assert "old" in world.value("a")
    world.name("b")
    world.refused(lambda: world.put("newer"))


@pytest.mark.parametrize("first", [True, False])
def test_a_call_that_nobody_saw_end_is_not_looked_for_there(
    world: World, first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There it would be found not to have happened: its undo would be lost."""
    early = world.snapshot()
    if not first:
        world.put("before")
    monkeypatch.setenv("PLANARIAN_FAULT", "call.done=fail")
    with pytest.raises(OSError, match=r"call\.done"):
        world.put("new")
    monkeypatch.delenv("PLANARIAN_FAULT")
    world.name("b")
    world.refused(lambda: world.put("newer"))
    world.refused(world.snapshot)
    world.refused(lambda: world.rollback(early))
    world.name("a")
    world.rollback(early)
    assert "old" in world.value("a")


def test_the_same_database_at_another_place_is_told_by_what_it_holds(tmp_path: Path) -> None:
    world = World(tmp_path, "sqlite")
    early = world.snapshot()
    world.put("new")
    world.path("a").rename(world.path("b"))
    world.name("b")
    world.put("newer")
    world.rollback(early)
    assert world.value("b") == "old"


def test_the_same_server_at_another_place_is_told_by_the_user(tmp_path: Path) -> None:
    world = World(tmp_path, "declared")
    early = world.snapshot()
    world.put("new")
    world.path("a").rename(world.path("b"))
    world.name("b")
    with pytest.raises(CompensationError) as caught:
        world.rollback(early)
    identity = caught.value.remedy[caught.value.remedy.index('identity = "server-') :].partition(" there")[0]
    world.name("b", identity)
    world.rollback(early)
    assert world.value("b") == "old"


def test_what_may_change_without_making_it_another_server() -> None:
    def identity(server: TargetServer, **raw: object) -> str:
        return Table("notes", raw).identity({"folder": "/srv"}, server=server)

    command = ("npx", "-y", "@some/server@1.2.3", "/srv/notes@home")
    first = identity(TargetServer(command, env={"API_TOKEN": "one", "FILE": "a"}))
    assert identity(TargetServer(("npx", "-y", "@some/server@2.0.0", command[3]), env={"FILE": "a"})) == first
    assert identity(TargetServer(command, env={"FILE": "b"})) != first
    assert identity(TargetServer((*command[:3], "/srv/notes@work"), env={"FILE": "a"})) != first
    assert identity(TargetServer(command, env={"FILE": "b"}), identity="mine") == "mine"
    addressed = identity(TargetServer(url="https://me:secret@notes.example/mcp"))
    assert identity(TargetServer(url="https://notes.example/mcp", headers={"authorization": "x"})) == addressed
    assert identity(TargetServer(url="https://notes.example/other")) != addressed
