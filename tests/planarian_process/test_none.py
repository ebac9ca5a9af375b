"""The backend ``none``, and the standstill that it shares with ``respawn``. Oracles: counter files and /proc."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from planarian_core.errors import CaptureError
from planarian_core.interfaces import ProcessBackend, RunningSandbox, SandboxBackend
from planarian_core.model import LiveSandbox, SandboxSpec, new_id
from planarian_core.testing.process import ProcessConformance
from planarian_process.freeze import standstill, thaw
from planarian_process.none import NoneBackend
from planarian_process.respawn import RespawnBackend
from planarian_sandbox.directory import DirectoryBackend


class _OnDirectory(ProcessConformance):
    @pytest.fixture
    def host(self, tmp_path: Path) -> SandboxBackend:
        return DirectoryBackend(tmp_path / "home")

    @pytest.fixture
    def spec(self, tmp_path: Path, workspace: Path) -> SandboxSpec:
        return SandboxSpec(new_id("sb"), str(workspace), str(workspace), str(tmp_path / "home"), "directory")


class TestNone(_OnDirectory):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> ProcessBackend:
        return NoneBackend(tmp_path / "home")


class TestRespawn(_OnDirectory):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> ProcessBackend:
        return RespawnBackend(tmp_path / "home")


COUNT = """
import sys, time
n = 0
while True:
    n += 1
    with open(sys.argv[1], "w") as file:
        file.write(str(n))
    time.sleep(0.001)
"""
CHAIN = """
import os, sys, time
generation = 0
while True:
    generation += 1
    with open(sys.argv[1], "w") as file:
        file.write(str(generation))
    time.sleep(0.04)
    if os.fork():
        time.sleep(0.04)
        os._exit(0)
    os.setsid()
"""
TREE = """
import os, sys, time
n = 0
while True:
    n += 1
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
        with open(sys.argv[1], "w") as file:
            file.write(str(n))
        time.sleep(0.2)
        os._exit(0)
    time.sleep(0.002)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
"""


class Crowd:
    """Processes of a pretended sandbox: children of a script of this test, found through a mark."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.mark = new_id("crowd")
        self.spec = SandboxSpec(new_id("sb"), str(folder), str(folder), str(self.home), "pretended")
        self.folder = folder
        self.group = ""
        self.started: list[subprocess.Popen[bytes]] = []

    def begin(self, program: str, name: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(self.folder / name), self.mark],
            process_group=0,
            stdin=subprocess.DEVNULL,
        )
        self.started.append(process)
        assert eventually(lambda: self.number(name) > 0)
        return process

    def number(self, name: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            return int((self.folder / name).read_text())
        return 0

    def tasks(self) -> tuple[int, ...]:
        found = []
        for pid in reversed(psutil.pids()):
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                if self.mark in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(pid)
        return tuple(found)

    @property
    def running(self) -> RunningSandbox:
        groups = (self.group,) if self.group else ()
        return RunningSandbox(self.spec, LiveSandbox(0, 0, "", groups), self.tasks)

    def moves(self, name: str) -> bool:
        before = self.number(name)
        return eventually(lambda: self.number(name) not in (0, before))

    def still(self, name: str) -> bool:
        """The file does not change for a while (a writer may have been stopped with it empty)."""
        before = (self.folder / name).read_text()
        time.sleep(0.15)
        return (self.folder / name).read_text() == before

    def end(self) -> None:
        thaw(self.running, self.home)
        while pids := self.tasks():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        for process in self.started:
            process.wait()


def eventually(condition: Callable[[], object], patience: float = 20) -> bool:
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[Crowd]:
    crowd = Crowd(tmp_path)
    yield crowd
    crowd.end()


def test_nothing_runs_or_something_does(crowd: Crowd) -> None:
    backend = NoneBackend(crowd.home)
    assert backend.still(crowd.running, None)
    process = crowd.begin(COUNT, "a")
    assert not backend.still(crowd.running, None)
    process.kill()
    process.wait()
    assert backend.still(crowd.running, None)


def test_stands_still_and_goes_on(crowd: Crowd) -> None:
    crowd.begin(COUNT, "a")
    crowd.begin(COUNT, "b")
    with standstill(crowd.running, crowd.home) as pids:
        assert set(pids) == {process.pid for process in crowd.started}
        assert crowd.still("a")
        assert crowd.still("b")
    assert crowd.moves("a")
    assert crowd.moves("b")
    assert not list((crowd.home / "sandboxes" / crowd.spec.id).iterdir())


def test_what_was_stopped_before_stays_stopped(crowd: Crowd) -> None:
    stopped = crowd.begin(COUNT, "stopped")
    crowd.begin(COUNT, "running")
    stopped.send_signal(signal.SIGSTOP)
    assert eventually(lambda: psutil.Process(stopped.pid).status() == psutil.STATUS_STOPPED)
    with standstill(crowd.running, crowd.home):
        assert crowd.still("running")
    assert crowd.moves("running")
    assert psutil.Process(stopped.pid).status() == psutil.STATUS_STOPPED
    assert crowd.still("stopped")


@pytest.mark.parametrize("program", [CHAIN, TREE] * 3)
def test_a_race_of_forks_is_won(crowd: Crowd, program: str) -> None:
    crowd.begin(program, "generation")
    with standstill(crowd.running, crowd.home):
        assert crowd.still("generation")
        assert crowd.tasks()
        assert {psutil.Process(pid).status() for pid in crowd.tasks()} == {psutil.STATUS_STOPPED}
    assert crowd.moves("generation")


def test_an_exception_lets_everything_go_on(crowd: Crowd) -> None:
    crowd.begin(COUNT, "a")
    with pytest.raises(PermissionError, match="mine"), standstill(crowd.running, crowd.home):
        raise PermissionError("mine")
    assert crowd.moves("a")


def test_what_a_killed_runtime_stopped_is_thawed(crowd: Crowd) -> None:
    crowd.begin(COUNT, "a")
    crowd.begin(CHAIN, "b")
    program = f"""
        import sys
        from pathlib import Path
        sys.path[:0] = {sys.path!r}
        from planarian_core.faults import reach
        from planarian_process.freeze import standstill
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_none import Crowd
        crowd = Crowd(Path({str(crowd.folder)!r}))
        crowd.mark, crowd.home = {crowd.mark!r}, Path({str(crowd.home)!r})
        object.__setattr__(crowd.spec, "id", {crowd.spec.id!r})
        with standstill(crowd.running, crowd.home):
            reach("snapshot.files")
    """
    environment = {**os.environ, "PLANARIAN_FAULT": "snapshot.files=kill"}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], env=environment, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert crowd.still("a")
    assert crowd.still("b")
    NoneBackend(crowd.home).thaw(crowd.running)
    assert crowd.moves("a")
    assert crowd.moves("b")
    NoneBackend(crowd.home).thaw(crowd.running)


def test_a_reused_pid_is_not_touched(crowd: Crowd) -> None:
    process = crowd.begin(COUNT, "a")
    process.send_signal(signal.SIGSTOP)
    assert eventually(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
    journal = crowd.home / "sandboxes" / crowd.spec.id / "stopped"
    journal.parent.mkdir(parents=True)
    journal.write_text(f"task {process.pid} 1\ntask 999999999 1\ntask 12")
    thaw(crowd.running, crowd.home)
    assert crowd.still("a")
    assert not journal.exists()


def test_a_task_that_cant_be_stopped_is_named(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an uninterruptible one would: the signal is swallowed."""
    process = crowd.begin(COUNT, "a")
    monkeypatch.setattr("planarian_process.freeze.PATIENCE", 0.2)
    monkeypatch.setattr(os, "kill", lambda pid, number: None)
    with pytest.raises(CaptureError, match=str(process.pid)), standstill(crowd.running, crowd.home):
        pytest.fail("the instant must not begin")
    monkeypatch.undo()
    assert crowd.moves("a")


@pytest.mark.needs("root")
@pytest.mark.needs("linux")
def test_a_control_group_is_frozen(crowd: Crowd) -> None:
    with contextlib.suppress(FileNotFoundError):
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    points = [line.split()[1] for line in mounts if line.split()[2] == "cgroup2"]
    if not points:
        pytest.skip("no version 2 control groups")
    group = Path(points[0], crowd.mark)
    group.mkdir()
    crowd.group = str(group)
    try:
        inside, outside = crowd.begin(COUNT, "inside"), crowd.begin(COUNT, "outside")
        (group / "cgroup.procs").write_text(str(inside.pid))
        with standstill(crowd.running, crowd.home):
            assert "frozen 1" in (group / "cgroup.events").read_text()
            assert psutil.Process(inside.pid).status() != psutil.STATUS_STOPPED
            assert psutil.Process(outside.pid).status() == psutil.STATUS_STOPPED
            assert crowd.still("inside")
            assert crowd.still("outside")
        assert crowd.moves("inside")
        assert crowd.moves("outside")
        (group / "cgroup.freeze").write_text("1")
        journal = crowd.home / "sandboxes" / crowd.spec.id / "stopped"
        journal.write_text(f"group {group}\n")
        thaw(crowd.running, crowd.home)
        assert crowd.moves("inside")
    finally:
        crowd.end()
        eventually(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


def test_the_runtime_never_stops_itself(crowd: Crowd) -> None:
    crowd.begin(COUNT, "a")
    everybody = RunningSandbox(crowd.spec, LiveSandbox(0, 0, ""), lambda: (os.getpid(), os.getppid(), *crowd.tasks()))
    with standstill(everybody, crowd.home) as pids:
        assert set(pids) == {process.pid for process in crowd.started}


def test_none_names_every_process(crowd: Crowd, tmp_path: Path) -> None:
    process = crowd.begin(COUNT, "a")
    with NoneBackend(crowd.home).instant(crowd.running, tmp_path) as instant:
        pass
    assert instant.artefact is None
    assert [info.pid for info in instant.process_list] == [process.pid]
    assert [gap.reason for gap in instant.gaps] == ["not captured; stopped by a rollback"]
    assert instant.gaps[0].subject.startswith(f"{process.pid} {sys.executable}")
