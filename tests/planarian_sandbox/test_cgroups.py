"""Control groups: what is left behind is swept, and nothing else."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from planarian_core.errors import SandboxError
from planarian_core.model import Command, Limits, SandboxSpec, new_id
from planarian_core.testing.sandbox import unique_seconds
from planarian_sandbox import cgroups
from planarian_sandbox.directory import DirectoryBackend

pytestmark = [pytest.mark.needs("root"), pytest.mark.needs("linux")]


@pytest.fixture
def tops(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Directories of their own for the groups of this test, one for each hierarchy."""
    name = new_id("planarian-test")
    monkeypatch.setattr(cgroups, "_NAME", name)
    found = cgroups.hierarchies()
    tops = [Path(base, name) for base in (found.unified, found.memory, found.pids) if base]
    if not found.unified:
        pytest.skip("no version 2 hierarchy")
    yield tops
    for top in tops:
        with contextlib.suppress(FileNotFoundError):
            cgroups.remove((str(top),))
        assert not top.exists()


def age(*groups: Path | str) -> None:
    for group in groups:
        os.utime(group, (time.time() - 3600, time.time() - 3600))


def leave_many(top: Path) -> None:
    for number in range(40):
        group = top / f"sb-left-{number}"
        (group / "call-1").mkdir(parents=True)
        age(group)


def test_old_empty_groups_are_swept_and_no_others(tops: list[Path]) -> None:
    leave_many(tops[0])
    (tops[0] / "sb-young").mkdir()
    lived_in = tops[0] / "sb-lived-in"
    (lived_in / "call-2").mkdir(parents=True)
    age(lived_in)
    with subprocess.Popen(["sleep", unique_seconds()]) as process:
        try:
            (lived_in / "call-2" / "cgroup.procs").write_text(str(process.pid))
            made = cgroups.make("sb-made", Limits(pids=7))
            assert {path.name for path in tops[0].iterdir() if path.is_dir()} == {"sb-made", "sb-young", "sb-lived-in"}
            assert all(os.path.isdir(group) for group in made)
            assert (lived_in / "call-2").is_dir()
        finally:
            process.kill()


def test_a_stale_group_that_is_used_again_is_not_frozen(tops: list[Path]) -> None:
    (group, *_) = cgroups.make("sb-again", Limits())
    Path(group, "cgroup.freeze").write_text("1")
    cgroups.make("sb-again", Limits())
    assert Path(group, "cgroup.freeze").read_text() == "0\n"


def test_a_stale_group_that_is_used_again_is_not_swept(tops: list[Path]) -> None:
    made = cgroups.make("sb-again", Limits())
    age(*made)
    leave_many(tops[0])
    assert cgroups.make("sb-again", Limits()) == made
    cgroups.make("sb-other", Limits())
    assert all(os.path.isdir(group) for group in made)


def test_an_idle_directory_sandbox_keeps_its_groups(tops: list[Path], tmp_path: Path) -> None:
    """It has no init, so its groups are empty between calls, and swept when it has long been idle."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    spec = SandboxSpec(new_id("sb"), str(workspace), str(workspace), str(tmp_path / "home"), "directory")
    backend = DirectoryBackend(tmp_path / "home")
    live = backend.start(spec)
    try:
        backend.execute(spec, live, Command(("true",)))
        age(*live.cgroups)
        for top in tops:
            leave_many(top)
        backend.execute(spec, live, Command(("true",)))
        cgroups.make("sb-other", Limits())
        assert all(os.path.isdir(group) for group in live.cgroups)
        age(*live.cgroups)
        for top in tops:
            leave_many(top)
        cgroups.make("sb-other", Limits())
        assert not any(os.path.exists(group) for group in live.cgroups)
        text = f"env -i setsid sleep {unique_seconds()} & sleep 0.2"
        assert backend.execute(spec, live, Command(("sh", "-c", text))).exit_code == 0
        assert len(backend.tasks(spec, live)) == 1
    finally:
        backend.stop(spec, None)
    assert not cgroups.of_sandbox(spec.id)


def test_groups_that_can_not_be_made_leave_none(tops: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for error, raised in ((OSError(28, "full"), SandboxError), (KeyboardInterrupt(), KeyboardInterrupt)):

        def fail(*_: object, error: BaseException = error) -> None:
            raise error

        monkeypatch.setattr(cgroups, "_sweep", fail)
        with pytest.raises(raised):
            cgroups.make("sb-half", Limits())
        assert not cgroups.of_sandbox("sb-half")


def test_one_group_that_does_not_empty_keeps_no_other(tops: list[Path]) -> None:
    busy, idle = tops[0] / "sb-busy", tops[0] / "sb-idle"
    for group in (busy, idle):
        group.mkdir(parents=True)
    with subprocess.Popen(["sleep", unique_seconds()]) as process:
        try:
            (busy / "cgroup.procs").write_text(str(process.pid))
            cgroups.remove((str(busy), str(idle)), 0.0)
            assert busy.is_dir()
            assert not idle.exists()
        finally:
            process.kill()
