"""Declared services end to end: planarian.toml, calls through a session, snapshots, rollbacks, and back again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from planarian_core import Planarian
from planarian_core.errors import CompensationConflict, CompensationError, RemoteError
from planarian_core.model import EffectState
from planarian_core.sandbox import Sandbox
from planarian_core.testing import mcp_servers
from planarian_core.testing.fakes import FakePlugin
from planarian_remote.mcp_target import open_target

pytestmark = pytest.mark.needs("npm")


class Agent:
    """Calls two services on behalf of a sandbox, as two proxies do."""

    def __init__(self, planarian: Planarian, sandbox: Sandbox) -> None:
        self.sessions = {name: planarian.remote_session(sandbox, name) for name in ("docs", "memory")}
        self.targets = {}
        for name, session in self.sessions.items():
            assert session.kind.server is not None
            self.targets[name] = open_target(session.kind.server)

    def call(self, service: str, tool: str, **arguments: object) -> str:
        result = self.sessions[service].call(tool, arguments, self.targets[service])
        assert not result.get("isError"), result
        text: str = result["content"][0]["text"]
        return text

    def close(self) -> None:
        for target in self.targets.values():
            target.close()


@pytest.fixture
def home(tmp_path: Path, files: Path, memory_file: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    undone = files.parent / "undone"
    (home / "planarian.toml").write_text(f"""
[services.docs]
kind = "declared"
include = "filesystem"
command = {mcp_servers.as_configuration(mcp_servers.filesystem(files, undone))}
settings = {{ undone = {json.dumps(str(undone))} }}
[services.docs.tools.create_directory]
class = "pivot"
reason = "folders are for ever"

[services.memory]
kind = "declared"
include = "memory"
command = {mcp_servers.as_configuration(mcp_servers.memory())}
env = {{ MEMORY_FILE_PATH = {json.dumps(str(memory_file))} }}
""")
    return home


@pytest.fixture
def planarian(home: Path) -> Iterator[Planarian]:
    with Planarian.open(home, plugins=[FakePlugin()]) as opened:
        yield opened


@pytest.fixture
def box(planarian: Planarian, workspace: Path) -> Sandbox:
    return planarian.create_sandbox(workspace, name="box", sandbox="fake", filesystem="fake", process="fake")


@pytest.fixture
def agent(planarian: Planarian, box: Sandbox) -> Iterator[Agent]:
    made = Agent(planarian, box)
    yield made
    made.close()


def _state(files: Path, memory_file: Path, box: Sandbox) -> tuple[object, ...]:
    layer = Path(box.record.spec.layer)
    return (
        {str(p.relative_to(files)): p.read_bytes() for p in files.rglob("*") if p.is_file()},
        sorted(memory_file.read_text().split("\n")) if memory_file.exists() else [],
        {str(p.relative_to(layer)): p.read_bytes() for p in layer.rglob("*") if p.is_file()},
    )


def test_files_and_two_services_come_back_together_and_go_forward_again(
    planarian: Planarian, box: Sandbox, agent: Agent, files: Path, memory_file: Path
) -> None:
    def state() -> tuple[object, ...]:
        return _state(files, memory_file, box)

    report = Path(box.record.spec.layer, "report")
    agent.call("docs", "write_file", path="plan.md", content="one")
    agent.call("memory", "create_entities", entities=[{"name": "A", "entityType": "t", "observations": ["x"]}])
    report.write_text("one")
    first = planarian.snapshot(box), state()
    agent.call("docs", "edit_file", path="plan.md", edits=[{"oldText": "one", "newText": "two"}])
    agent.call("docs", "move_file", source="plan.md", destination="done.md")
    agent.call("docs", "write_file", path="plan.md", content="next")
    agent.call("memory", "delete_entities", entityNames=["A"])
    agent.call("memory", "create_entities", entities=[{"name": "A", "entityType": "u", "observations": []}])
    report.write_text("two")
    second = planarian.snapshot(box), state()

    restored = planarian.rollback(box, first[0])
    assert state() == first[1]
    assert [effect.service for effect in restored.remote_undone] == ["docs"] * 3 + ["memory"] * 2
    planarian.rollback(box, second[0])
    assert state() == second[1]
    assert restored.safety_id is not None
    planarian.rollback(box, first[0])
    agent.call("memory", "add_observations", observations=[{"entityName": "A", "contents": ["other way"]}])
    third = planarian.snapshot(box), state()
    for point, wanted in (second, third, first, second):
        planarian.rollback(box, point)
        assert state() == wanted


def test_a_conflict_stops_a_rollback_before_anything_is_touched(
    planarian: Planarian, box: Sandbox, agent: Agent, files: Path, memory_file: Path
) -> None:
    point = planarian.snapshot(box)
    Path(box.record.spec.layer, "work").write_text("kept")
    agent.call("docs", "write_file", path="a", content="ours")
    agent.call("memory", "create_relations", relations=[{"from": "A", "to": "B", "relationType": "is"}])
    (files / "a").write_text("theirs")
    before = _state(files, memory_file, box)
    with pytest.raises(CompensationConflict, match="the content of a"):
        planarian.rollback(box, point)
    assert _state(files, memory_file, box) == before
    assert [e.state for e in planarian.effects(box)] == [EffectState.APPLIED] * 2


def test_classes_are_in_the_log_and_a_declared_pivot_waits_for_consent(
    planarian: Planarian, box: Sandbox, agent: Agent, files: Path
) -> None:
    with pytest.raises(RemoteError, match="folders are for ever") as caught:
        agent.call("docs", "create_directory", path="new")
    assert (caught.value.code, list(files.iterdir())) == ("pivot-needs-approval", [])
    point = planarian.snapshot(box)
    (waiting,) = planarian.approvals()
    planarian.approve(waiting.id)
    agent.call("docs", "create_directory", path="new")
    agent.call("docs", "write_file", path="new/a", content="a")
    assert agent.call("docs", "read_text_file", path="new/a") == "a"
    assert [(e.tool, e.call_class.value) for e in planarian.effects(box)] == [
        ("create_directory", "pivot"),
        ("write_file", "compensable"),
    ]
    assert "modification times" in planarian.effects(box)[1].reason
    with pytest.raises(CompensationError, match="can't be undone"):
        planarian.rollback(box, point)
    planarian.rollback(box, point, accept_pivots=True)
    assert [p.name for p in files.rglob("*")] == ["new"]


def test_an_effect_that_nobody_can_settle_is_settled_by_the_user(
    planarian: Planarian, box: Sandbox, agent: Agent, files: Path
) -> None:
    (files / "a").write_text("old")
    session, target = agent.sessions["docs"], agent.targets["docs"]
    calls = iter([target.call])

    class Cut:
        """Loses the connection at the call itself, while somebody else writes."""

        tools, close = target.tools, target.close

        @staticmethod
        def call(tool: str, arguments: object) -> object:
            if tool == "read_text_file":
                return next(calls)(tool, {"path": "a"})
            (files / "a").write_text("theirs")
            raise RemoteError("the connection is lost", code="service-unreachable")

    with pytest.raises(RemoteError, match="lost"):
        session.call("write_file", {"path": "a", "content": "new"}, Cut)  # type: ignore[arg-type]  # a rough stand-in
    for attempt in (lambda: planarian.snapshot(box), lambda: agent.call("docs", "read_text_file", path="a")):
        with pytest.raises(CompensationError) as caught:
            attempt()
        assert caught.value.code == "effect-undecided"
    planarian.settle_effect(box, "docs", 1, "void")
    assert agent.call("docs", "read_text_file", path="a") == "theirs"
    planarian.snapshot(box)


def test_a_fork_is_fenced_off(planarian: Planarian, box: Sandbox, agent: Agent) -> None:
    agent.call("docs", "write_file", path="a", content="a")
    fork = planarian.fork(planarian.snapshot(box))
    other = planarian.remote_session(fork, "docs")
    with pytest.raises(RemoteError) as caught:
        other.call("read_text_file", {"path": "a"}, agent.targets["docs"])
    assert caught.value.code == "service-fenced"
