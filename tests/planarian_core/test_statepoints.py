"""Snapshot, rollback and fork on fakes: the order of steps, the remote part, evidence, and failures half-way."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from planarian_core import Planarian, hookimpl
from planarian_core.errors import (
    CaptureError,
    CompensationConflict,
    CompensationError,
    LineageError,
    RestoreError,
    SandboxError,
)
from planarian_core.model import RemoteEffect, SandboxRecord, Statepoint, Status
from planarian_core.sandbox import Sandbox
from planarian_core.testing.fakes import FakeFilesystem, FakeService


def _write(sandbox: Sandbox, name: str, text: str) -> None:
    (Path(sandbox.record.spec.layer) / name).write_text(text)


def _read(sandbox: Sandbox, name: str) -> str | None:
    path = Path(sandbox.record.spec.layer) / name
    return path.read_text() if path.exists() else None


@pytest.fixture
def sandbox(fake_planarian: Planarian, workspace: Path) -> Sandbox:
    return fake_planarian.create_sandbox(workspace, name="box")


def test_rollback_restores_files_and_remote_rows_together(
    fake_planarian: Planarian, sandbox: Sandbox, service: FakeService
) -> None:
    _write(sandbox, "report", "1 row")
    service.put("a", "1")
    before = fake_planarian.snapshot(sandbox, name="one")
    _write(sandbox, "report", "2 rows")
    service.put("a", "changed")
    service.put("b", "2")
    restored = fake_planarian.rollback(sandbox, "one")
    assert _read(sandbox, "report") == "1 row"
    assert service.rows == {"a": "1"}
    assert [e.position for e in restored.remote_undone] == ["3", "2"], "newest first"
    assert restored.statepoint == before
    assert fake_planarian.registry.branch(sandbox.id).head == before.id


def test_a_rollback_can_be_rolled_back(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    _write(sandbox, "f", "one")
    fake_planarian.snapshot(sandbox, name="one")
    _write(sandbox, "f", "two")
    restored = fake_planarian.rollback(sandbox, "one")
    assert restored.safety_id is not None
    assert _read(sandbox, "f") == "one"
    fake_planarian.rollback(sandbox, restored.safety_id)
    assert _read(sandbox, "f") == "two"


def test_without_safety_there_is_no_way_back(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    fake_planarian.snapshot(sandbox, name="one")
    count = len(fake_planarian.registry.statepoints())
    assert fake_planarian.rollback(sandbox, "one", safety=False).safety_id is None
    assert len(fake_planarian.registry.statepoints()) == count


def test_a_statepoint_is_never_restorable_after_a_failed_capture(
    fake_planarian: Planarian, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    for point in ("begun", "prepared", "files", "remote", "captured", "durable"):
        monkeypatch.setenv("PLANARIAN_FAULT", f"snapshot.{point}=fail")
        with pytest.raises(CaptureError, match="snapshot failed") as caught:
            fake_planarian.snapshot(sandbox, name="failed")
        monkeypatch.delenv("PLANARIAN_FAULT")
        assert "goes on running" in caught.value.state
        last = fake_planarian.registry.statepoints(sandbox.id)[-1]
        assert last.status is Status.DISCARDED
        assert "fault point" in last.error
        with pytest.raises(LineageError, match="not committed"):
            fake_planarian.rollback(sandbox, last.id)
        assert not list((fake_planarian.home / "statepoints").iterdir())
        assert not list((fake_planarian.home / "fake-files").glob("*")), "nothing of it stays on the disk"
        assert not fake_planarian.registry.operations()
    assert fake_planarian.registry.branch(sandbox.id).head is None
    fake_planarian.snapshot(sandbox, name="failed")


@pytest.mark.parametrize("point", ["begun", "staged"])
def test_a_rollback_that_fails_early_changes_nothing(
    fake_planarian: Planarian, sandbox: Sandbox, service: FakeService, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    fake_planarian.snapshot(sandbox, name="one")
    _write(sandbox, "f", "two")
    service.put("a", "1")
    monkeypatch.setenv("PLANARIAN_FAULT", f"rollback.{point}=fail")
    with pytest.raises(OSError, match="fault point"):
        fake_planarian.rollback(sandbox, "one")
    assert _read(sandbox, "f") == "two"
    assert service.rows == {"a": "1"}
    assert not fake_planarian.registry.operations()
    assert fake_planarian.sandboxes.running(sandbox.record)


@pytest.mark.parametrize("point", ["stopped", "compensated", "switched", "restored"])
def test_a_rollback_that_fails_half_way_ends_in_the_old_state(
    fake_planarian: Planarian, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    fake_planarian.snapshot(sandbox, name="one")
    _write(sandbox, "f", "two")
    monkeypatch.setenv("PLANARIAN_FAULT", f"rollback.{point}=fail")
    with pytest.raises(RestoreError, match="fault point") as caught:
        fake_planarian.rollback(sandbox, "one")
    assert "back where it was" in caught.value.state
    assert _read(sandbox, "f") == "two"
    assert fake_planarian.sandboxes.running(sandbox.record)
    assert not fake_planarian.registry.operations()


def test_a_rollback_that_fails_after_undoing_remote_effects_does_them_again(
    fake_planarian: Planarian, sandbox: Sandbox, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_planarian.snapshot(sandbox, name="one")
    _write(sandbox, "f", "two")
    service.put("a", "1")
    monkeypatch.setenv("PLANARIAN_FAULT", "rollback.compensated=fail")
    with pytest.raises(RestoreError) as caught:
        fake_planarian.rollback(sandbox, "one")
    assert caught.value.code == "rollback-failed"
    assert (_read(sandbox, "f"), service.rows) == ("two", {"a": "1"})
    assert not fake_planarian.registry.operations()
    monkeypatch.delenv("PLANARIAN_FAULT")
    fake_planarian.rollback(sandbox, "one")
    assert (_read(sandbox, "f"), service.rows) == (None, {})


def test_without_a_safety_statepoint_recover_finishes_what_was_undone_in_part(
    fake_planarian: Planarian, sandbox: Sandbox, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_planarian.snapshot(sandbox, name="one")
    _write(sandbox, "f", "two")
    service.put("a", "1")
    monkeypatch.setenv("PLANARIAN_FAULT", "rollback.compensated=fail")
    with pytest.raises(RestoreError) as caught:
        fake_planarian.rollback(sandbox, "one", safety=False)
    assert caught.value.code == "rollback-unfinished"
    assert "planarian recover" in caught.value.remedy
    monkeypatch.delenv("PLANARIAN_FAULT")
    with pytest.raises(SandboxError, match="cut off"):
        sandbox.run(["true"])
    (recovered,) = fake_planarian.recover()
    assert "finished" in recovered.result
    assert _read(sandbox, "f") is None
    assert service.rows == {}
    assert [c.undone for c in service.calls] == [True], "undone once"


def test_a_lost_connection_in_the_middle_of_compensation_loses_and_repeats_nothing(
    fake_planarian: Planarian, sandbox: Sandbox, service: FakeService
) -> None:
    fake_planarian.snapshot(sandbox, name="one")
    for number in range(4):
        service.put(f"k{number}", "v")
    service.fail_at = 2
    with pytest.raises(CompensationError):
        fake_planarian.rollback(sandbox, "one")
    assert len(service.rows) == 4, "the two that were undone are done again"
    fake_planarian.rollback(sandbox, "one")
    assert service.rows == {}
    assert all(call.undone for call in service.calls)


def test_a_rollback_of_a_rollback_does_remote_effects_again(
    fake_planarian: Planarian, sandbox: Sandbox, service: FakeService
) -> None:
    fake_planarian.snapshot(sandbox, name="one")
    service.put("a", "1")
    service.put("a", "2")
    safety = fake_planarian.rollback(sandbox, "one").safety_id
    service.put("b", "3")
    assert safety is not None
    restored = fake_planarian.rollback(sandbox, safety)
    assert service.rows == {"a": "2"}
    assert [(e.position, e.redo) for e in (*restored.remote_undone, *restored.remote_redone)] == [
        ("3", False),
        ("1", True),
        ("2", True),
    ]


def test_a_conflict_is_reported_and_overwrites_nothing(
    fake_planarian: Planarian, sandbox: Sandbox, service: FakeService
) -> None:
    fake_planarian.snapshot(sandbox, name="one")
    service.put("a", "agent")
    service.rows["a"] = "somebody else"
    _write(sandbox, "f", "two")
    with pytest.raises(CompensationConflict):
        fake_planarian.rollback(sandbox, "one")
    assert service.rows == {"a": "somebody else"}
    assert _read(sandbox, "f") == "two"
    assert fake_planarian.sandboxes.running(sandbox.record)


def test_a_pivot_needs_consent(fake_planarian: Planarian, sandbox: Sandbox, service: FakeService) -> None:
    fake_planarian.snapshot(sandbox, name="one")
    service.put("mail", "sent", pivot=True)
    with pytest.raises(CompensationError) as caught:
        fake_planarian.rollback(sandbox, "one")
    assert caught.value.code == "pivot-needs-consent"
    restored = fake_planarian.rollback(sandbox, "one", accept_pivots=True)
    assert any("irreversible" in gap.reason for gap in restored.not_undone)
    assert service.rows == {"mail": "sent"}


def test_planarian_approve_consents_to_pivots(tmp_path: Path, workspace: Path, service: FakeService) -> None:
    from planarian_core.testing.fakes import FakePlugin

    asked: list[RemoteEffect] = []

    class Approver:
        @hookimpl
        def planarian_approve(self, effects: tuple[RemoteEffect, ...]) -> bool:
            asked.extend(effects)
            return True

    with Planarian.open(tmp_path / "home", plugins=[FakePlugin([service]), Approver()]) as planarian:
        sandbox = planarian.create_sandbox(workspace, sandbox="fake", filesystem="fake", process="fake")
        planarian.snapshot(sandbox, name="one")
        service.put("mail", "sent", pivot=True)
        planarian.rollback(sandbox, "one")
    assert [e.summary for e in asked] == ["mail: None -> sent"]


def test_a_fork_is_isolated_and_fenced_off_from_a_service_that_cannot_branch(
    fake_planarian: Planarian, sandbox: Sandbox, service: FakeService
) -> None:
    _write(sandbox, "f", "one")
    point = fake_planarian.snapshot(sandbox, name="one")
    fork, restored = fake_planarian.fork_with_context(point)
    _write(fork, "f", "fork")
    assert _read(sandbox, "f") == "one"
    assert any(gap.subject == service.name for gap in restored.not_undone)
    later = fake_planarian.snapshot(fork, name="in the fork")
    assert later.remote == ()
    assert any(gap.subject == service.name for gap in later.coverage.missing)
    service.put("a", "1")
    fake_planarian.rollback(fork, "one")
    assert service.rows == {"a": "1"}, "a fork's rollback must not undo the source's effects"


def test_a_branching_service_is_used_by_the_fork(
    fake_planarian: Planarian, sandbox: Sandbox, service: FakeService
) -> None:
    service.forkable = True
    fork = fake_planarian.fork(fake_planarian.snapshot(sandbox))
    assert [p.service for p in fake_planarian.snapshot(fork).remote] == [service.name]


@pytest.mark.parametrize("point", ["begun", "staged", "switched", "restored"])
def test_a_fork_that_fails_leaves_nothing(
    fake_planarian: Planarian, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    statepoint = fake_planarian.snapshot(sandbox)
    monkeypatch.setenv("PLANARIAN_FAULT", f"fork.{point}=fail")
    with pytest.raises(OSError, match="fault point"):
        fake_planarian.fork(statepoint)
    assert [r.id for r in fake_planarian.registry.sandboxes()] == [sandbox.id]
    assert [p.name for p in (fake_planarian.home / "sandboxes").iterdir()] == [sandbox.id]
    assert not fake_planarian.registry.operations()


def test_outcomes_are_appended_and_outlive_rollbacks(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    point = fake_planarian.snapshot(sandbox, name="one")
    fake_planarian.append_outcome(point, "tests failed", status="failed")
    restored = fake_planarian.rollback(sandbox, "one")
    fake_planarian.append_outcome("one", "tests pass", status="succeeded", of=sandbox)
    assert [o.text for o in restored.outcomes] == ["tests failed"]
    assert [o.text for o in fake_planarian.registry.outcomes(point.id)] == ["tests failed", "tests pass"]
    assert fake_planarian.registry.statepoint(point.id) == point, "the statepoint itself never changes"
    text = fake_planarian.ledger(sandbox).to_markdown()
    assert "tests pass" in text
    assert "tests failed" in restored.to_markdown()


def test_names_ids_and_ancestors_resolve(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    points = [fake_planarian.snapshot(sandbox, name=f"p{n}") for n in range(3)]
    resolve = fake_planarian.resolve
    assert resolve(sandbox, "@head") == points[2]
    assert resolve(sandbox, "@head~2") == points[0]
    assert resolve(sandbox, "p2~") == points[1]
    assert resolve(sandbox, points[1].id[3:9]) == points[1]
    for wrong, code in (
        ("nothing", "statepoint-unknown"),
        ("@head~9", "statepoint-unknown"),
        ("sp-", "statepoint-ambiguous"),
        ("", "statepoint-unknown"),
        ("@head~x", "statepoint-unknown"),
    ):
        with pytest.raises(LineageError) as caught:
            resolve(sandbox, wrong)
        assert caught.value.code == code, wrong
    with pytest.raises(LineageError, match="is taken"):
        fake_planarian.snapshot(sandbox, name="p1")
    for bad in ("@head", "sp-123", "a~1", " a", "a\nb", "x" * 101):
        with pytest.raises(LineageError):
            fake_planarian.snapshot(sandbox, name=bad)


def test_a_statepoint_of_another_sandbox_is_refused(
    fake_planarian: Planarian, sandbox: Sandbox, tmp_path: Path
) -> None:
    point = fake_planarian.snapshot(sandbox)
    (tmp_path / "other").mkdir()
    other = fake_planarian.create_sandbox(tmp_path / "other")
    with pytest.raises(LineageError) as caught:
        fake_planarian.rollback(other, point)
    assert caught.value.code == "statepoint-foreign"
    assert sandbox.id in caught.value.remedy


def test_a_deleted_artefact_is_found_before_anything_is_touched(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    point = fake_planarian.snapshot(sandbox)
    _write(sandbox, "f", "two")
    FakeFilesystem(fake_planarian.home).discard(point.id)
    with pytest.raises(RestoreError, match="are gone"):
        fake_planarian.rollback(sandbox, point)
    assert _read(sandbox, "f") == "two"
    assert fake_planarian.sandboxes.running(sandbox.record)


def test_a_snapshot_in_the_background_holds_the_next_call_back(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    slow = threading.Event()

    class Slow:
        @hookimpl(tryfirst=True)
        def planarian_capture(self, service: Any) -> None:
            slow.wait(10)

    fake_planarian.plugins._pluggy.register(Slow())
    future = fake_planarian.snapshot(sandbox, name="background", wait=False)
    ran = threading.Event()

    def call() -> None:
        sandbox.run(["true"])
        ran.set()

    caller = threading.Thread(target=call)
    caller.start()
    assert not ran.wait(0.2), "the call must wait for the snapshot"
    slow.set()
    caller.join(10)
    assert ran.is_set()
    assert future.result(10).status is Status.COMMITTED


def test_a_snapshot_that_is_cancelled_before_it_began_lets_the_sandbox_go(
    fake_planarian: Planarian, sandbox: Sandbox
) -> None:
    busy = threading.Event()
    before = [fake_planarian._workers.submit(busy.wait, 10) for _ in range(4)]
    future = fake_planarian.snapshot(sandbox, wait=False)
    assert future.cancel()
    fake_planarian.with_config(lock_timeout=1.0)
    assert sandbox.run(["true"]).exit_code == 0
    busy.set()
    assert all(done.result(10) for done in before)


def test_two_runtimes_snapshot_one_sandbox_one_after_the_other(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    from planarian_core.testing.fakes import FakePlugin

    with Planarian.open(fake_planarian.home, plugins=[FakePlugin()]) as second:
        futures = []
        for number in range(3):
            for runtime in (fake_planarian, second):
                handle = runtime.sandbox(sandbox.id)
                futures.append(runtime.snapshot(handle, name=f"{number}-{id(runtime)}", wait=False))
        points = [future.result(30) for future in futures]
    assert len({p.id for p in points}) == 6
    chain = {p.id: p.parent_id for p in points}
    heads = [i for i in chain if i not in chain.values()]
    assert len(heads) == 1, "one line: no two statepoints have the same parent"


def test_hooks_hear_of_statepoints_rollbacks_and_forks(tmp_path: Path, workspace: Path) -> None:
    from planarian_core.testing.fakes import FakePlugin

    heard: list[str] = []

    class Listener:
        @hookimpl
        def planarian_statepoint_committed(self, statepoint: Statepoint) -> None:
            heard.append(f"committed {statepoint.name}")

        @hookimpl
        def planarian_rolled_back(self, sandbox: SandboxRecord, statepoint: Statepoint, safety: Statepoint) -> None:
            heard.append(f"rolled back to {statepoint.name} from {safety.automatic}")

        @hookimpl
        def planarian_forked(self, source: SandboxRecord, sandbox: SandboxRecord, statepoint: Statepoint) -> None:
            heard.append(f"forked {source.id != sandbox.id}")

        @hookimpl
        def planarian_describe_state(self, sandbox: SandboxRecord, run: Any) -> Mapping[str, str]:
            return {"score": run(["echo", "42"]).stdout.strip()}

        @hookimpl
        def planarian_should_snapshot(self, trigger: str, calls: int) -> bool | None:
            return {"milestone:gold": True, "milestone:lead": False}.get(trigger)

    with Planarian.open(tmp_path / "home", plugins=[FakePlugin(), Listener()]) as planarian:
        sandbox = planarian.create_sandbox(workspace, sandbox="fake", filesystem="fake", process="fake")
        assert planarian.snapshot(sandbox, name="one").facts == {"score": "42"}
        planarian.rollback(sandbox, "one")
        planarian.fork("one", of=sandbox)
        assert planarian.should_snapshot(sandbox, "milestone:gold")
        assert not planarian.should_snapshot(sandbox, "milestone:lead")
        planarian.with_config(policy="every:2")
        assert not planarian.should_snapshot(sandbox)
        sandbox.run(["true"])
        sandbox.run(["true"])
        assert planarian.should_snapshot(sandbox)
        planarian.snapshot(sandbox)
        assert not planarian.should_snapshot(sandbox)
    assert heard == ["committed one", "committed ", "rolled back to one from True", "forked True", "committed "]


def test_a_listener_that_fails_undoes_nothing(tmp_path: Path, workspace: Path) -> None:
    from planarian_core.testing.fakes import FakePlugin

    class Broken:
        @hookimpl
        def planarian_statepoint_committed(self) -> None:
            raise RuntimeError("broken plugin")

        @hookimpl
        def planarian_describe_state(self) -> Mapping[str, str]:
            raise RuntimeError("no score today")

    with Planarian.open(tmp_path / "home", plugins=[FakePlugin(), Broken()]) as planarian:
        sandbox = planarian.create_sandbox(workspace, sandbox="fake", filesystem="fake", process="fake")
        point = planarian.snapshot(sandbox, name="one")
        assert any("no score today" in gap.reason for gap in point.coverage.missing)
        assert planarian.resolve(sandbox, "one") == point


def test_a_sandbox_whose_init_is_gone_says_how_it_comes_back(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    fake_planarian.snapshot(sandbox, name="one")
    fake_planarian.plugins.sandbox("fake").stop(sandbox.record.spec, None)
    with pytest.raises(SandboxError) as caught:
        sandbox.run(["true"])
    assert caught.value.code == "sandbox-dead"
    assert "planarian attach" in caught.value.remedy
    with pytest.raises(SandboxError):
        fake_planarian.snapshot(sandbox)
    restored = fake_planarian.rollback(sandbox, "@head")
    assert restored.safety_id is not None
    assert sandbox.run(["true"]).exit_code == 0


def test_a_source_that_forks_grew_from_is_not_removed(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    fork = fake_planarian.fork(fake_planarian.snapshot(sandbox))
    with pytest.raises(LineageError, match="grew from") as caught:
        fake_planarian.remove_sandbox(sandbox)
    assert fork.id in caught.value.remedy
    fake_planarian.remove_sandbox(fork)
    fake_planarian.remove_sandbox(sandbox)
    assert fake_planarian.registry.sandboxes() == []
    assert not list((fake_planarian.home / "sandboxes").iterdir())
    assert not list((fake_planarian.home / "statepoints").iterdir())


def test_forks_are_removed_by_several_threads_at_once(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    point = fake_planarian.snapshot(sandbox)
    with ThreadPoolExecutor(4) as threads:
        for _ in range(5):
            list(threads.map(fake_planarian.remove_sandbox, [fake_planarian.fork(point) for _ in range(8)]))
    assert [record.id for record in fake_planarian.registry.sandboxes()] == [sandbox.id]


def test_a_fork_s_name_must_be_free(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    point = fake_planarian.snapshot(sandbox)
    with pytest.raises(LineageError) as caught:
        fake_planarian.fork(point, name="box")
    assert caught.value.code == "sandbox-name-taken"
    assert fake_planarian.fork(point, name="other").record.name == "other"


def test_of_two_sandboxes_that_are_made_at_once_one_gets_the_name(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    point = fake_planarian.snapshot(sandbox)
    both = threading.Barrier(2)
    taken: list[str] = []

    def fork() -> None:
        both.wait(10)
        try:
            fake_planarian.fork(point, name="same")
        except LineageError as error:
            taken.append(error.code)

    threads = [threading.Thread(target=fork) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert taken == ["sandbox-name-taken"]
    assert [r.name for r in fake_planarian.registry.sandboxes()] == ["box", "same"]
    assert fake_planarian.registry.operations() == []
