"""Respawn: what is recorded of real processes, and that it comes back. Oracles: /proc, psutil and the files."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from planarian_core.errors import CaptureError, RestoreError
from planarian_core.interfaces import Instant, RunningSandbox
from planarian_core.model import Artefact, Command, CommandResult, LiveSandbox, SandboxSpec
from planarian_process.respawn import RespawnBackend
from planarian_sandbox.directory import DirectoryBackend
from planarian_sandbox.namespace import NamespaceBackend


class World:
    """A directory sandbox that runs, and the backend under test."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.workspace = folder / "workspace"
        self.images = self.home / "statepoints" / "sp-1" / "images"
        for path in (self.home, self.workspace, self.images):
            path.mkdir(parents=True)
        name = f"sb-test-{os.getpid()}"
        self.spec = SandboxSpec(name, str(self.workspace), str(self.workspace), str(self.home), "directory")
        self.sandbox = DirectoryBackend(self.home)
        self.live: LiveSandbox = self.sandbox.start(self.spec)
        self.backend = RespawnBackend(self.home)

    @property
    def running(self) -> RunningSandbox:
        return RunningSandbox(self.spec, self.live, lambda: self.sandbox.tasks(self.spec, self.live))

    def execute(self, command: Command) -> CommandResult:
        return self.sandbox.execute(self.spec, self.live, command)

    def sh(self, text: str) -> CommandResult:
        result = self.execute(Command(("bash", "-c", text), timeout=30))
        assert result.exit_code == 0, result
        return result

    def capture(self, in_flight: tuple[int, ...] = ()) -> Instant:
        with self.backend.instant(replace(self.running, in_flight=in_flight), self.images) as instant:
            pass
        return instant

    def restart(self, artefact: Artefact) -> tuple[Command, ...]:
        self.sandbox.stop(self.spec, self.live)
        self.live = self.sandbox.start(self.spec)
        commands = self.backend.commands(artefact)
        for command in commands:
            self.execute(command)
        return commands

    def pids(self, *argv: str) -> list[int]:
        found = []
        for pid in self.sandbox.tasks(self.spec, self.live):
            with suppress(psutil.NoSuchProcess):
                if tuple(psutil.Process(pid).cmdline()[: len(argv)]) == argv:
                    found.append(pid)
        return found


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.sandbox.stop(world.spec, world.live)


def eventually(condition: Callable[[], object], patience: float = 20) -> bool:
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def fetch(port: int) -> bytes:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/page", timeout=5) as answer:
            data: bytes = answer.read()
            return data
    except OSError:
        return b""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_a_server_comes_back_as_it_was(world: World) -> None:
    site = world.workspace / "the site"
    site.mkdir()
    (site / "page").write_text("hello")
    port = free_port()
    argv = (sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port))
    world.sh(f"cd 'the site'\nNOTE='a b' setsid {' '.join(argv)} >>../log.txt 2>&1 &")
    assert eventually(lambda: fetch(port) == b"hello")
    old = psutil.Process(world.pids(*argv)[0])
    environment = {key: value for key, value in old.environ().items() if not key.startswith("PLANARIAN_")}
    log = (world.workspace / "log.txt").read_text()
    instant = world.capture()
    assert instant.artefact is not None
    assert [info.argv for info in instant.process_list] == [argv]
    assert [gap.reason for gap in instant.gaps] == ["memory lost; will be started again"]
    world.restart(instant.artefact)
    assert eventually(lambda: fetch(port) == b"hello")
    new = psutil.Process(world.pids(*argv)[0])
    assert new.pid != old.pid
    assert new.cwd() == str(site)
    assert {k: v for k, v in new.environ().items() if not k.startswith("PLANARIAN_")} == environment
    assert environment["NOTE"] == "a b"
    assert (world.workspace / "log.txt").read_text().startswith(log)
    assert (world.workspace / "log.txt").read_text().count("GET /page") >= 2


def test_only_what_is_topmost_is_started_in_order(world: World) -> None:
    world.sh("sleep 2001 & sleep 0.05; sh -c 'sleep 2002; true' & sleep 0.05; setsid sleep 2003 & sleep 0.05")
    instant = world.capture()
    assert instant.artefact is not None
    commands = world.restart(instant.artefact)
    assert commands[0].argv[-1] == "2001"
    assert commands[-1].argv == ("sleep", "2003")
    assert ("sleep", "2002") not in [command.argv for command in commands]
    assert all(command.detach and command.clear_env for command in commands)
    by_parent = [gap for gap in instant.gaps if gap.subject.endswith(" sleep 2002")]
    assert len(by_parent) == 1
    assert "left to its parent" in by_parent[0].reason


@pytest.mark.needs("linux")
def test_a_script_is_never_run_again_for_its_background_part(world: World) -> None:
    world.sh("echo once >>runs; true && sleep 2001 & (cd /; sleep 2002; echo more >>runs) &\n sleep 0.2")
    instant = world.capture()
    assert instant.artefact is not None
    commands = world.restart(instant.artefact)
    assert sorted((command.argv, command.cwd) for command in commands) == [
        (("sleep", "2001"), str(world.workspace)),
        (("sleep", "2002"), "/"),
    ]
    assert len([gap for gap in instant.gaps if "a part of a shell's script" in gap.reason]) == 2
    assert (world.workspace / "runs").read_text() == "once\n"


def test_what_is_in_flight_is_skipped_and_its_children_are_not(world: World) -> None:
    world.sh("sleep 2001 &")
    world.execute(Command(("bash", "-c", "sleep 2002 & sleep 2003; true"), detach=True))
    assert eventually(lambda: world.pids("sleep", "2003"))
    chain = (world.pids("bash", "-c")[0], world.pids("sleep", "2003")[0])
    instant = world.capture(chain)
    assert instant.artefact is not None
    assert [info.argv for info in instant.process_list] == [("sleep", "2001"), ("sleep", "2002")]
    assert not any("2003" in gap.subject for gap in instant.gaps)
    commands = world.backend.commands(instant.artefact)
    assert [command.argv for command in commands] == [("sleep", "2001"), ("sleep", "2002")]


@pytest.mark.needs("linux")
@pytest.mark.parametrize(
    ("text", "argv", "reason"),
    [
        ("sleep 2001 | sleep 2002 &", ("sleep", "2001"), "its output goes to another process"),
        ("sleep 2001 | sleep 2002 &", ("sleep", "2002"), "its input comes from another process"),
        ("cp $(command -v sleep) own; ./own 2003 & sleep 0.2; rm own", ("./own",), "its program was deleted"),
        ("mkdir d; cd d; sleep 2004 & sleep 0.2; rmdir ../d", ("sleep",), "its working directory was deleted"),
        ("echo x >in; setsid sleep 2005 <in & sleep 0.2", ("sleep",), "it reads from a file"),
        ("exec -a 'title: written over' sleep 2006 &", ("title: written over",), "its name isn't its program"),
        ("(exec -a touch sleep 2007) &", ("touch", "2007"), "its name isn't its program"),
        ("ln -s $(command -v touch) sleep; PATH=$PWD:$PATH sh -c 'exec /bin/sleep 2008' &", ("/bin/sleep",), ""),
        ("ln -s $(command -v touch) x; (exec -a ./x sleep 2009) &", ("./x",), "its name isn't its program"),
        ("exec -a -bash bash -c 'sleep 2010; true' &", ("-bash",), "its name isn't its program"),
        ("mkfifo f; (exec -a 'server: master' cat <>f) &", ("server:", "master"), "it wrote a title"),
        ("exec -a /proc/self/exe sleep 2012 &", ("/proc/self/exe",), "its name isn't its program"),
        ("cp $(command -v sleep) 'own (deleted)'; './own (deleted)' 2013 &", ("./own (deleted)",), ""),
        ("mkdir 'd (deleted)'; cd 'd (deleted)'; sleep 2014 &", ("sleep", "2014"), ""),
        (f"ln -s {sys.executable} python; ./python -c 'import time; time.sleep(2015)' &", ("./python",), ""),
        ("ln -s $(command -v sleep) a; ln -s a b; PATH=:nowhere b 2016 &", ("b", "2016"), ""),
        ("printf '#!/bin/sh\nsleep 2017\ntrue\n' >s; chmod +x s; ./s &", ("/bin/sh", "./s"), ""),
        ("printf '#!/usr/bin/env tail\n' >s; chmod +x s; ./s -f &", ("tail", "./s"), ""),
        ("unset PATH; /bin/sleep 2019 &", ("/bin/sleep", "2019"), ""),
    ],
)
def test_what_cant_be_started_again_says_why(world: World, text: str, argv: tuple[str, ...], reason: str) -> None:
    world.sh(f"{text}\ntrue")
    assert eventually(lambda: world.pids(*argv))
    pid = world.pids(*argv)[0]
    instant = world.capture()
    assert instant.artefact is not None
    gap = next(gap for gap in instant.gaps if gap.subject.startswith(f"{pid} "))
    started = [command.argv[: len(argv)] for command in world.backend.commands(instant.artefact)]
    if reason:
        assert gap.reason.startswith(f"memory lost; will not be started again: {reason}")
        assert argv not in started
    else:
        assert argv in started


def test_a_deleted_output_file_becomes_dev_null(world: World) -> None:
    world.sh("sleep 2001 >gone 2>kept & until test -e kept; do sleep 0.01; done; rm gone")
    instant = world.capture()
    assert instant.artefact is not None
    command = world.backend.commands(instant.artefact)[0]
    assert command.stdout_path == ""
    assert command.stderr_path == str(world.workspace / "kept")


def test_a_program_under_another_ones_name_does_not_make_that_one_run(world: World) -> None:
    world.sh(f"cp {shutil.which('sleep')} server; setsid bash -c 'exec -a touch ./server 2001' & sleep 0.2")
    instant = world.capture()
    assert instant.artefact is not None
    assert [info.argv for info in instant.process_list] == [("touch", "2001")]
    assert world.restart(instant.artefact) == ()


@pytest.mark.needs("linux")
def test_output_goes_on_into_a_file_whose_name_says_deleted(world: World) -> None:
    world.sh("sleep 2001 >'out (deleted)' 2>gone & sleep 0.1; mv gone there; >gone; rm there")
    world.sh("sleep 2002 >'gone' 2>'twin' & sleep 0.1; rm gone twin; >'gone (deleted)'; >'twin (deleted)'")
    instant = world.capture()
    assert instant.artefact is not None
    first, second = world.backend.commands(instant.artefact)
    assert (first.stdout_path, first.stderr_path) == (str(world.workspace / "out (deleted)"), "")
    assert (second.stdout_path, second.stderr_path) == ("", "")


@pytest.mark.parametrize(
    "text",
    [
        f"{sys.executable} -c 'import time; time.sleep(2001)' session_holder.py x &",
        f"{sys.executable} -I -S $PWD/session_holder.py /run/planarian/sessions/x &",
        f"{sys.executable} -I -S $PWD/session_holder.py HOME/sandboxes/ID/run/sessions/x &",
    ],
)
def test_nobody_passes_for_the_holder_of_a_session(world: World, text: str) -> None:
    world.execute(Command(("true",), session="main", timeout=30))
    (world.workspace / "session_holder.py").write_text("import time; time.sleep(2001)")
    world.sh(text.replace("HOME", str(world.home)).replace("ID", world.spec.id))
    instant = world.capture()
    assert instant.artefact is not None
    assert len(instant.process_list) == 1
    assert "session_holder.py" in " ".join(instant.process_list[0].argv)
    assert [gap.subject for gap in instant.gaps if gap.subject.startswith("session ")] == ["session main"]
    assert len(world.backend.commands(instant.artefact)) == 1


def test_sessions_are_named_and_their_jobs_started(world: World) -> None:
    world.execute(Command(("sleep 2001 & cd /",), session="main", timeout=30))
    instant = world.capture()
    assert instant.artefact is not None
    assert [info.argv for info in instant.process_list] == [("sleep", "2001")]
    assert "session main" in [gap.subject for gap in instant.gaps]
    world.restart(instant.artefact)
    assert eventually(lambda: world.pids("sleep", "2001"))
    assert world.execute(Command(("pwd",), session="main", timeout=30)).stdout == f"{world.workspace}\n"


def test_secrets_stay_out_of_the_registry(world: World) -> None:
    world.execute(Command(("sleep", "2001"), env={"MINE": "very-secret"}, detach=True))
    assert eventually(lambda: world.pids("sleep", "2001"))
    instant = world.capture()
    assert instant.artefact is not None
    assert "very-secret" not in json.dumps(dict(instant.artefact.details))
    assert (world.images / "respawn.json").stat().st_mode & 0o777 == 0o600
    assert world.backend.commands(instant.artefact)[0].env["MINE"] == "very-secret"


def test_hostile_argument_lists_dont_reach_the_terminal(world: World) -> None:
    code = "import os; os.execv('/bin/sleep', [b'\\x1b[2J\\xff\\x07sleep', b'2001'])"
    world.execute(Command((sys.executable, "-c", code), detach=True))
    assert eventually(lambda: any("2001" in psutil.Process(p).cmdline() for p in world.running.tasks()))
    instant = world.capture()
    shown = repr(instant.gaps) + "".join("".join(info.argv) for info in instant.process_list)
    assert "\x1b" not in shown
    assert "\x07" not in shown
    shown.encode()


def test_nothing_runs(world: World) -> None:
    instant = world.capture()
    assert instant.artefact is not None
    assert instant.process_list == ()
    assert instant.gaps == ()
    assert world.backend.commands(instant.artefact) == ()


def test_verify_and_discard(world: World) -> None:
    world.sh("sleep 2001 &")
    instant = world.capture()
    assert instant.artefact is not None
    world.backend.verify(instant.artefact, world.images)
    (world.images / "respawn.json").write_text('{"version": 1')
    with pytest.raises(RestoreError):
        world.backend.verify(instant.artefact, world.images)
    world.backend.discard(world.images)
    world.backend.discard(world.images)
    assert list(world.images.iterdir()) == []
    with pytest.raises(RestoreError):
        world.backend.commands(instant.artefact)


def test_a_full_disk_is_a_capture_error_and_all_runs_on(world: World) -> None:
    world.sh("while :; do echo x >>counter; sleep 0.01; done &")
    shutil.rmtree(world.images)
    with pytest.raises(CaptureError), world.backend.instant(world.running, world.images):
        pass
    size = (world.workspace / "counter").stat().st_size
    assert eventually(lambda: (world.workspace / "counter").stat().st_size > size)


@pytest.mark.needs("root")
@pytest.mark.needs("setpriv")
def test_another_users_process_is_started_as_that_user(world: World) -> None:
    world.execute(
        Command(("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sleep", "2001"), detach=True)
    )
    assert eventually(lambda: world.pids("sleep", "2001"))
    instant = world.capture()
    assert instant.artefact is not None
    world.restart(instant.artefact)
    assert eventually(lambda: world.pids("sleep", "2001"))
    assert psutil.Process(world.pids("sleep", "2001")[0]).uids().real == 65534


@pytest.mark.needs("namespaces")
def test_names_and_sessions_inside_a_namespace(criu_home: Path, criu_spec: SandboxSpec) -> None:
    """Programs and links that are only there inside; a session's holder as it runs there, and a false one."""
    host, backend, images = NamespaceBackend(criu_home), RespawnBackend(criu_home), criu_home / "images"
    images.mkdir()
    spec = host.prepare(criu_spec)
    live = host.start(spec)
    try:
        script = """cp $(command -v sleep) /opt/server; ln -s /opt/server /usr/local/bin/other
        bash -c 'exec -a touch /opt/server 2001' & other 2002 &
        cd /run/planarian; python3 -c 'import time; time.sleep(2003)' session_holder.py sessions/x & sleep 0.5"""
        assert host.execute(spec, live, Command(("bash", "-c", script), timeout=60)).exit_code == 0
        host.execute(spec, live, Command(("cd /",), session="main", timeout=60))
        running = RunningSandbox(spec, live, lambda: host.tasks(spec, live))
        with backend.instant(running, images) as instant:
            pass
    finally:
        host.stop(spec, live)
    assert instant.artefact is not None
    assert [command.argv[0] for command in backend.commands(instant.artefact)] == ["other", "python3"]
    assert [info.argv[0] for info in instant.process_list] == ["touch", "other", "python3"]
    reasons = {gap.subject.partition(" ")[2]: gap.reason for gap in instant.gaps}
    assert "its name isn't its program (/opt/server)" in reasons["touch 2001"]
    assert [subject for subject in reasons if subject in ("main", "x")] == ["main"]


@pytest.mark.needs("namespaces")
def test_paths_and_pids_are_those_inside(tmp_path: Path) -> None:
    """A process in a mount and pid namespace of its own, in a directory that the host does not see."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    script = f"mount -t tmpfs none {hidden} && cd {hidden} && mkdir seen-inside && cd seen-inside && sleep 2001 >log"
    init = subprocess.Popen(
        ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", f"({script} 2>&1) & wait"],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        assert eventually(
            lambda: [p for p in psutil.Process(init.pid).children(recursive=True) if p.cmdline() == ["sleep", "2001"]]
        )
        tasks = tuple(p.pid for p in psutil.Process(init.pid).children(recursive=True))
        home = tmp_path / "home"
        images = home / "images"
        images.mkdir(parents=True)
        spec = SandboxSpec("sb-ns", "/", "/", str(home), "namespace")
        running = RunningSandbox(spec, LiveSandbox(tasks[0], 0, ""), lambda: tasks)
        backend = RespawnBackend(home)
        with backend.instant(running, images) as instant:
            pass
        assert instant.artefact is not None
        commands = backend.commands(instant.artefact)
        cwd = f"{hidden}/seen-inside"
        assert [(c.argv, c.cwd, c.stdout_path) for c in commands] == [(("sleep", "2001"), cwd, f"{cwd}/log")]
        assert not os.path.exists(cwd)
        assert 1 < instant.process_list[0].pid < 50
    finally:
        for child in psutil.Process(init.pid).children():  # with its init the whole namespace ends
            child.kill()
        init.wait()
