"""The promises of a process backend, as tests. Subclass :class:`ProcessConformance` and supply three fixtures.

Oracles bypass the backend: processes are looked up in the host's /proc, files are copied with ``cp``.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from planarian_core.errors import BackendUnavailable, CaptureError, PlanarianError, RestoreError, SandboxError
from planarian_core.interfaces import (
    PreparesStart,
    ProcessBackend,
    ProvesStillness,
    RestoresTree,
    RunningSandbox,
    SandboxBackend,
    TreeHost,
    Wakes,
)
from planarian_core.model import Artefact, Command, CommandResult, Gap, LiveSandbox, ProcessInfo, SandboxSpec, new_id

PATIENCE = 20.0

COUNTER = """
import os, time
n = 0
while True:
    n += 1
    with open("count.new", "w") as file:
        file.write(str(n))
    os.rename("count.new", "count")
    time.sleep(0.005)
"""
"""A program whose only state is in its memory: it shows a number that only grows."""


def python() -> str:
    """An interpreter that a sandbox can run, too."""
    return "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable


def eventually(condition: Callable[[], bool], patience: float = PATIENCE) -> bool:
    """Wait for a condition; whether it came true."""
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@dataclass(frozen=True)
class Taken:
    """A statepoint made by hand: process image, the layer as it was in the instant, what was seen."""

    artefact: Artefact | None
    images: Path
    layer: Path
    process_list: tuple[ProcessInfo, ...]
    gaps: tuple[Gap, ...]
    notes: tuple[str, ...] = ()


class Subject:
    """A sandbox under test. The layer's copy and the restore are what a statepoint manager would do, without it."""

    def __init__(
        self, backend: ProcessBackend, host: SandboxBackend, spec: SandboxSpec, folder: Path, live: LiveSandbox
    ) -> None:
        self.backend = backend
        self.host = host
        self.spec = spec
        self.folder = folder
        self.live = live

    @classmethod
    def start(cls, backend: ProcessBackend, host: SandboxBackend, spec: SandboxSpec, folder: Path) -> Subject:
        """A sandbox that was just started, nothing but its init in it; ``spec`` isn't prepared yet."""
        spec = host.prepare(spec)
        with backend.starting() if isinstance(backend, PreparesStart) else nullcontext():
            return cls(backend, host, spec, folder, host.start(spec))

    @property
    def running(self) -> RunningSandbox:
        return RunningSandbox.of(self.host, self.spec, self.live)

    def run(self, *argv: str) -> CommandResult:
        return self.host.execute(self.spec, self.live, Command(argv, timeout=60))

    def shell(self, text: str) -> CommandResult:
        return self.run("/bin/sh", "-c", text)

    def spawn(self, *argv: str) -> None:
        """Start a program that stays."""
        done = self.host.execute(self.spec, self.live, Command(argv, detach=True))
        assert done.exit_code == 0, done.stderr

    def read(self, name: str) -> str:
        """A file of the workspace, as the sandbox sees it; empty when it isn't there."""
        return self.shell(f"cat {name} 2>/dev/null").stdout

    def shows(self, name: str, wanted: Callable[[str], bool] = bool) -> str:
        """Wait until the file says what is wanted; returns it."""
        found = ""

        def look() -> bool:
            nonlocal found
            found = self.read(name)
            return wanted(found)

        assert eventually(look), f"{name} says {found!r}"
        return found

    def new_images(self) -> Path:
        images = self.folder / new_id("images")
        images.mkdir()
        return images

    def take(self, images: Path | None = None, inside: Callable[[], None] | None = None) -> Taken:
        """Take a statepoint by hand; ``inside`` is called in the instant."""
        images = images or self.new_images()
        layer = self.folder / new_id("layer")
        with self.backend.instant(self.running, images) as instant:
            subprocess.run(["cp", "-a", self.spec.layer, layer], check=True, timeout=60)
            if inside is not None:
                inside()
        return Taken(instant.artefact, images, layer, instant.process_list, instant.gaps, instant.notes)

    def rollback(self, taken: Taken, kill: Sequence[int] = ()) -> None:
        """Files and processes as they were in the instant."""
        self.host.stop(self.spec, self.live)
        shutil.rmtree(self.spec.layer)
        subprocess.run(["cp", "-a", taken.layer, self.spec.layer], check=True, timeout=60)
        self.live = self._restore(self.spec, taken, kill)

    def fork(self, taken: Taken, kill: Sequence[int] = (), *, frozen: bool = False) -> Subject:
        """A second sandbox from a statepoint of this one; ``frozen``: it stands still until :meth:`wake`."""
        layer = self.folder / new_id("fork")
        subprocess.run(["cp", "-a", taken.layer, layer], check=True, timeout=60)
        spec = replace(self.spec, id=new_id("sb"), layer=str(layer))
        return Subject(self.backend, self.host, spec, self.folder, self._restore(spec, taken, kill, frozen))

    def wake(self) -> None:
        assert isinstance(self.host, Wakes)
        self.host.wake(self.spec, self.live)

    def run_times(self) -> dict[str, str]:
        """By thread of the sandbox, how long it has run, by /proc."""
        found = {}
        for pid in self.running.tasks():
            for thread in os.listdir(f"/proc/{pid}/task"):
                found[f"{pid}/{thread}"] = Path(f"/proc/{pid}/task/{thread}/schedstat").read_text()
        return found

    def stop(self) -> None:
        self.host.stop(self.spec, self.live)

    def _restore(self, spec: SandboxSpec, taken: Taken, kill: Sequence[int], frozen: bool = False) -> LiveSandbox:
        assert isinstance(self.backend, RestoresTree)
        assert isinstance(self.host, TreeHost)
        assert taken.artefact is not None
        environment = self.host.restore_environment(spec)
        pid = self.backend.restore(taken.artefact, taken.images, environment, kill, frozen=frozen)
        return self.host.adopt(spec, pid)


def number(subject: Subject) -> int:
    """What :data:`COUNTER` shows now."""
    return int(subject.shows("count"))


def _lives(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _in_layer(layer: Path, name: str) -> str:
    return next(iter(sorted(layer.rglob(name)))).read_text()


def goes_on(subject: Subject) -> bool:
    """Whether :data:`COUNTER` runs."""
    before = number(subject)
    return eventually(lambda: number(subject) > before)


@pytest.mark.skipif(sys.platform != "linux", reason="the oracles read /proc")
class ProcessConformance:
    """What every process backend does. A subclass defines the fixtures ``backend``, ``host`` and ``spec``.

    ``host`` is a sandbox backend that the backend serves; ``spec`` is new for each test, not yet prepared.
    """

    @pytest.fixture
    def backend(self) -> ProcessBackend:
        raise NotImplementedError("supply a process backend")

    @pytest.fixture
    def host(self) -> SandboxBackend:
        raise NotImplementedError("supply a sandbox backend")

    @pytest.fixture
    def spec(self) -> SandboxSpec:
        raise NotImplementedError("supply a spec")

    @pytest.fixture
    def subject(
        self, backend: ProcessBackend, host: SandboxBackend, spec: SandboxSpec, tmp_path: Path
    ) -> Iterator[Subject]:
        """A started sandbox in which :data:`COUNTER` runs."""
        subject = Subject.start(backend, host, spec, tmp_path)
        try:
            subject.spawn(python(), "-c", COUNTER)
            subject.shows("count")
            yield subject
        finally:
            subject.stop()

    @pytest.fixture
    def needs_memory(self, backend: ProcessBackend) -> None:
        if not backend.capabilities.memory:
            pytest.skip(f"{backend.name} brings back no memory")

    # --- every backend ------------------------------------------------------------------------------------------

    def test_serves_what_it_is_tested_with(
        self, backend: ProcessBackend, host: SandboxBackend, spec: SandboxSpec
    ) -> None:
        assert backend.probe().available, backend.probe().reason
        served = backend.serves(spec, host.capabilities)
        assert served.available, served.reason

    def test_all_stands_still_in_the_instant(self, subject: Subject) -> None:
        seen: list[str] = []

        def look() -> None:
            for _ in range(2):
                tree = sorted(Path(subject.spec.layer).rglob("count"))
                seen.append(tree[0].read_text() if tree else "")
                time.sleep(0.2)

        subject.take(inside=look)
        assert seen[0]
        assert seen[0] == seen[1]
        assert goes_on(subject)

    def test_an_exception_in_the_instant_is_the_callers(self, subject: Subject) -> None:
        class Refusal(Exception):
            pass

        refusal = Refusal("no")
        with pytest.raises(Refusal) as caught, subject.backend.instant(subject.running, subject.new_images()):
            raise refusal
        assert caught.value is refusal
        assert goes_on(subject)

    def test_the_sandbox_runs_on_after_a_capture(self, subject: Subject) -> None:
        for _ in range(3):
            subject.take()
            assert goes_on(subject)
        assert subject.shell("echo alive").stdout == "alive\n"

    def test_what_runs_is_listed(self, subject: Subject) -> None:
        listed = [process for process in subject.take().process_list if COUNTER in process.argv]
        assert len(listed) == 1
        assert listed[0].argv == (python(), "-c", COUNTER)
        assert listed[0].cwd == os.path.realpath(subject.spec.workspace)

    def test_discard_is_idempotent(self, subject: Subject) -> None:
        taken = subject.take()
        for _ in range(2):
            subject.backend.discard(taken.images)
        assert not list(taken.images.iterdir())
        subject.backend.discard(taken.images / "never")

    # --- ProvesStillness ----------------------------------------------------------------------------------------

    def test_what_runs_is_not_still(self, subject: Subject) -> None:
        backend, artefact = subject.backend, subject.take().artefact
        if not isinstance(backend, ProvesStillness) or artefact is None:
            pytest.skip(f"{backend.name} gives no proof of stillness")
        assert not backend.still(subject.running, artefact)

    def test_what_waits_is_still_until_it_runs(self, subject: Subject) -> None:
        backend = subject.backend
        init = subject.live.init_pid
        for pid in set(subject.running.tasks()) - {init}:
            os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: not set(subject.running.tasks()) - {init})
        subject.spawn("sleep", "1000")
        (sleeper,) = set(subject.running.tasks()) - {init}
        assert eventually(lambda: b"sleep" in Path(f"/proc/{sleeper}/cmdline").read_bytes())
        time.sleep(0.2)
        artefact = subject.take().artefact
        if not isinstance(backend, ProvesStillness) or artefact is None:
            pytest.skip(f"{backend.name} gives no proof of stillness")
        assert backend.still(subject.running, artefact)
        subject.run("true")
        assert backend.still(subject.running, artefact)
        os.kill(sleeper, signal.SIGSTOP)
        assert eventually(lambda: not backend.still(subject.running, artefact))
        os.kill(sleeper, signal.SIGCONT)
        assert not backend.still(subject.running, artefact)
        assert not backend.still(subject.running, replace(artefact, details={}))

    # --- capabilities.memory ------------------------------------------------------------------------------------

    @pytest.mark.usefixtures("needs_memory")
    def test_memory_and_pids_come_back(self, subject: Subject) -> None:
        taken = subject.take()
        then = sorted(process.pid for process in taken.process_list)
        captured = int(next(iter(sorted(taken.layer.rglob("count")))).read_text())
        assert eventually(lambda: number(subject) > captured + 100)
        subject.rollback(taken)
        assert captured <= number(subject) < captured + 100
        assert goes_on(subject)
        assert sorted(process.pid for process in subject.take().process_list) == then

    @pytest.mark.usefixtures("needs_memory")
    def test_a_statepoint_restores_more_than_once(self, subject: Subject) -> None:
        taken = subject.take()
        for _ in range(3):
            subject.rollback(taken)
            assert goes_on(subject)

    @pytest.mark.usefixtures("needs_memory")
    def test_a_fork_is_independent(self, subject: Subject) -> None:
        taken = subject.take()
        fork = subject.fork(taken)
        try:
            assert goes_on(fork)
            assert goes_on(subject)
            fork.shell("echo fork >mark")
            assert subject.read("mark") == ""
            assert not set(subject.running.tasks()) & set(fork.running.tasks())
        finally:
            fork.stop()
        assert goes_on(subject)

    def test_an_image_after_a_restore_takes_only_what_changed(self, subject: Subject) -> None:
        from planarian_core.testing.memory import Holder  # it is made of what is here

        if not subject.backend.capabilities.incremental:
            pytest.skip(f"{subject.backend.name} takes full images alone")
        size = 32 << 20
        Holder.begin(subject, size)
        full = subject.take()
        assert full.artefact is not None
        assert full.artefact.stored > size
        subject.rollback(full)
        Holder.find(subject, size).touch()
        memory, taken = Holder.find(subject, size).memory(), subject.take()
        assert taken.artefact is not None
        assert taken.artefact.stored < full.artefact.stored // 4
        subject.backend.discard(full.images)
        subject.rollback(taken)
        assert Holder.find(subject, size).memory() == memory
        assert goes_on(subject)

    # --- a tree that comes back frozen --------------------------------------------------------------------------

    @pytest.fixture
    def needs_freezer(self, needs_memory: None, host: SandboxBackend, spec: SandboxSpec) -> None:
        if not isinstance(host, Wakes):
            pytest.skip(f"{host.name} can't hold a restored tree still")

    @pytest.mark.usefixtures("needs_freezer")
    def test_a_frozen_copy_runs_nothing_until_it_is_woken(self, subject: Subject) -> None:
        taken = subject.take()
        captured = int(_in_layer(taken.layer, "count"))
        copy = subject.fork(taken, frozen=True)
        try:
            before = copy.run_times()
            assert len(before) >= 2
            assert goes_on(subject)
            time.sleep(0.3)
            assert copy.run_times() == before
            assert int(_in_layer(Path(copy.spec.layer), "count")) == captured
            assert copy.host.alive(copy.spec, copy.live)
            assert isinstance(copy.host, Wakes)
            assert copy.host.memory(copy.spec, copy.live) > 1024**2
            copy.wake()
            assert captured <= number(copy) < captured + 100
            assert goes_on(copy)
            copy.wake()
            assert goes_on(copy)
            assert copy.shell("echo alive").stdout == "alive\n"
            assert int(_in_layer(copy.take().layer, "count")) > captured
        finally:
            copy.stop()
        assert goes_on(subject)

    @pytest.mark.usefixtures("needs_freezer")
    def test_a_frozen_copy_can_be_stopped(self, subject: Subject) -> None:
        copy = subject.fork(subject.take(), frozen=True)
        tasks = copy.running.tasks()
        assert tasks
        with pytest.raises(CaptureError):
            copy.take()
        copy.stop()
        assert not any(map(_lives, tasks))
        assert not copy.host.alive(copy.spec, copy.live)
        with pytest.raises(SandboxError):
            copy.wake()
        copy.stop()

    @pytest.mark.usefixtures("needs_freezer")
    def test_a_frozen_copy_that_nobody_knows_can_be_stopped(self, subject: Subject) -> None:
        copy = subject.fork(subject.take(), frozen=True)
        tasks = copy.running.tasks()
        copy.host.stop(copy.spec, None)
        assert not any(map(_lives, tasks))

    @pytest.mark.usefixtures("needs_freezer")
    def test_a_frozen_copy_serves_under_another_id(self, subject: Subject) -> None:
        """As when it is handed to a sandbox: spec and layer are the copy's but for the id."""
        copy = subject.fork(subject.take(), frozen=True)
        copy.spec = replace(copy.spec, id=new_id("sb"))
        try:
            copy.wake()
            assert goes_on(copy)
            again = copy.take()
            copy.rollback(again)
            assert goes_on(copy)
        finally:
            copy.stop()

    @pytest.mark.usefixtures("needs_freezer")
    def test_what_is_to_be_killed_never_runs_in_a_frozen_copy(self, subject: Subject) -> None:
        subject.spawn(python(), "-c", COUNTER.replace('"count', '"doomed'))
        subject.shows("doomed")
        taken = subject.take()
        doomed = [process.pid for process in taken.process_list if 'doomed"' in " ".join(process.argv)]
        captured = _in_layer(taken.layer, "doomed")
        copy = subject.fork(taken, doomed, frozen=True)
        try:
            copy.wake()
            assert goes_on(copy)
            assert copy.read("doomed") == captured
            assert not [process for process in copy.take().process_list if process.pid in doomed]
        finally:
            copy.stop()

    @pytest.mark.usefixtures("needs_freezer")
    def test_without_a_freezer_it_is_refused(self, subject: Subject) -> None:
        taken = subject.take()
        assert isinstance(subject.backend, RestoresTree)
        assert isinstance(subject.host, TreeHost)
        assert taken.artefact is not None
        spec = replace(subject.spec, id=new_id("sb"), layer=str(taken.layer))
        environment = replace(subject.host.restore_environment(spec), freezer="")
        with pytest.raises(BackendUnavailable, match="version 2"):
            subject.backend.restore(taken.artefact, taken.images, environment, frozen=True)
        subject.host.stop(spec, None)

    @pytest.mark.usefixtures("needs_memory")
    def test_what_is_to_be_killed_never_runs(self, subject: Subject) -> None:
        subject.spawn(python(), "-c", COUNTER.replace('"count', '"doomed'))
        subject.shows("doomed")
        taken = subject.take()
        doomed = [process.pid for process in taken.process_list if 'doomed"' in " ".join(process.argv)]
        captured = next(iter(sorted(taken.layer.rglob("doomed")))).read_text()
        subject.rollback(taken, kill=doomed)
        assert goes_on(subject)
        assert subject.read("doomed") == captured
        assert not [process for process in subject.take().process_list if process.pid in doomed]

    @pytest.mark.usefixtures("needs_memory")
    def test_a_whole_image_verifies(self, subject: Subject) -> None:
        taken = subject.take()
        assert taken.artefact is not None
        subject.backend.verify(taken.artefact, taken.images)
        assert taken.artefact.stored >= sum(file.stat().st_size for file in taken.images.iterdir()) * 0.9

    @pytest.mark.usefixtures("needs_memory")
    @pytest.mark.parametrize("damage", ["deleted", "truncated", "changed"])
    def test_a_damaged_image_is_refused(self, subject: Subject, damage: str) -> None:
        taken = subject.take()
        assert taken.artefact is not None
        biggest = max(taken.images.iterdir(), key=lambda file: file.stat().st_size)
        content = bytearray(biggest.read_bytes())
        if damage == "deleted":
            biggest.unlink()
        elif damage == "truncated":
            biggest.write_bytes(content[:-1])
        else:
            content[len(content) // 2] ^= 1
            biggest.write_bytes(content)
        if damage != "changed":
            with pytest.raises(RestoreError, match=biggest.name):
                subject.backend.verify(taken.artefact, taken.images)
        fork = pytest.raises(PlanarianError, match=biggest.name)
        with fork as caught:
            subject.fork(taken)
        assert isinstance(caught.value, RestoreError)
        assert caught.value.remedy
        assert goes_on(subject)
