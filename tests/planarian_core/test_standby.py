"""Hot standby: copies that stand still, are used, dropped, and never leaked; a copy that can't be made is said."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from planarian_core import Planarian
from planarian_core.errors import RestoreError, SandboxError
from planarian_core.model import Standby, Statepoint
from planarian_core.prune_choice import PrunePolicy
from planarian_core.sandbox import Sandbox
from planarian_core.testing.workloads import ask_counter, remove_all, start_counter

SOCKET = "counter.sock"

pytestmark = pytest.mark.needs("root", "criu", "namespaces")


@pytest.fixture
def planarian(tmp_path: Path) -> Iterator[Planarian]:
    with Planarian.open(tmp_path / "home") as planarian:
        yield planarian
        remove_all(planarian)
    assert list((tmp_path / "home" / "sandboxes").iterdir()) == []


@pytest.fixture
def box(planarian: Planarian, workspace: Path) -> Sandbox:
    """A sandbox with a server that counts."""
    box = planarian.create_sandbox(workspace, sandbox="namespace", filesystem="copy", process="criu")
    start_counter(box, SOCKET)
    return box


def _ask(sandbox: Sandbox, what: str) -> int:
    return ask_counter(sandbox, SOCKET, what)


def _run_time(standby: Standby, planarian: Planarian) -> dict[str, str]:
    """What the kernel says of how long each thread of a copy has run."""
    live = standby.record.live
    assert live is not None
    tasks = planarian.plugins.sandbox("namespace").tasks(standby.record.spec, live)
    return {str(path): path.read_text() for pid in tasks for path in Path(f"/proc/{pid}/task").glob("*/schedstat")}


def test_a_copy_stands_still_until_it_is_used_once(planarian: Planarian, box: Sandbox) -> None:
    assert _ask(box, "add") == 1
    point = planarian.snapshot(box)
    assert _ask(box, "add") == 2
    planarian.keep_warm(point, 1, wait=True)
    [copy] = planarian.standbys.copies(point.id)
    before = _run_time(copy, planarian)
    assert len(before) >= 2
    time.sleep(0.3)
    assert _run_time(copy, planarian) == before, "no thread of the copy has run"
    layer = box.record.spec.layer
    restored = planarian.rollback(box, point)
    assert restored.files_changed is None
    assert box.record.spec.layer == copy.record.spec.layer != layer, "it was the copy that was used"
    assert _ask(box, "add") == 2
    planarian.warmer.settle()
    [second] = planarian.standbys.copies(point.id)
    assert second.id != copy.id, "rebuilt after use"
    assert not Path(layer).exists()
    fork = planarian.fork(point)
    assert fork.id == second.id
    assert _ask(fork, "add") == 2
    assert _ask(box, "add") == 3, "source and fork share nothing"


def test_calls_are_counted_after_a_copy_was_taken_over(planarian: Planarian, box: Sandbox) -> None:
    planarian.set_policy(box, "every:2")
    point = planarian.snapshot(box)
    planarian.keep_warm(point, 1, wait=True)
    planarian.rollback(box, point)
    planarian.warmer.settle()
    box.run("true")
    assert not planarian.should_snapshot(box)
    box.run("true")
    assert planarian.should_snapshot(box)


def test_twenty_forks_of_one_statepoint_are_independent(planarian: Planarian, box: Sandbox) -> None:
    point = planarian.snapshot(box)
    for _ in range(20):
        planarian.standbys.build(box.record, point)
    forks = [planarian.fork(point) for _ in range(20)]
    for number, fork in enumerate(forks):
        fork.run(f"echo {number} > mine")
        assert _ask(fork, "add") == 1
    assert [fork.run("cat mine").stdout for fork in forks] == [f"{number}\n" for number in range(20)]
    assert box.run("ls mine").exit_code != 0


def test_the_head_is_kept_warm_where_that_is_the_policy(planarian: Planarian, box: Sandbox) -> None:
    planarian.with_config(standby="head")
    first = planarian.snapshot(box, name="first")
    planarian.warmer.settle()
    assert [s.statepoint_id for s in planarian.standbys.copies()] == [first.id]
    box.run("touch more")
    second = planarian.snapshot(box)
    planarian.warmer.settle()
    assert [s.statepoint_id for s in planarian.standbys.copies()] == [second.id]
    planarian.with_config(standby="named")
    planarian.warmer.look(box.id)
    planarian.warmer.settle()
    assert {s.statepoint_id for s in planarian.standbys.copies()} == {first.id, second.id}
    planarian.append_outcome(first, "worked", status="succeeded", of=box)
    planarian.with_config(standby="best:1")
    box.run("touch even-more")
    third = planarian.snapshot(box)
    planarian.warmer.settle()
    assert {s.statepoint_id for s in planarian.standbys.copies()} == {first.id, third.id}


def test_the_budget_bounds_the_copies(planarian: Planarian, box: Sandbox) -> None:
    planarian.with_config(standby_memory="40M")
    point = planarian.snapshot(box)
    planarian.keep_warm(point, 50, wait=True)
    copies = planarian.standbys.copies()
    assert 1 <= len(copies) < 10
    assert sum(copy.memory for copy in copies) <= 40 * 1024 * 1024


def test_a_copy_on_another_base_is_not_used(planarian: Planarian, box: Sandbox) -> None:
    point = planarian.snapshot(box)
    copy = planarian.standbys.build(box.record, point)
    stale = replace(copy, record=replace(copy.record, base="of before an upgrade"))
    planarian.standbys._ready[copy.id] = stale
    fork = planarian.fork(point)
    assert fork.id != copy.id
    assert not Path(copy.record.spec.layer).exists()
    assert _ask(fork, "add") == 1


def test_a_copy_whose_processes_died_is_not_used(planarian: Planarian, box: Sandbox) -> None:
    point = planarian.snapshot(box)
    copy = planarian.standbys.build(box.record, point)
    planarian.plugins.sandbox("namespace").stop(copy.record.spec, copy.record.live)
    planarian.rollback(box, point)
    assert box.record.spec.layer != copy.record.spec.layer
    assert _ask(box, "add") == 1


def test_copies_go_when_the_home_closes(planarian: Planarian, box: Sandbox, tmp_path: Path) -> None:
    point = planarian.snapshot(box)
    with Planarian.open(tmp_path / "home") as other:
        other.keep_warm(point, 2, of=other.sandbox(box.id), wait=True)
        assert len(planarian.registry.standbys.all()) == 2
        assert planarian.recover() == [], "those of a runtime that lives are left alone"
        assert len(planarian.registry.standbys.all()) == 2
        assert planarian.fork(point), "and not used by others"
        assert len(other.standbys.copies()) == 2
    assert planarian.registry.standbys.all() == {}


def _damage(planarian: Planarian, point: Statepoint) -> Path:
    pages = max(planarian.statepoints.artefacts.images(point).glob("pages-*.img"), key=lambda p: p.stat().st_size)
    content = bytearray(pages.read_bytes())
    content[100] ^= 1
    pages.write_bytes(content)
    return pages


def test_a_copy_that_can_not_be_made_marks_its_statepoint(
    planarian: Planarian, box: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    assert _ask(box, "add") == 1
    point = planarian.snapshot(box)
    pages = _damage(planarian, point)
    planarian.keep_warm(point, 1, wait=True)
    assert planarian.standbys.copies() == []
    assert f"{point.id} can't be restored" in caplog.text
    assert pages.name in planarian.registry.drills.all()[point.id].error
    with pytest.raises(RestoreError) as caught:
        planarian.rollback(box, point)
    assert caught.value.code == "drill-failed"
    assert _ask(box, "add") == 2, "the original runs on"
    planarian.rollback(box, point, files_only=True)
    content = bytearray(pages.read_bytes())
    content[100] ^= 1
    pages.write_bytes(content)
    assert planarian.drill(point, of=box).error == ""
    planarian.rollback(box, point)
    assert _ask(box, "add") == 2


def test_a_full_disk_says_nothing_of_the_statepoint(
    planarian: Planarian, box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = planarian.snapshot(box)
    monkeypatch.setenv("PLANARIAN_FAULT", "standby.staged=fail")
    with pytest.raises(RestoreError, match="no copy of"):
        planarian.drill(point, of=box)
    planarian.keep_warm(point, 1, wait=True)
    monkeypatch.delenv("PLANARIAN_FAULT")
    assert planarian.registry.drills.all() == {}
    planarian.rollback(box, point)
    assert _ask(box, "add") == 1


@pytest.fixture
def stopped_build(tmp_path: Path) -> Iterator[Callable[[str, Statepoint], subprocess.Popen[bytes]]]:
    """Another runtime that makes a copy and is stopped at a fault point; SIGCONT lets it go on."""
    started = []

    def start(point: str, statepoint: Statepoint) -> subprocess.Popen[bytes]:
        script = (
            "import sys; from planarian_core import Planarian; p = Planarian.open(sys.argv[1])\n"
            "point = p.registry.statepoint(sys.argv[2])\n"
            "try: p.standbys.build(p.registry.sandbox(point.sandbox_id), point)\n"
            "finally: print(sorted(p.registry.drills.all()), len(p.standbys.copies()), flush=True); p.close()\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / "home"), statepoint.id],
            env={**os.environ, "PLANARIAN_FAULT": f"{point}=stop"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


Stopped = Callable[[str, Statepoint], "subprocess.Popen[bytes]"]


def _goes_on(process: subprocess.Popen[bytes]) -> tuple[str, str]:
    process.send_signal(signal.SIGCONT)
    said, error = process.communicate(timeout=60)
    return said.decode(), error.decode()


def test_what_a_copy_is_being_made_of_is_not_pruned(planarian: Planarian, box: Sandbox, stopped_build: Stopped) -> None:
    point = planarian.snapshot(box)
    _ask(box, "add")
    planarian.snapshot(box)
    building = stopped_build("standby.begun", point)
    assert planarian.prune(PrunePolicy(keep_last=0), [box]).statepoints == ()
    said, error = _goes_on(building)
    assert said == f"{[point.id]} 1\n", error
    assert planarian.prune(PrunePolicy(keep_last=0), [box]).statepoints == (point.id,)


@pytest.mark.parametrize("reached", ["standby.begun", "standby.staged", "standby.restored"])
def test_a_sandbox_is_removed_while_another_runtime_makes_a_copy(
    planarian: Planarian, box: Sandbox, stopped_build: Stopped, reached: str
) -> None:
    building = stopped_build(reached, planarian.snapshot(box))
    planarian.remove_sandbox(box)
    said, error = _goes_on(building)
    assert said == "[] 0\n"
    assert "pruned or removed meanwhile" in error or "no statepoint" in error
    assert planarian.registry.standbys.all() == {}


def test_copies_of_what_another_runtime_removed_go(planarian: Planarian, box: Sandbox, tmp_path: Path) -> None:
    point = planarian.snapshot(box)
    planarian.keep_warm(point, 1, wait=True)
    with Planarian.open(tmp_path / "home") as other:
        other.remove_sandbox(other.sandbox(box.id))
    planarian.warmer._adjust(may_build=False)
    assert planarian.registry.standbys.all() == {}


def test_a_home_is_closed_while_copies_are_made(planarian: Planarian, box: Sandbox, tmp_path: Path) -> None:
    point = planarian.snapshot(box)
    other = Planarian.open(tmp_path / "home")
    other.keep_warm(point, 1000)
    waiting = threading.Thread(target=other.keep_warm, args=(point, 1000), kwargs={"wait": True})
    waiting.start()
    other.close()
    waiting.join(60)
    assert not waiting.is_alive()
    other.warmer.keep(point, 1)
    other.warmer.settle()
    other.registry.close()
    assert planarian.registry.standbys.all() == {}, "a closed home makes no copies"


def test_a_fork_that_fails_early_leaves_no_copy(planarian: Planarian, box: Sandbox) -> None:
    point = planarian.snapshot(box)
    planarian.standbys.build(box.record, point)
    locks, aside = planarian.home / "locks", planarian.home / "aside"
    locks.rename(aside)
    with pytest.raises(OSError, match="locks"):
        planarian.statepoints.fork(box.record, point)
    aside.rename(locks)
    assert planarian.registry.standbys.all() == {}
    assert [r.id for r in planarian.registry.sandboxes()] == [box.id]


def test_a_copy_that_can_not_be_removed_yet_goes_later(planarian: Planarian, box: Sandbox) -> None:
    point = planarian.snapshot(box)
    copy = planarian.standbys.build(box.record, point)
    hindrance = Path(copy.record.spec.layer, "hindrance")
    hindrance.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(hindrance)], check=True)
    try:
        with pytest.raises(RestoreError, match="mounted"):
            planarian.standbys.spare(copy)
        planarian.standbys.tidy()
        assert [s.statepoint_id for s in planarian.registry.standbys.all().values()] == [""], "it holds nothing back"
    finally:
        subprocess.run(["umount", str(hindrance)], check=True)
    planarian.standbys.tidy()
    assert planarian.registry.standbys.all() == {}


def test_a_home_opens_and_closes_while_a_copy_can_not_be_removed(
    planarian: Planarian, box: Sandbox, stopped_build: Stopped, tmp_path: Path
) -> None:
    building = stopped_build("standby.restored", planarian.snapshot(box))
    [copy] = planarian.registry.standbys.all().values()
    building.kill()
    building.communicate()
    hindrance = Path(copy.record.spec.layer, "hindrance")
    hindrance.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(hindrance)], check=True)
    try:
        Planarian.open(tmp_path / "home").close()
        assert list(planarian.registry.standbys.all()) == [copy.id]
    finally:
        subprocess.run(["umount", str(hindrance)], check=True)
    Planarian.open(tmp_path / "home").close()
    assert planarian.registry.standbys.all() == {}
    assert not list((planarian.home / "locks").glob("*.runtime"))


def test_a_stopped_sandbox_is_not_kept_warm_by_policy(planarian: Planarian, box: Sandbox) -> None:
    planarian.with_config(standby="head")
    planarian.snapshot(box)
    planarian.warmer.settle()
    assert len(planarian.standbys.copies()) == 1
    box.stop()
    planarian.warmer.settle()
    assert planarian.standbys.copies() == []


def test_in_place_there_is_no_second_place(planarian: Planarian, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    box = planarian.create_sandbox(tmp_path / "other", sandbox="directory")
    point = planarian.snapshot(box)
    with pytest.raises(SandboxError) as caught:
        planarian.drill(point)
    assert caught.value.code == "standby-in-place"
    planarian.keep_warm(point, 1, wait=True)
    planarian.rollback(box, point)


def test_without_process_images_the_files_are_kept_warm(planarian: Planarian, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    box = planarian.create_sandbox(tmp_path / "other", sandbox="namespace", filesystem="copy", process="respawn")
    box.run("echo one > file")
    box.spawn("sleep 1000")
    point = planarian.snapshot(box)
    box.run("echo two > file")
    planarian.keep_warm(point, 1, wait=True)
    [copy] = planarian.standbys.copies()
    assert copy.record.live is None
    planarian.rollback(box, point)
    assert box.record.spec.layer == copy.record.spec.layer
    assert box.run("cat file; pgrep -x sleep").stdout.startswith("one\n")
    assert box.run("pgrep -x sleep").exit_code == 0
