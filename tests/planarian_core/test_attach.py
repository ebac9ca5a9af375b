"""Picking a sandbox up again, on fakes: at its head, as it was left, after a stop, a death and a reboot."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from planarian_core import Planarian
from planarian_core.errors import CompensationError, RestoreError, SandboxError
from planarian_core.model import Domain, RestoreContext
from planarian_core.sandbox import Sandbox
from planarian_core.testing.fakes import FakeService


def _write(sandbox: Sandbox, name: str, text: str) -> None:
    (Path(sandbox.record.spec.layer) / name).write_text(text)


def _read(sandbox: Sandbox, name: str) -> str | None:
    path = Path(sandbox.record.spec.layer) / name
    return path.read_text() if path.exists() else None


@pytest.fixture
def sandbox(fake_planarian: Planarian, workspace: Path) -> Sandbox:
    return fake_planarian.create_sandbox(workspace, name="box")


def _die(planarian: Planarian, sandbox: Sandbox) -> None:
    """As after a reboot: nothing runs, and what is recorded is of another boot."""
    record = sandbox.record
    assert record.live is not None
    planarian.plugins.sandbox("fake").stop(record.spec, record.live)
    planarian.registry.update_sandbox(replace(record, live=replace(record.live, boot_id="an earlier boot")))


def _attached(found: RestoreContext | None) -> RestoreContext:
    assert found is not None
    return found


def test_one_that_runs_is_left_alone(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    assert fake_planarian.attach(sandbox) is None
    fake_planarian.snapshot(sandbox, name="one")
    _write(sandbox, "f", "later")
    assert fake_planarian.attach(sandbox) is None
    assert _read(sandbox, "f") == "later"
    assert len(fake_planarian.registry.statepoints()) == 1


@pytest.mark.parametrize("how", ["stopped", "rebooted"])
def test_it_comes_back_at_its_head_and_what_was_left_is_kept(
    fake_planarian: Planarian, sandbox: Sandbox, how: str
) -> None:
    _write(sandbox, "f", "one")
    one = fake_planarian.snapshot(sandbox, name="one")
    _write(sandbox, "f", "left")
    if how == "stopped":
        sandbox.stop()
    else:
        _die(fake_planarian, sandbox)
    restored = _attached(fake_planarian.attach(sandbox))
    assert (restored.action, restored.statepoint) == ("attach", one)
    assert "was picked up again at statepoint" in restored.to_markdown()
    assert sandbox.run(["cat", "f"]).stdout == "one"
    assert fake_planarian.registry.branch(sandbox.id).head == one.id
    assert restored.safety_id is not None
    fake_planarian.rollback(sandbox, restored.safety_id)
    assert _read(sandbox, "f") == "left"
    assert fake_planarian.attach(sandbox) is None


def test_without_a_difference_no_statepoint_is_added(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    fake_planarian.snapshot(sandbox)
    _die(fake_planarian, sandbox)
    assert _attached(fake_planarian.attach(sandbox)).safety_id is None
    assert len(fake_planarian.registry.statepoints()) == 1
    assert sandbox.run(["true"]).exit_code == 0


def test_as_left_goes_on_with_the_files_as_they_were(
    fake_planarian: Planarian, sandbox: Sandbox, service: FakeService
) -> None:
    _write(sandbox, "f", "one")
    one = fake_planarian.snapshot(sandbox, name="one")
    _write(sandbox, "f", "left")
    service.put("a", "1")
    _die(fake_planarian, sandbox)
    restored = _attached(fake_planarian.attach(sandbox, as_left=True))
    assert sandbox.run(["cat", "f"]).stdout == "left"
    assert service.rows == {"a": "1"}, "the remote side is as it was left, too"
    assert restored.statepoint.parent_id == one.id
    assert restored.statepoint.description == "the files as they were left"
    assert any(gap.domain is Domain.PROCESSES for gap in restored.not_undone)
    fake_planarian.rollback(sandbox, "one")
    assert _read(sandbox, "f") == "one"


def test_where_nothing_was_captured_it_goes_on_as_left_and_says_so(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    _write(sandbox, "f", "left")
    _die(fake_planarian, sandbox)
    restored = _attached(fake_planarian.attach(sandbox))
    assert sandbox.run(["cat", "f"]).stdout == "left"
    assert any("nothing had been captured yet" in gap.reason for gap in restored.not_undone)


def test_the_remote_side_comes_back_to_the_head_too(
    fake_planarian: Planarian, sandbox: Sandbox, service: FakeService
) -> None:
    fake_planarian.snapshot(sandbox)
    service.put("a", "1")
    service.put("mail", "sent", pivot=True)
    _die(fake_planarian, sandbox)
    with pytest.raises(CompensationError) as caught:
        fake_planarian.attach(sandbox)
    assert caught.value.code == "pivot-needs-consent"
    restored = _attached(fake_planarian.attach(sandbox, accept_pivots=True))
    assert [effect.summary for effect in restored.remote_undone] == ["a: None -> 1"]


def test_a_head_that_can_not_be_restored_leaves_the_other_way(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    _write(sandbox, "f", "left")
    fake_planarian.snapshot(sandbox)
    _die(fake_planarian, sandbox)
    shutil.rmtree(fake_planarian.home / "fake-files")
    with pytest.raises(RestoreError) as caught:
        fake_planarian.attach(sandbox)
    assert "planarian attach --as-left" in caught.value.remedy
    fake_planarian.attach(sandbox, as_left=True)
    assert sandbox.run(["cat", "f"]).stdout == "left"


def test_files_that_are_gone_altogether_come_back(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    _write(sandbox, "f", "one")
    fake_planarian.snapshot(sandbox)
    _die(fake_planarian, sandbox)
    shutil.rmtree(sandbox.record.spec.layer)
    restored = _attached(fake_planarian.attach(sandbox))
    assert restored.safety_id is None
    assert any("gone altogether" in gap.reason for gap in restored.not_undone)
    assert _read(sandbox, "f") == "one"


def test_a_fresh_fork_comes_back_at_what_it_was_forked_from(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    _write(sandbox, "f", "one")
    fork = fake_planarian.fork(fake_planarian.snapshot(sandbox))
    _write(fork, "f", "left")
    _die(fake_planarian, fork)
    assert _attached(fake_planarian.attach(fork)).safety_id is not None
    assert _read(fork, "f") == "one"


def test_what_was_cut_off_is_recovered_first(
    fake_planarian: Planarian, sandbox: Sandbox, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_planarian.snapshot(sandbox, name="one")
    service.put("a", "1")
    monkeypatch.setenv("PLANARIAN_FAULT", "rollback.compensated=fail")
    with pytest.raises(RestoreError):
        fake_planarian.rollback(sandbox, "one", safety=False)
    monkeypatch.delenv("PLANARIAN_FAULT")
    with pytest.raises(SandboxError) as caught:
        fake_planarian.attach(sandbox)
    assert caught.value.code == "sandbox-unfinished"
    assert caught.value.remedy == "planarian recover"


@pytest.mark.parametrize("point", ["snapshot.files", "rollback.staged", "rollback.switched"])
def test_a_failure_loses_nothing_and_it_can_be_tried_again(
    fake_planarian: Planarian, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    _write(sandbox, "f", "one")
    fake_planarian.snapshot(sandbox)
    _write(sandbox, "f", "left")
    _die(fake_planarian, sandbox)
    monkeypatch.setenv("PLANARIAN_FAULT", f"{point}=fail")
    with pytest.raises(Exception, match="fault point"):
        fake_planarian.attach(sandbox)
    monkeypatch.delenv("PLANARIAN_FAULT")
    assert _read(sandbox, "f") == "left"
    fake_planarian.recover()
    sandbox.stop()  # what failed half-way had let it run as it was left
    fake_planarian.attach(sandbox)
    assert _read(sandbox, "f") in ("one", "left")
    texts = set()
    for statepoint in fake_planarian.registry.statepoints(sandbox.id):
        if statepoint.status == "committed":
            fake_planarian.rollback(sandbox, statepoint, safety=False)
            texts.add(_read(sandbox, "f"))
    assert texts == {"one", "left"}
