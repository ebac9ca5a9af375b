"""The sandbox backend ``directory``: the promises of every sandbox, and its own oddities."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from planarian_core.codec import encode
from planarian_core.errors import SandboxError
from planarian_core.interfaces import Layer, SandboxBackend
from planarian_core.model import Command, SandboxSpec, new_id
from planarian_core.testing.sandbox import Sandbox, SandboxConformance, running, unique_seconds, until
from planarian_filesystem.copy import CopyBackend
from planarian_sandbox.cgroups import Hierarchies
from planarian_sandbox.directory import DirectoryBackend

ONE_COMMAND = """
import json, sys
from pathlib import Path
from planarian_core.codec import decode
from planarian_core.model import Command, LiveSandbox, SandboxSpec
from planarian_sandbox.directory import DirectoryBackend
spec, live, text = json.loads(sys.argv[1])
spec, live = decode(SandboxSpec, spec), decode(LiveSandbox, live)
print(DirectoryBackend(Path(spec.home)).execute(spec, live, Command(("sh", "-c", text))).stdout, end="")
"""
WHOLE_LIFE = """
import os, sys, time
from pathlib import Path
from planarian_core.model import Command, SandboxSpec
from planarian_sandbox.directory import DirectoryBackend
folder, mark = sys.argv[1:]
spec = SandboxSpec("sb-user", folder, folder, folder + ".home", "directory")
backend = DirectoryBackend(Path(spec.home))
live = backend.start(spec)
def run(*argv, **more):
    return backend.execute(spec, live, Command(argv, **more))
try:
    assert run("id", "-u").stdout == f"{os.geteuid()}\\n" and os.geteuid() != 0
    assert run("sh", "-c", f"setsid nohup sleep {mark} & sleep {mark}", timeout=0.5).timed_out
    assert backend.tasks(spec, live) == ()
    run("sh", "-c", f"env -i sleep {mark} & setsid sleep {mark} & sleep {mark} & sleep 0.2")
    assert len(backend.tasks(spec, live)) == 3, backend.tasks(spec, live)
    assert run("x=5", session="main", timeout=30).exit_code == 0
    assert run("echo $x", session="main", timeout=30).stdout == "5\\n"
    assert not backend.probe().reason or "isolation" in backend.probe().reason
finally:
    backend.stop(spec, live)
assert backend.tasks(spec, live) == ()
print("well")
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def spec(home: Path, workspace: Path) -> SandboxSpec:
    return SandboxSpec(new_id("sb"), str(workspace), str(workspace), str(home), "directory")


@pytest.fixture
def sandbox(home: Path, spec: SandboxSpec) -> Iterator[Sandbox]:
    backend = DirectoryBackend(home)
    live = backend.start(backend.prepare(spec))
    try:
        yield Sandbox(backend, spec, live)
    finally:
        backend.stop(spec, live)


class TestDirectory(SandboxConformance):
    @pytest.fixture
    def backend(self, home: Path) -> SandboxBackend:
        return DirectoryBackend(home)

    @pytest.fixture
    def spec(self, home: Path, workspace: Path) -> SandboxSpec:
        return SandboxSpec(new_id("sb"), str(workspace), str(workspace), str(home), "directory")

    def test_a_call_leaves_no_trace_in_the_workspace(self, sandbox: Sandbox) -> None:
        layer, files = Layer(Path(sandbox.spec.layer), sandbox.spec.exclude), CopyBackend(Path(sandbox.spec.home))
        before = files.capture(layer, new_id("sp")).reference
        sandbox.run("cat", "hello.txt")
        sandbox.command(Command(("cat",), stdin=b"some"))
        assert files.capture(layer, new_id("sp")).reference == before
        sandbox.shell("echo trace >trace")
        assert files.capture(layer, new_id("sp")).reference != before

    def test_clear_env_leaves_only_what_was_given(self, sandbox: Sandbox) -> None:
        """And the marks that tell to which sandbox a process belongs."""
        result = sandbox.command(Command(("/usr/bin/env",), env={"ONLY": "this"}, clear_env=True))
        assert [line for line in result.stdout.splitlines() if not line.startswith("PLANARIAN_")] == ["ONLY=this"]


class TestDirectoryWithoutControlGroups(TestDirectory):
    """As for an ordinary user, or on macOS: processes are known by their marks."""

    @pytest.fixture(autouse=True)
    def no_control_groups(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("planarian_sandbox.cgroups.hierarchies", Hierarchies)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def test_a_background_process_outlives_the_runtime_that_started_it(sandbox: Sandbox) -> None:
    """Its output stays whole: who reads on does not end with the runtime."""
    text = "(while [ ! -e go ]; do sleep 0.01; done; echo more; echo more; echo done >finished) & echo begun"
    given = json.dumps([encode(sandbox.spec), encode(sandbox.live), text])
    argv = [sys.executable, "-c", ONE_COMMAND, given]
    done = subprocess.run(argv, capture_output=True, text=True, env=environment(), timeout=60, check=True)
    assert done.stdout == "begun\n"
    workspace = Path(sandbox.spec.workspace)
    (workspace / "go").touch()
    assert until((workspace / "finished").exists)


def test_a_session_outlives_the_runtime(sandbox: Sandbox) -> None:
    sandbox.command(Command(("x=5",), session="main", timeout=30))
    again = Sandbox(DirectoryBackend(Path(sandbox.spec.home)), sandbox.spec, sandbox.live)
    assert again.command(Command(("echo $x",), session="main", timeout=30)).stdout == "5\n"


def test_stop_finds_what_a_killed_runtime_had_started(sandbox: Sandbox) -> None:
    mark = unique_seconds()
    sandbox.shell(f"setsid sleep {mark} & sleep {mark} &")
    assert until(lambda: len(running(mark)) == 2)
    sandbox.backend.stop(sandbox.spec, None)
    assert not running(mark)
    assert not sandbox.backend.alive(sandbox.spec, sandbox.live)


def test_another_sandbox_is_left_alone(sandbox: Sandbox, tmp_path: Path) -> None:
    other_workspace = tmp_path / "other"
    other_workspace.mkdir()
    other = replace(sandbox.spec, id=new_id("sb"), workspace=str(other_workspace), layer=str(other_workspace))
    live = sandbox.backend.start(other)
    mark = unique_seconds()
    try:
        sandbox.backend.execute(other, live, Command(("sh", "-c", f"sleep {mark} &")))
        assert sandbox.backend.tasks(sandbox.spec, sandbox.live) == ()
        sandbox.backend.stop(sandbox.spec, sandbox.live)
        assert len(running(mark)) == 1
    finally:
        sandbox.backend.stop(other, live)
    assert not running(mark)


def test_a_users_own_choice_of_sandbox_makes_no_process_a_task(sandbox: Sandbox) -> None:
    """People set PLANARIAN_SANDBOX in their shells; a stop must not end those."""
    with subprocess.Popen(
        ["sleep", unique_seconds()], env={**os.environ, "PLANARIAN_SANDBOX": sandbox.spec.id}
    ) as mine:
        try:
            sandbox.backend.stop(sandbox.spec, None)
            assert mine.poll() is None
        finally:
            mine.kill()


def test_a_life_of_another_boot_is_over(sandbox: Sandbox) -> None:
    rebooted = replace(sandbox.live, boot_id="another")
    assert not sandbox.backend.alive(sandbox.spec, rebooted)
    with pytest.raises(SandboxError) as caught:
        sandbox.backend.execute(sandbox.spec, rebooted, Command(("true",)))
    assert caught.value.code == "sandbox-dead"


def test_an_earlier_life_is_over_after_a_restart(sandbox: Sandbox) -> None:
    earlier = sandbox.live
    sandbox.backend.stop(sandbox.spec, earlier)
    sandbox.live = sandbox.backend.start(sandbox.spec)
    assert not sandbox.backend.alive(sandbox.spec, earlier)
    assert sandbox.backend.alive(sandbox.spec, sandbox.live)


def test_a_missing_workspace_is_an_error(sandbox: Sandbox) -> None:
    shutil.rmtree(sandbox.spec.workspace)
    with pytest.raises(SandboxError):
        sandbox.run("true")
    sandbox.backend.stop(sandbox.spec, sandbox.live)
    with pytest.raises(SandboxError):
        sandbox.backend.start(sandbox.spec)


def test_detached_output_is_appended_and_only_to_regular_files(sandbox: Sandbox) -> None:
    log = Path(sandbox.spec.workspace, "log")
    log.write_text("before\n")
    sandbox.command(Command(("echo", "after"), detach=True, stdout_path="log"))
    assert until(lambda: log.read_text() == "before\nafter\n")
    os.mkfifo(log.with_name("fifo"))
    with pytest.raises(SandboxError, match="fifo"):
        sandbox.command(Command(("echo", "lost"), detach=True, stdout_path="fifo"))


def test_nothing_of_a_detached_command_stays_a_zombie(sandbox: Sandbox) -> None:
    sandbox.command(Command(("true",), detach=True))
    sandbox.shell("sleep 0.2 &")
    assert until(lambda: not [c for c in psutil.Process().children() if c.status() == psutil.STATUS_ZOMBIE])


@pytest.mark.needs("root")
@pytest.mark.needs("setpriv")
def test_as_an_ordinary_user() -> None:
    python = "/usr/bin/python3"
    mark = unique_seconds()
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o711)  # noqa: S103 - another user passes through it
        workspace = Path(folder, "workspace")
        workspace.mkdir()
        home = Path(folder, "workspace.home")
        home.mkdir()
        for path in (workspace, home):
            os.chown(path, 65534, 65534)
        user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", python, "-B", "-c"]
        given = environment() | {"HOME": folder}
        tried = subprocess.run([*user, "import planarian_core, psutil"], capture_output=True, env=given, check=False)
        if tried.returncode:
            pytest.skip(f"{python} can't import Planarian as that user: {tried.stderr.decode()[-200:]}")
        argv = [*user, WHOLE_LIFE, str(workspace), mark]
        done = subprocess.run(argv, capture_output=True, text=True, env=given, cwd=folder, timeout=120, check=False)
        assert done.stdout == "well\n", done.stderr
    assert not running(mark)
