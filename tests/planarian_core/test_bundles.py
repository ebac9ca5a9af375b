"""Bundles between homes, on fakes: what comes along, under which ids, what does not, and what stands in the way."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from planarian_core import Planarian
from planarian_core.bundle_format import BundleError
from planarian_core.errors import ConfigurationError, LineageError, RestoreError
from planarian_core.model import Domain, Gap, Limits, Network, Statepoint, Status
from planarian_core.sandbox import Sandbox
from planarian_core.testing.fakes import FakePlugin, FakeService
from planarian_core.testing.oracle import assert_same, describe


@pytest.fixture
def box(fake_planarian: Planarian, workspace: Path) -> Sandbox:
    return fake_planarian.create_sandbox(workspace, name="box", env={"WHO": "me"}, limits=Limits(0, 0))


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Planarian]:
    """Another home with other ideas and no key."""
    with Planarian.open(tmp_path / "other", plugins=[FakePlugin()]) as planarian:
        planarian.with_config(sandbox="fake", filesystem="fake", process="fake")
        yield planarian


def _deps(planarian: Planarian, box: Sandbox) -> Statepoint:
    """Two statepoints, each with an outcome; the second is ``deps``."""
    box.run("echo one > f; mkdir d; ln -s ../f d/link")
    planarian.append_outcome(planarian.snapshot(box, name="one", description="first"), "it was a start")
    box.run("echo two > f")
    deps = planarian.snapshot(box, name="deps", description="dependencies installed")
    planarian.append_outcome(deps, "numpy breaks", status="failed", author="agent")
    box.run("echo three > f")
    return deps


def test_a_statepoint_comes_to_another_home(
    fake_planarian: Planarian, other: Planarian, box: Sandbox, tmp_path: Path
) -> None:
    deps = _deps(fake_planarian, box)
    before = describe(fake_planarian.home / "fake-files" / deps.id)
    file = fake_planarian.export(deps, tmp_path / "deps.zst")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    imported = other.import_(file)
    record = imported.record
    assert (record.id, record.name, record.closed, record.live) == (box.id, "box", True, None)
    assert_same(describe(record.spec.layer), before)
    head = other.resolve(imported, "@head")
    assert (head.id, head.name, head.description) == (deps.id, "deps", "dependencies installed")
    assert head.status is Status.COMMITTED
    other.rollback(imported, "deps")
    assert imported.run("cat f d/link").stdout == "two\ntwo\n"
    assert_same(describe(other.home / "origins" / box.id), describe(fake_planarian.home / "origins" / box.id))


def test_evidence_and_lineage_come_along(
    fake_planarian: Planarian, other: Planarian, box: Sandbox, tmp_path: Path
) -> None:
    deps = _deps(fake_planarian, box)
    imported = other.import_(fake_planarian.export(deps, tmp_path / "b"))
    one, head, *more = other.registry.statepoints(imported.id)
    assert more == []
    assert (one.status, one.name, one.description, one.files) == (Status.PRUNED, "one", "first", None)
    assert head.parent_id == one.id == deps.parent_id
    assert [(o.text, o.status, o.author) for o in other.registry.outcomes(head.id)] == [
        ("numpy breaks", "failed", "agent")
    ]
    assert [o.text for o in other.registry.outcomes(one.id)] == ["it was a start"]
    assert "numpy breaks" in other.ledger(imported).to_markdown()
    with pytest.raises(LineageError):
        other.resolve(imported, "one")


def test_the_evidence_above_a_fork_is_its_source_s(fake_planarian: Planarian, other: Planarian, box: Sandbox) -> None:
    deps = _deps(fake_planarian, box)
    fork = fake_planarian.fork(deps, name="fork")
    point = fake_planarian.snapshot(fork, name="forked")
    imported = other.import_(fake_planarian.export(point, fake_planarian.home / "b"))
    points = other.registry.statepoints(imported.id)
    assert [p.name for p in points] == ["one", "deps", "forked"]
    assert {p.sandbox_id for p in points} == {fork.id}
    assert other.registry.branch(imported.id).forked_from is None


def test_the_same_bundle_twice(fake_planarian: Planarian, other: Planarian, box: Sandbox, tmp_path: Path) -> None:
    deps = _deps(fake_planarian, box)
    file = fake_planarian.export(deps, tmp_path / "b")
    first = other.import_(file)
    with pytest.raises(BundleError) as caught:
        other.import_(file)
    assert caught.value.code == "bundle-known"
    assert first.id in caught.value.message
    assert "--again" in caught.value.remedy
    again = other.import_with_report(file, again=True)
    assert {again.record.id, again.statepoint.id}.isdisjoint({box.id, deps.id})
    assert again.record.name == "", "the name is taken"
    assert [p.name for p in other.registry.statepoints(again.record.id)] == ["one", "deps"]
    second = other.sandbox(again.record.id)
    other.rollback(second, "@head")
    assert second.run("cat f").stdout == "two\n"
    assert other.registry.outcomes(again.statepoint.id)[0].text == "numpy breaks"
    with pytest.raises(BundleError, match="in this home already"):
        fake_planarian.import_(file)
    other.remove_sandbox(first)
    other.import_(file)


def test_a_name_that_is_taken(fake_planarian: Planarian, other: Planarian, box: Sandbox, tmp_path: Path) -> None:
    file = fake_planarian.export(_deps(fake_planarian, box), tmp_path / "b")
    with pytest.raises(LineageError):
        other.import_(file, name="not/a/name")
    assert other.import_(file, name="mine").record.name == "mine"


def test_only_committed_statepoints_can_be_exported(fake_planarian: Planarian, box: Sandbox, tmp_path: Path) -> None:
    deps = _deps(fake_planarian, box)
    fake_planarian.registry.discard(deps, "a test says so")
    with pytest.raises(LineageError):
        fake_planarian.export("deps", tmp_path / "b", of=box)
    assert list(tmp_path.glob("b*")) == []


def test_a_statepoint_without_its_files_is_refused(fake_planarian: Planarian, box: Sandbox, tmp_path: Path) -> None:
    deps = _deps(fake_planarian, box)
    shutil.rmtree(fake_planarian.home / "fake-files" / deps.id)
    with pytest.raises(RestoreError):
        fake_planarian.export(deps, tmp_path / "b")
    assert list(tmp_path.glob("b*")) == []


# --- the file ---


def test_a_file_is_replaced_only_by_force(fake_planarian: Planarian, box: Sandbox, tmp_path: Path) -> None:
    deps = _deps(fake_planarian, box)
    file = tmp_path / "b"
    file.write_text("precious")
    with pytest.raises(BundleError, match="is there already"):
        fake_planarian.export(deps, file)
    assert file.read_text() == "precious"
    fake_planarian.export_with_report(deps, file, force=True)
    assert file.read_bytes() != b"precious"
    assert list(tmp_path.glob("b.*")) == []


def test_a_symlink_in_the_place_of_the_partial_file_is_not_followed(
    fake_planarian: Planarian, box: Sandbox, tmp_path: Path
) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "b.partial").symlink_to(tmp_path / "victim")
    with pytest.raises(BundleError):
        fake_planarian.export(_deps(fake_planarian, box), tmp_path / "b")
    assert (tmp_path / "victim").read_text() == "precious"


@pytest.mark.parametrize("target", ["missing/b", ".", "/proc/b"])
def test_a_file_that_can_not_be_written(fake_planarian: Planarian, box: Sandbox, tmp_path: Path, target: str) -> None:
    with pytest.raises(BundleError) as caught:
        fake_planarian.export(_deps(fake_planarian, box), tmp_path / target)
    assert caught.value.remedy


def test_what_is_no_bundle(other: Planarian, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "text").write_text("x" * 1000)
    (tmp_path / "empty").touch()
    for name in ("missing", "fifo", ".", "text", "empty"):
        with pytest.raises((BundleError, ConfigurationError)) as caught:
            other.import_(tmp_path / name)
        assert caught.value.remedy
    assert other.registry.sandboxes() == []


# --- trust ---


def test_another_home_s_bundle_is_not_trusted_and_one_with_the_key_is(
    fake_planarian: Planarian, other: Planarian, box: Sandbox, tmp_path: Path
) -> None:
    record = box.record
    fake_planarian.registry.update_sandbox(replace(record, spec=replace(record.spec, network=Network.HOST)))
    file = fake_planarian.export(_deps(fake_planarian, box), tmp_path / "b")
    key = fake_planarian.home / "bundle.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    strange = other.import_with_report(file, check=True)
    assert not strange.authentic
    assert strange.record.spec.limits == Limits(), "no more than a new sandbox has"
    for known in (
        other.import_with_report(file, check=True, key_file=key),
        other.import_with_report(file, check=True, trust_images=True),
    ):
        assert known.record.spec.limits == Limits(0, 0)
        assert known.record.spec.network is Network.HOST
        assert known.record.spec.env == {"WHO": "me"}
    assert strange.record.spec.network is Network.NONE
    assert strange.record.spec.env == {}, "the fake sandbox isn't isolated: LD_PRELOAD would act on the host"
    assert {gap.subject for gap in strange.gaps} >= {"network host", "environment variables"}
    assert other.registry.sandboxes() == [], "a check imports nothing"


def test_a_key_that_others_can_read_is_no_key(fake_planarian: Planarian, box: Sandbox, tmp_path: Path) -> None:
    deps = _deps(fake_planarian, box)
    key = tmp_path / "key"
    key.write_text("k" * 64)
    key.chmod(0o644)
    with pytest.raises(ConfigurationError, match="others than you"):
        fake_planarian.export_with_report(deps, tmp_path / "b", key_file=key)
    key.chmod(0o600)
    key.write_text("short")
    with pytest.raises(ConfigurationError, match="too short"):
        fake_planarian.export_with_report(deps, tmp_path / "b", key_file=key)


def test_paths_are_made_here_and_hidden_ones_only_grow(
    fake_planarian: Planarian, other: Planarian, box: Sandbox, tmp_path: Path
) -> None:
    other.with_config(hidden=("/srv/hidden-here",))
    record = box.record
    spec = replace(record.spec, hidden=("/srv/hidden-there", "relative", "/a/../b", "/"))
    fake_planarian.registry.update_sandbox(replace(record, spec=spec))
    made = other.import_(fake_planarian.export(_deps(fake_planarian, box), tmp_path / "b")).record.spec
    assert made.hidden == ("/srv/hidden-here", "/srv/hidden-there")
    assert made.home == str(other.home)
    for path in (made.layer, made.origin):
        assert Path(path).is_relative_to(other.home)


# --- remote services ---


def test_the_remote_stays_as_it_is_and_out_of_reach(
    fake_planarian: Planarian, box: Sandbox, service: FakeService, tmp_path: Path
) -> None:
    service.put("row", "1")
    deps = _deps(fake_planarian, box)
    assert deps.remote
    service.put("row", "2")
    file = fake_planarian.export(deps, tmp_path / "b")
    with Planarian.open(tmp_path / "third", plugins=[FakePlugin([service])]) as third:
        third.with_config(sandbox="fake", filesystem="fake", process="fake")
        imported = third.import_(file)
        third.rollback(imported, "@head")
        assert service.rows == {"row": "2"}, "a bundle undoes nothing in a service that others use"
        assert Gap(
            Domain.REMOTE, service.name, "came with a bundle: the service stays as it is, and is out of reach"
        ) in (third.resolve(imported, "@head").coverage.missing)
        assert third.registry.fences(imported.id)


# --- hosts ---


def test_a_host_that_can_not_restore_it_says_why(fake_planarian: Planarian, box: Sandbox, tmp_path: Path) -> None:
    file = fake_planarian.export(_deps(fake_planarian, box), tmp_path / "b")
    with Planarian.open(tmp_path / "bare") as bare, pytest.raises(BundleError) as caught:
        bare.import_(file)
    assert caught.value.code == "bundle-unfit"
    assert "no sandbox backend 'fake'" in caught.value.message
    assert "plugin" in caught.value.remedy


@pytest.mark.parametrize("workspace_path", ["/", "/etc", "/proc/x", "relative", "/a/../b", "/tmp/x\n", "~", "HOME"])  # noqa: S108
def test_a_workspace_that_would_cover_the_system_is_refused(
    fake_planarian: Planarian, other: Planarian, box: Sandbox, tmp_path: Path, workspace_path: str
) -> None:
    places = {"~": str(Path.home()), "HOME": str(other.home / "x")}
    record = box.record
    spec = replace(record.spec, workspace=places.get(workspace_path, workspace_path))
    fake_planarian.registry.update_sandbox(replace(record, spec=spec))
    file = fake_planarian.export(_deps(fake_planarian, box), tmp_path / "b")
    with pytest.raises(BundleError) as caught:
        other.import_(file)
    assert caught.value.code == "bundle-unfit"


def test_a_workspace_that_is_a_symlink_here_is_refused(
    fake_planarian: Planarian, other: Planarian, box: Sandbox, workspace: Path, tmp_path: Path
) -> None:
    file = fake_planarian.export(_deps(fake_planarian, box), tmp_path / "b")
    workspace.rename(tmp_path / "elsewhere")
    workspace.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BundleError, match="on this host"):
        other.import_(file)


def test_a_full_disk(
    fake_planarian: Planarian, other: Planarian, box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = fake_planarian.export(_deps(fake_planarian, box), tmp_path / "b")
    before = json.dumps([str(path) for path in sorted(other.home.rglob("*"))])
    for point in ("begun", "unpacked", "captured"):
        monkeypatch.setenv("PLANARIAN_FAULT", f"import.{point}=fail")
        with pytest.raises(BundleError, match="can't be written into the home") as caught:
            other.import_(file)
        assert "space" in caught.value.remedy
        assert "nothing was imported" in caught.value.state
    monkeypatch.delenv("PLANARIAN_FAULT")
    assert other.registry.operations() == []
    left = [str(path) for path in sorted(other.home.rglob("*"))]
    assert [path for path in left if path not in before and "fake-files" not in path and "origins" not in path] == []
    assert list((other.home / "fake-files").iterdir()) == list((other.home / "origins").iterdir()) == []
    other.import_(file)
