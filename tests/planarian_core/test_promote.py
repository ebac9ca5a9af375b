"""Promotion on fakes: conflicts, lineage, the remote part, forks of forks, and what becomes of shared artefacts."""

from __future__ import annotations

from pathlib import Path

import pytest

from planarian_core import Planarian, quota
from planarian_core.errors import CaptureError, CompensationError, LineageError, RestoreError
from planarian_core.model import Domain, Status
from planarian_core.promote import Conflict
from planarian_core.prune_choice import PrunePolicy
from planarian_core.sandbox import Sandbox
from planarian_core.testing.fakes import FakeService


def _write(sandbox: Sandbox, name: str, text: str) -> None:
    (Path(sandbox.record.spec.layer) / name).write_text(text)


def _read(sandbox: Sandbox, name: str) -> str | None:
    path = Path(sandbox.record.spec.layer) / name
    return path.read_text() if path.exists() else None


@pytest.fixture
def source(fake_planarian: Planarian, workspace: Path) -> Sandbox:
    """With the statepoint ``base``."""
    source = fake_planarian.create_sandbox(workspace, name="source")
    _write(source, "f", "base")
    fake_planarian.snapshot(source, name="base")
    return source


@pytest.fixture
def fork(fake_planarian: Planarian, source: Sandbox) -> Sandbox:
    fork = fake_planarian.fork("base", of=source, name="attempt")
    _write(fork, "f", "attempted")
    return fork


def test_a_fork_s_state_becomes_its_source_s_head(fake_planarian: Planarian, source: Sandbox, fork: Sandbox) -> None:
    base = fake_planarian.resolve(source, "base")
    restored = fake_planarian.promote(fork)
    assert _read(source, "f") == "attempted"
    head = fake_planarian.resolve(source, "@head")
    assert restored.statepoint == head
    assert (head.sandbox_id, head.parent_id, head.status) == (source.id, base.id, Status.COMMITTED)
    assert head.description == "promoted from the fork attempt"
    captured = fake_planarian.resolve(fork, "@head")
    assert captured.parent_id == base.id
    assert head.files is not None
    assert (head.owner(head.files), head.files.stored) == (captured.id, 0), "shared, not stored twice"
    assert restored.to_markdown().startswith("# The environment took over a fork's state, kept as statepoint")
    assert restored.sandbox_id == source.id
    _write(fork, "f", "the fork goes on")
    assert _read(source, "f") == "attempted"
    assert fake_planarian.registry.operations() == []


def test_what_the_source_had_stays_reachable(fake_planarian: Planarian, source: Sandbox, fork: Sandbox) -> None:
    _write(source, "f", "unsaved")
    restored = fake_planarian.promote(fork, force=True)
    assert restored.safety_id is not None
    fake_planarian.rollback(source, restored.safety_id)
    assert _read(source, "f") == "unsaved"
    fake_planarian.rollback(source, restored.statepoint)
    assert _read(source, "f") == "attempted"


def test_everything_that_the_source_did_since_is_a_conflict(
    fake_planarian: Planarian, source: Sandbox, fork: Sandbox, service: FakeService
) -> None:
    assert fake_planarian.preview_promotion(fork).conflicts == ()
    later = fake_planarian.snapshot(source, description="tried\nsomething")
    source.run(["true"])
    _write(source, "g", "new")
    service.put("a", "1")
    preview = fake_planarian.preview_promotion(fork)
    assert (preview.fork, preview.source) == (fork.id, source.id)
    assert preview.conflicts == (
        Conflict("statepoint", f"statepoint {later.id} tried something"),
        Conflict("calls", "1 tool calls since its last statepoint"),
        Conflict("files", "1 files changed since its last statepoint: g"),
        Conflict("remote", "fake-service: a: None -> 1"),
    )
    before = len(fake_planarian.registry.statepoints())
    with pytest.raises(RestoreError, match="tried something") as caught:
        fake_planarian.promote(fork)
    assert caught.value.code == "promote-conflict"
    assert f"planarian promote {fork.id} --force" in caught.value.remedy
    assert len(fake_planarian.registry.statepoints()) == before, "nothing was even captured"
    assert (_read(source, "f"), _read(source, "g")) == ("base", "new")
    fake_planarian.promote(fork, force=True)
    assert (_read(source, "f"), _read(source, "g")) == ("attempted", None)


def test_a_source_that_went_back_is_no_conflict_at_the_fork_point_and_one_before_it(
    fake_planarian: Planarian, source: Sandbox
) -> None:
    fake_planarian.snapshot(source, name="point")
    fork = fake_planarian.fork("point", of=source)
    fake_planarian.snapshot(source, name="abandoned")
    fake_planarian.rollback(source, "point")
    assert fake_planarian.preview_promotion(fork).conflicts == ()
    fake_planarian.rollback(source, "base")
    kinds = [conflict.kind for conflict in fake_planarian.preview_promotion(fork).conflicts]
    assert kinds == ["moved"]


def test_remote_services_stay_where_they_are(
    fake_planarian: Planarian, source: Sandbox, fork: Sandbox, service: FakeService
) -> None:
    service.put("a", "after the fork point")
    restored = fake_planarian.promote(fork, force=True)
    assert service.rows == {"a": "after the fork point"}
    assert restored.remote_undone == ()
    assert restored.statepoint.remote[0].position == "1"
    assert not any(gap.domain is Domain.REMOTE for gap in restored.statepoint.coverage.missing), "the fork was fenced"
    service.put("b", "later")
    fake_planarian.rollback(source, restored.statepoint)
    assert service.rows == {"a": "after the fork point"}


def test_what_a_fork_did_in_a_branch_of_a_service_is_said_to_stay_there(
    fake_planarian: Planarian, source: Sandbox, service: FakeService
) -> None:
    service.forkable = True
    fork = fake_planarian.fork("base", of=source)
    restored = fake_planarian.promote(fork)
    assert [gap.subject for gap in restored.not_undone if "its own branch" in gap.reason] == ["fake-service"]


def test_a_fork_of_a_fork(fake_planarian: Planarian, source: Sandbox, fork: Sandbox) -> None:
    inner = fake_planarian.fork(fake_planarian.snapshot(fork))
    _write(inner, "f", "inner")
    assert fake_planarian.promote(inner).sandbox_id == fork.id
    assert (_read(fork, "f"), _read(source, "f")) == ("inner", "base")
    restored = fake_planarian.promote(fork)
    assert restored.sandbox_id == source.id
    for gone in (inner, fork):
        fake_planarian.remove_sandbox(gone)
    _write(source, "f", "later")
    fake_planarian.rollback(source, restored.statepoint)
    assert _read(source, "f") == "inner"
    again = fake_planarian.fork(restored.statepoint)
    assert _read(again, "f") == "inner"


def test_a_fork_removed_afterwards_leaves_what_is_shared(
    fake_planarian: Planarian, source: Sandbox, fork: Sandbox
) -> None:
    restored = fake_planarian.promote(fork)
    _write(source, "f", "later")
    fake_planarian.remove_sandbox(fork)
    assert fake_planarian.registry.statepoints(fork.id) == []
    fake_planarian.rollback(source, restored.statepoint)
    assert _read(source, "f") == "attempted"
    fake_planarian.remove_sandbox(source)
    assert list((fake_planarian.home / "fake-files").iterdir()) == []
    assert list((fake_planarian.home / "statepoints").iterdir()) == []


def test_a_source_removed_first_is_refused_and_one_that_is_gone_is_named(
    fake_planarian: Planarian, source: Sandbox, fork: Sandbox
) -> None:
    with pytest.raises(LineageError, match="grew from"):
        fake_planarian.remove_sandbox(source)
    fake_planarian.registry.forget_sandbox(source.id)
    with pytest.raises(LineageError) as caught:
        fake_planarian.promote(fork)
    assert caught.value.code == "source-gone"


@pytest.mark.parametrize("which", ["source", "fork", "both"])
def test_stopped_ones_are_promoted_and_the_source_runs_then(
    fake_planarian: Planarian, source: Sandbox, fork: Sandbox, which: str
) -> None:
    for name, sandbox in (("source", source), ("fork", fork)):
        if which in (name, "both"):
            sandbox.stop()
    fake_planarian.promote(fork)
    assert source.run(["cat", "f"]).stdout == "attempted"


def test_what_is_no_fork_can_not_be_promoted(fake_planarian: Planarian, source: Sandbox) -> None:
    with pytest.raises(LineageError) as caught:
        fake_planarian.promote(source)
    assert caught.value.code == "not-a-fork"


def test_a_fork_that_can_not_be_captured_changes_nothing(
    fake_planarian: Planarian, source: Sandbox, fork: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANARIAN_FAULT", "snapshot.files=fail")
    with pytest.raises(CaptureError):
        fake_planarian.promote(fork)
    assert _read(source, "f") == "base"
    assert fake_planarian.registry.operations() == []


@pytest.mark.parametrize("point", ["promote.begun", "promote.shared", "rollback.begun", "rollback.switched"])
def test_a_failure_half_way_leaves_the_source_as_it_was(
    fake_planarian: Planarian, source: Sandbox, fork: Sandbox, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    _write(source, "g", "unsaved")
    monkeypatch.setenv("PLANARIAN_FAULT", f"{point}=fail")
    with pytest.raises((OSError, RestoreError)):
        fake_planarian.promote(fork, force=True)
    monkeypatch.delenv("PLANARIAN_FAULT")
    fake_planarian.recover()
    assert fake_planarian.registry.operations() == []
    assert (_read(source, "f"), _read(source, "g")) == ("base", "unsaved")
    assert _read(fork, "f") == "attempted"
    fake_planarian.promote(fork, force=True)
    assert _read(source, "f") == "attempted"


def test_a_remote_service_that_is_gone_is_named_before_anything_happens(
    fake_planarian: Planarian, source: Sandbox, fork: Sandbox, service: FakeService
) -> None:
    service.name = "renamed"
    with pytest.raises(CompensationError, match="isn't configured"):
        fake_planarian.promote(fork)
    assert _read(source, "f") == "base"


def test_what_was_promoted_is_accounted_for_when_its_fork_is_gone(
    fake_planarian: Planarian, source: Sandbox, fork: Sandbox
) -> None:
    promoted = fake_planarian.promote(fork).statepoint
    captured = fake_planarian.resolve(fork, "@head")
    assert captured.files is not None
    assert captured.files.stored
    stored = quota.stored(fake_planarian.registry)
    fake_planarian.remove_sandbox(fork)
    assert quota.stored(fake_planarian.registry) == stored
    _write(source, "f", "later")
    last = fake_planarian.snapshot(source)
    assert last.files is not None
    fake_planarian.prune(PrunePolicy(keep_last=0, keep_named=False), [source])
    assert fake_planarian.registry.statepoint(promoted.id).status is Status.PRUNED
    assert quota.stored(fake_planarian.registry) == last.files.stored


# --- adoption ---


def test_a_fork_s_statepoint_outlives_the_fork_in_its_source(
    fake_planarian: Planarian, source: Sandbox, fork: Sandbox
) -> None:
    base = fake_planarian.resolve(source, "base")
    _write(source, "f", "the source went on")
    captured = fake_planarian.snapshot(fork)
    adopted = fake_planarian.adopt(captured, "tried")
    assert (adopted.sandbox_id, adopted.parent_id, adopted.description) == (source.id, base.id, "tried")
    assert fake_planarian.resolve(source, "@head") == base, "the source isn't moved"
    assert _read(source, "f") == "the source went on"
    fake_planarian.remove_sandbox(fork)
    again = fake_planarian.fork(adopted)
    assert _read(again, "f") == "attempted"
    fake_planarian.remove_sandbox(again)
    assert fake_planarian.prune(PrunePolicy(keep_last=0), [source]).statepoints == (adopted.id,)
    assert not list((fake_planarian.home / "fake-files").glob(captured.id)), "the last that needed it is gone"


def test_what_belongs_to_no_fork_is_not_adopted(fake_planarian: Planarian, source: Sandbox) -> None:
    with pytest.raises(LineageError) as raised:
        fake_planarian.adopt(fake_planarian.resolve(source, "base"))
    assert raised.value.code == "not-a-fork"
