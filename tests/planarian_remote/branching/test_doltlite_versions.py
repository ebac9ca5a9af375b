"""Statepoints as commits, rollbacks as resets, forks as branches; two sandboxes, two runtimes, promotion, pruning."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from planarian_core import Planarian
from planarian_core.errors import CaptureError, CompensationError, RemoteError, RestoreError
from planarian_core.faults import POINTS
from planarian_core.interfaces import ToolResult, ToolTarget
from planarian_core.model import Domain, EffectState, RestoreContext, Statepoint
from planarian_core.prune_choice import PrunePolicy
from planarian_core.sandbox import Sandbox
from planarian_core.testing.branched_notes import Agent, Notes
from planarian_core.testing.sandbox import running, unique_seconds, until
from planarian_core.testing.workloads import remove_all

pytestmark = pytest.mark.needs("doltlite")


def _version(statepoint: Statepoint) -> str:
    [position] = statepoint.remote
    return str(position.details["version"])


def _write(agent: Agent, text: str) -> None:
    agent.do(f"INSERT INTO notes(text) VALUES ('{text}')")  # noqa: S608  # texts of this file


# --- statepoints and rollbacks ---


@pytest.mark.parametrize(
    ("backend", "process"),
    [
        ("directory", "respawn"),
        pytest.param("namespace", "criu", marks=pytest.mark.needs("root", "criu", "namespaces")),
    ],
)
def test_rows_files_and_a_running_process_come_back_together(
    notes: Notes, planarian: Planarian, backend: str, process: str
) -> None:
    sandbox = planarian.create_sandbox(notes.workspace, sandbox=backend, filesystem="copy", process=process)
    agent = Agent(planarian, sandbox)

    def report() -> None:
        lines = "\n".join(notes.texts(sandbox.id))
        sandbox.run(["sh", "-c", f"printf '%s' '{lines}' > report"])

    mark = unique_seconds()
    sandbox.spawn(["sleep", mark])
    _write(agent, "write a report")
    report()
    good = planarian.snapshot(sandbox, name="good")
    agent.do("DELETE FROM notes WHERE id < 3")
    report()
    sandbox.run(["pkill", "-xf", f"sleep {mark}"])
    assert until(lambda: not running(mark))
    context = planarian.rollback(sandbox, good)
    assert notes.texts(sandbox.id) == ["buy bread", "call home", "write a report"]
    assert sandbox.run("cat report").stdout == "buy bread\ncall home\nwrite a report"
    assert running(mark)
    assert "DELETE FROM notes WHERE id < 3" in context.to_markdown()
    assert context.safety_id is not None
    planarian.rollback(sandbox, context.safety_id)
    assert notes.texts(sandbox.id) == ["write a report"]
    assert sandbox.run("cat report").stdout == "write a report"
    agent.close()


def test_a_version_is_made_only_where_something_changed(
    notes: Notes, planarian: Planarian, sandbox: Sandbox, agent: Agent
) -> None:
    first, second = planarian.snapshot(sandbox), planarian.snapshot(sandbox)
    assert first.remote == second.remote
    log = "SELECT count(*) FROM dolt_log"
    branch = f"planarian-{sandbox.id}"
    [[commits]] = notes.outside.ask(notes.database, branch, log)
    agent.do("SELECT * FROM notes")
    agent.do("DELETE FROM notes WHERE id > 100")
    assert planarian.snapshot(sandbox).remote == first.remote
    _write(agent, "new")
    assert _version(planarian.snapshot(sandbox)) != _version(first)
    assert notes.outside.ask(notes.database, branch, log) == [[commits + 1]]


def test_any_statepoint_is_reached_from_any_other(
    notes: Notes, planarian: Planarian, sandbox: Sandbox, agent: Agent
) -> None:
    script = [
        "INSERT INTO notes(text) VALUES ('one')",
        "CREATE TABLE more(a, b, PRIMARY KEY (a, b))",
        "INSERT INTO more VALUES (1, x'00'), (2, NULL), (2.5, 'é')",
        "DROP TABLE notes",
        "CREATE VIEW notes AS SELECT a AS id, b AS text FROM more",
        "SELECT dolt_commit('-A', '-m', 'by the agent')",
        "ALTER TABLE more ADD COLUMN c DEFAULT 7",
        "PRAGMA user_version = 3",
    ]
    saved = {planarian.snapshot(sandbox).id: notes.dump(sandbox.id)}
    for sql in script:
        result = agent.send(sql)
        if sql.startswith("INSERT INTO more"):
            assert result["isError"], "a key holds no NULL in doltlite"
            agent.do("INSERT INTO more VALUES (1, x'00'), (2.5, 'é')")
        saved[planarian.snapshot(sandbox).id] = notes.dump(sandbox.id)
    ids = list(saved)
    for index in (0, -1, 3, 5, 2, 4, 1, -1, 0):
        planarian.rollback(sandbox, ids[index], safety=index % 2 == 0)
        assert notes.dump(sandbox.id) == saved[ids[index]]


def test_what_is_not_committed_outlives_no_reset(
    notes: Notes, planarian: Planarian, sandbox: Sandbox, agent: Agent
) -> None:
    """New tables survive the engine's own hard reset; and there is no safety statepoint that holds them."""
    point, before = planarian.snapshot(sandbox), notes.dump(sandbox.id)
    agent.do("CREATE TABLE brandnew(a INTEGER PRIMARY KEY AUTOINCREMENT)")
    agent.do("INSERT INTO brandnew VALUES (1)")
    planarian.rollback(sandbox, point, safety=False)
    assert notes.dump(sandbox.id) == before
    agent.do("CREATE TABLE brandnew(a)")
    assert agent.do("SELECT * FROM brandnew") == []


def test_tables_that_the_database_ignores_are_part_of_a_version(
    notes: Notes, planarian: Planarian, sandbox: Sandbox
) -> None:
    for sql in ("INSERT INTO dolt_ignore VALUES ('tmp_%', 1)", "SELECT dolt_commit('-A', '-m', 'ignore')"):
        notes.outside.ask(notes.database, "", sql)
    agent = Agent(planarian, sandbox)
    agent.do("CREATE TABLE tmp_a(a)")
    agent.do("INSERT INTO tmp_a VALUES (1)")
    point, before = planarian.snapshot(sandbox), notes.dump(sandbox.id)
    agent.do("DROP TABLE tmp_a")
    without = planarian.snapshot(sandbox)
    after = notes.dump(sandbox.id)
    assert before != after
    planarian.rollback(sandbox, point)
    assert notes.dump(sandbox.id) == before
    planarian.rollback(sandbox, without)
    assert notes.dump(sandbox.id) == after
    agent.close()


def test_violated_constraints_do_not_hinder_a_version(notes: Notes, planarian: Planarian, sandbox: Sandbox) -> None:
    notes.configure()
    agent = Agent(planarian, sandbox)
    agent.do("CREATE TABLE child(id INTEGER PRIMARY KEY, note INTEGER REFERENCES notes(id))")
    agent.do("INSERT INTO child VALUES (1, 999)")
    point, before = planarian.snapshot(sandbox), notes.dump(sandbox.id)
    agent.do("DELETE FROM child")
    planarian.rollback(sandbox, point)
    assert notes.dump(sandbox.id) == before
    agent.close()


def test_versions_outlive_a_collection_of_garbage(
    notes: Notes, planarian: Planarian, sandbox: Sandbox, agent: Agent
) -> None:
    """Also the abandoned line of work that only a safety statepoint holds."""
    point = planarian.snapshot(sandbox)
    _write(agent, "abandoned")
    context = planarian.rollback(sandbox, point)
    _write(agent, "other")
    planarian.snapshot(sandbox)
    notes.outside.ask(notes.database, "", "SELECT dolt_gc()")
    assert context.safety_id is not None
    planarian.rollback(sandbox, context.safety_id)
    assert notes.texts(sandbox.id)[-1] == "abandoned"


def test_a_version_that_is_gone_stops_the_rollback_before_anything_is_touched(
    notes: Notes, planarian: Planarian, sandbox: Sandbox, agent: Agent
) -> None:
    point = planarian.snapshot(sandbox)
    _write(agent, "abandoned")
    context = planarian.rollback(sandbox, point)
    for ref in notes.refs():
        notes.outside.ask(notes.database, "", f"SELECT dolt_tag('-d', '{ref}')")
    notes.outside.ask(notes.database, "", "SELECT dolt_gc()")
    sandbox.run("echo later > report")
    assert context.safety_id is not None
    with pytest.raises(CompensationError) as caught:
        planarian.rollback(sandbox, context.safety_id)
    assert "can't go to version" in caught.value.message
    assert (notes.workspace / "report").read_text() == "later\n"
    assert notes.texts(sandbox.id) == ["buy bread", "call home"]


def test_a_writer_that_holds_the_database_stops_the_rollback_before_anything_is_touched(
    notes: Notes, planarian: Planarian, sandbox: Sandbox, agent: Agent
) -> None:
    from planarian_remote.branching.engine import Connection
    from planarian_remote.branching.library import find

    point = planarian.snapshot(sandbox)
    _write(agent, "new")
    planarian.snapshot(sandbox)
    notes.configure("busy_timeout = 0.2\n")
    other = Connection(find(), notes.database)
    other.execute("BEGIN IMMEDIATE")
    with notes.open() as again, pytest.raises(CompensationError) as caught:
        again.rollback(again.sandbox(sandbox.id), point)
    assert caught.value.code == "service-busy"
    other.execute("ROLLBACK")
    other.close()
    planarian.rollback(sandbox, point)
    assert notes.texts(sandbox.id) == ["buy bread", "call home"]


def test_a_missing_database_fails_the_snapshot_alone(
    notes: Notes, planarian: Planarian, sandbox: Sandbox, agent: Agent
) -> None:
    planarian.snapshot(sandbox)
    notes.database.rename(notes.database.with_name("away"))
    with pytest.raises(CaptureError) as caught:
        planarian.snapshot(sandbox)
    assert caught.value.code == "service-unreachable"
    assert sandbox.run("true").exit_code == 0
    notes.database.with_name("away").rename(notes.database)
    planarian.snapshot(sandbox)


# --- branches ---


def test_two_sandboxes_never_see_or_reset_each_other_s_work(notes: Notes, planarian: Planarian) -> None:
    one, two = notes.sandbox(planarian, "one"), notes.sandbox(planarian, "two")
    first, second = Agent(planarian, one), Agent(planarian, two)
    start = planarian.snapshot(one)
    _write(first, "of one")
    _write(second, "of two")
    planarian.snapshot(two)
    planarian.rollback(one, start)
    assert notes.texts(one.id) == ["buy bread", "call home"]
    assert notes.texts(two.id) == ["buy bread", "call home", "of two"]
    assert notes.texts("") == ["buy bread", "call home"], "the base is nobody's to change"
    first.close()
    second.close()


def test_the_base_s_uncommitted_changes_are_not_left_out_silently(
    notes: Notes, planarian: Planarian, sandbox: Sandbox
) -> None:
    notes.outside.ask(notes.database, "", "INSERT INTO notes(text) VALUES ('not committed')")
    with pytest.raises(RemoteError) as caught:
        Agent(planarian, sandbox)
    assert caught.value.code == "base-uncommitted"
    notes.outside.ask(notes.database, "", "SELECT dolt_commit('-A', '-m', 'now it is')")
    agent = Agent(planarian, sandbox)
    assert len(agent.do("SELECT * FROM notes")) == 3
    notes.outside.ask(notes.database, "", "INSERT INTO notes(text) VALUES ('later')")
    assert len(agent.do("SELECT * FROM notes")) == 3, "a branch once made is its own"
    agent.close()


def test_another_base(notes: Notes, planarian: Planarian, sandbox: Sandbox) -> None:
    notes.outside.ask(notes.database, "", "SELECT dolt_branch('release')")
    notes.outside.ask(notes.database, "release", "INSERT INTO notes(text) VALUES ('released')")
    notes.outside.ask(notes.database, "release", "SELECT dolt_commit('-A', '-m', 'release')")
    notes.configure('base = "release"\n')
    with notes.open() as again:
        agent = Agent(again, again.sandbox(sandbox.id))
        assert len(agent.do("SELECT * FROM notes")) == 3
        agent.close()
    notes.configure('base = "nowhere"\n')
    with notes.open() as again, pytest.raises(RemoteError, match="does not exist"):
        Agent(again, notes.sandbox(again, "other"))
    notes.configure()


def test_a_branch_that_somebody_removed_is_never_begun_anew_from_the_base(
    notes: Notes, planarian: Planarian, sandbox: Sandbox, agent: Agent
) -> None:
    _write(agent, "mine")
    point = planarian.snapshot(sandbox)
    start = planarian.rollback(sandbox, point)
    assert start.statepoint.id == point.id
    notes.outside.ask(notes.database, "", f"SELECT dolt_branch('-D', 'planarian-{sandbox.id}')")
    with pytest.raises(CaptureError) as caught:
        planarian.snapshot(sandbox)
    assert caught.value.code == "branch-missing"
    with pytest.raises(RemoteError) as refused:
        Agent(planarian, sandbox)
    assert refused.value.code == "branch-missing"
    planarian.rollback(sandbox, point, safety=False)
    assert notes.texts(sandbox.id) == ["buy bread", "call home", "mine"]


def test_removing_a_sandbox_removes_its_branch_and_refs(notes: Notes, planarian: Planarian) -> None:
    sandbox = notes.sandbox(planarian, "short")
    agent = Agent(planarian, sandbox)
    point = planarian.snapshot(sandbox)
    _write(agent, "x")
    planarian.rollback(sandbox, point)
    assert (len(notes.branches()), len(notes.refs())) == (2, 2)
    agent.close()
    planarian.remove_sandbox(sandbox)
    assert (notes.branches(), notes.refs()) == (["main"], [])


def test_a_sandbox_can_be_removed_when_its_database_is_gone(notes: Notes, planarian: Planarian) -> None:
    sandbox = notes.sandbox(planarian, "orphan")
    planarian.snapshot(sandbox)
    notes.database.unlink()
    planarian.remove_sandbox(sandbox)
    assert [s.id for s in planarian.registry.sandboxes()] == []


def test_pruning_gives_up_the_refs_of_lines_that_no_statepoint_holds(
    notes: Notes, planarian: Planarian, sandbox: Sandbox, agent: Agent
) -> None:
    start = planarian.snapshot(sandbox)
    planarian.hold(start)
    for text in ("one", "two", "three"):
        _write(agent, text)
        planarian.rollback(sandbox, start)
    assert len(notes.refs()) == 4
    kept = planarian.snapshot(sandbox, name="kept")
    planarian.prune(PrunePolicy(keep_last=1), [sandbox])
    assert len(notes.refs()) == 1, "the sign that the sandbox was here"
    notes.outside.ask(notes.database, "", "SELECT dolt_gc()")
    _write(agent, "four")
    for statepoint in (kept, start):
        planarian.rollback(sandbox, statepoint)
        assert notes.texts(sandbox.id) == ["buy bread", "call home"]


# --- forks ---


def test_a_fork_works_on_a_branch_of_its_own(
    notes: Notes, planarian: Planarian, sandbox: Sandbox, agent: Agent
) -> None:
    _write(agent, "before")
    point = planarian.snapshot(sandbox)
    _write(agent, "source only")
    fork = planarian.fork(point, name="fork")
    theirs = Agent(planarian, fork)
    assert len(theirs.do("SELECT * FROM notes")) == 3
    _write(theirs, "fork only")
    assert notes.texts(fork.id) == ["buy bread", "call home", "before", "fork only"]
    assert notes.texts(sandbox.id) == ["buy bread", "call home", "before", "source only"]
    planarian.snapshot(fork)
    planarian.rollback(sandbox, point)
    assert notes.texts(fork.id)[-1] == "fork only"
    planarian.rollback(fork, point)
    assert notes.texts(fork.id) == notes.texts(sandbox.id) == ["buy bread", "call home", "before"]
    assert [e.state for e in planarian.effects(fork)] == [EffectState.UNDONE]
    theirs.close()


def test_a_fork_s_versions_outlive_what_its_source_gives_up(
    notes: Notes, planarian: Planarian, sandbox: Sandbox, agent: Agent
) -> None:
    start = planarian.snapshot(sandbox)
    _write(agent, "before")
    fork = planarian.fork(planarian.snapshot(sandbox), name="fork")
    own = planarian.snapshot(fork)
    planarian.rollback(sandbox, start, safety=False)
    for ref in notes.refs():
        if fork.id not in ref:
            notes.outside.ask(notes.database, "", f"SELECT dolt_tag('-d', '{ref}')")
    notes.outside.ask(notes.database, "", "SELECT dolt_gc()")
    theirs = Agent(planarian, fork)
    _write(theirs, "after")
    planarian.rollback(fork, own)
    assert notes.texts(fork.id) == ["buy bread", "call home", "before"]
    theirs.close()


def test_a_fork_that_fails_leaves_no_branch(
    notes: Notes, planarian: Planarian, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = planarian.snapshot(sandbox)
    before = notes.branches(), notes.refs()
    assert "fork.staged" in POINTS
    monkeypatch.setenv("PLANARIAN_FAULT", "fork.staged=fail")
    with pytest.raises(OSError, match="fault point"):
        planarian.fork(point)
    assert (notes.branches(), notes.refs()) == before


class _Mail:
    """A tool that sends mail, beside the database's own."""

    def __init__(self, target: ToolTarget) -> None:
        self._target = target
        self.sent: list[str] = []

    def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        if tool != "mail":
            return self._target.call(tool, arguments)
        self.sent.append(arguments["to"])
        return {"content": [{"type": "text", "text": "sent"}], "isError": False}

    def tools(self) -> Sequence[Mapping[str, Any]]:
        return self._target.tools()

    def close(self) -> None:
        self._target.close()


def _mail(planarian: Planarian, sandbox: Sandbox, *to: str) -> list[str]:
    """Mail that a sandbox sends."""
    session = planarian.remote_session(sandbox, "notes", approve_all=True)
    with closing(_Mail(session.kind.connect())) as mail:
        for one in to:
            session.call("mail", {"to": one}, mail)
        return mail.sent


def _kept(context: RestoreContext) -> list[str]:
    """What a rollback left in effect."""
    return [gap.subject for gap in context.not_undone if gap.domain is Domain.REMOTE]


def test_a_promoted_fork_s_pivots_are_its_source_s_too(notes: Notes) -> None:
    notes.configure('[services.notes.tools.mail]\nclass = "pivot"\n')
    with notes.open() as planarian:
        sandbox = notes.sandbox(planarian)
        point = planarian.snapshot(sandbox)
        assert _mail(planarian, sandbox, "own") == ["own"]
        fork = planarian.fork(point)
        early = planarian.snapshot(fork)
        _mail(planarian, fork, "abandoned")
        planarian.rollback(fork, early, accept_pivots=True)
        _mail(planarian, fork, "first", "second")
        with closing(Agent(planarian, fork)) as theirs:
            _write(theirs, "attempted")
        context = planarian.promote(fork, force=True, accept_pivots=True)
        assert _kept(context) == ["notes: mail({'to': 'own'})"]
        planarian.remove_sandbox(fork)
        states = [(e.summary.split("'")[3], e.state.value) for e in planarian.effects(sandbox)]
        assert states == [("own", "kept"), ("abandoned", "kept"), ("first", "applied"), ("second", "applied")]
        with pytest.raises(CompensationError, match=r"first.*\(made by the fork") as caught:
            planarian.rollback(sandbox, point)
        assert caught.value.code == "pivot-needs-consent"
        assert "second" in caught.value.message
        back = planarian.rollback(sandbox, point, accept_pivots=True)
        assert [name.split("'")[3] for name in _kept(back)] == ["second", "first"]
        assert notes.texts(sandbox.id) == ["buy bread", "call home"]
        with pytest.raises(RemoteError) as denied:  # equal to one that is still in effect: asked about again
            _mail(planarian, sandbox, "second")
        assert denied.value.code == "pivot-needs-approval"
        planarian.rollback(sandbox, context.statepoint)
        assert notes.texts(sandbox.id)[-1] == "attempted"
        assert [e.state.value for e in planarian.effects(sandbox)] == ["kept", "kept", "applied", "applied"]
        remove_all(planarian)


def test_pivots_of_a_fork_that_is_promoted_again_are_named_once(notes: Notes) -> None:
    notes.configure('[services.notes.tools.mail]\nclass = "pivot"\n')
    with notes.open() as planarian:
        sandbox = notes.sandbox(planarian)
        fork = planarian.fork(planarian.snapshot(sandbox))
        _mail(planarian, fork, "first")
        planarian.promote(fork)
        _mail(planarian, fork, "second")
        planarian.promote(fork, force=True)
        assert [(e.number, e.parent, e.state.value) for e in planarian.effects(sandbox)] == [
            (1, 0, "applied"), (2, 1, "applied"),
        ]  # fmt: skip
        remove_all(planarian)


def test_a_promoted_fork_gives_its_rows_to_its_source(
    notes: Notes, planarian: Planarian, sandbox: Sandbox, agent: Agent
) -> None:
    _write(agent, "before")
    point = planarian.snapshot(sandbox)
    fork = planarian.fork(point, name="attempt")
    theirs = Agent(planarian, fork)
    _write(theirs, "attempted")
    agent.do("DELETE FROM notes")
    with pytest.raises(RestoreError) as caught:
        planarian.promote(fork)
    assert caught.value.code == "promote-conflict"
    assert "DELETE FROM notes" in caught.value.message
    context = planarian.promote(fork, force=True)
    assert notes.texts(sandbox.id) == ["buy bread", "call home", "before", "attempted"]
    assert "notes" not in [gap.subject for gap in context.not_undone]
    assert [(e.summary, e.redo) for e in context.remote_undone] == [("DELETE FROM notes", False)]
    _write(agent, "goes on")
    assert notes.texts(fork.id)[-1] == "attempted"
    theirs.close()
    planarian.remove_sandbox(fork)
    notes.outside.ask(notes.database, "", "SELECT dolt_gc()")
    planarian.rollback(sandbox, context.statepoint)
    assert notes.texts(sandbox.id)[-1] == "attempted"
    assert context.safety_id is not None
    planarian.rollback(sandbox, context.safety_id)
    assert notes.texts(sandbox.id) == []
    planarian.rollback(sandbox, point)
    assert notes.texts(sandbox.id) == ["buy bread", "call home", "before"]
    assert [e.state for e in planarian.effects(sandbox)] == [EffectState.APPLIED, *[EffectState.UNDONE] * 2]


def test_what_was_adopted_of_a_fork_outlives_it_until_it_is_pruned(
    notes: Notes, planarian: Planarian, sandbox: Sandbox
) -> None:
    fork = planarian.fork(planarian.snapshot(sandbox, name="base"))
    with closing(Agent(planarian, fork)) as theirs:
        _write(theirs, "attempted")
    adopted = planarian.adopt(planarian.snapshot(fork))
    planarian.remove_sandbox(fork)
    notes.outside.ask(notes.database, "", "SELECT dolt_gc()")
    again = planarian.fork(adopted)
    assert notes.texts(again.id)[-1] == "attempted"
    planarian.remove_sandbox(again)
    planarian.rollback(sandbox, adopted)
    assert notes.texts(sandbox.id)[-1] == "attempted"
    planarian.rollback(sandbox, "base")
    held = [ref for ref in notes.refs() if ref.endswith(_version(adopted))]
    assert held == [f"planarian-{sandbox.id}.{_version(adopted)}"]
    planarian.prune(PrunePolicy(keep_last=0), [sandbox])
    assert not [ref for ref in notes.refs() if ref.endswith(_version(adopted))]


# --- several at once ---


def test_two_runtimes_at_once(notes: Notes, planarian: Planarian, tmp_path: Path) -> None:
    """Each with a sandbox of its own, writing, capturing and going back all the time: nobody's rows are touched."""
    errors: list[BaseException] = []

    def work(name: str) -> None:
        try:
            with notes.open() as own:
                sandbox = notes.sandbox(own, name)
                agent = Agent(own, sandbox)
                for round_ in range(4):
                    _write(agent, f"{name} {round_}")
                    point = own.snapshot(sandbox)
                    expected = notes_of(agent)
                    agent.do("DELETE FROM notes")
                    own.rollback(sandbox, point, safety=round_ % 2 == 0)
                    assert notes_of(agent) == expected
                agent.close()
        except BaseException as error:  # handed to the main thread
            errors.append(error)

    def notes_of(agent: Agent) -> list[str]:
        return agent.do("SELECT text FROM notes ORDER BY id")

    threads = [threading.Thread(target=work, args=(name,)) for name in ("left", "right")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for name in ("left", "right"):
        expected = ["buy bread", "call home", *(f"{name} {round_}" for round_ in range(4))]
        assert notes.texts(planarian.sandbox(name).id) == expected
    assert notes.texts("") == ["buy bread", "call home"]
