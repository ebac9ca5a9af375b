"""The namespace backend keeps the promises of a sandbox; as root, or rootless when an ordinary user runs this."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from planarian_core.errors import ConfigurationError, SandboxError
from planarian_core.interfaces import AgentReply, Layer
from planarian_core.model import Command, LiveSandbox, Network, SandboxSpec, new_id
from planarian_core.testing.sandbox import Sandbox, SandboxConformance, running, unique_seconds, until
from planarian_filesystem.copy import CopyBackend
from planarian_process.criu_namespaces import in_thread, own_mounts
from planarian_sandbox import channel, namespace
from planarian_sandbox.namespace import NamespaceBackend
from tests.planarian_sandbox.isolated import IsolatedFixtures

pytestmark = [pytest.mark.needs("linux"), pytest.mark.needs("namespaces" if os.geteuid() == 0 else "userns")]


def captured(sandbox: Sandbox) -> str:
    """The digest of all that a statepoint holds of the sandbox's files."""
    layer = Layer(Path(sandbox.spec.layer), sandbox.spec.exclude)
    return CopyBackend(Path(sandbox.spec.home)).capture(layer, new_id("sp")).reference


class NamespaceFixtures(IsolatedFixtures):
    kind = "namespace"

    @pytest.fixture
    def backend(self, home: Path) -> NamespaceBackend:
        return NamespaceBackend(home)


class TestNamespace(NamespaceFixtures, SandboxConformance):
    def test_the_host_sees_nothing_of_it(self, sandbox: Sandbox) -> None:
        sandbox.shell("echo changed >hello.txt; touch /etc/made-inside; echo x >/usr/made-inside")
        assert Path(sandbox.spec.workspace, "hello.txt").read_text() == "hello\n"
        assert not os.path.exists("/etc/made-inside")
        assert not os.path.exists("/usr/made-inside")
        assert sandbox.spec.layer not in Path("/proc/self/mountinfo").read_text()

    def test_it_is_the_first_process_of_its_own(self, sandbox: Sandbox) -> None:
        listing = sandbox.shell("ls -d /proc/[0-9]*").stdout.split()
        assert "/proc/1" in listing
        assert len(listing) < 8
        assert os.path.basename(os.readlink(f"/proc/{sandbox.live.init_pid}/ns/pid")) != os.readlink(
            "/proc/self/ns/pid"
        )

    def test_only_loopback_and_it_is_up(self, sandbox: Sandbox) -> None:
        interfaces = sandbox.shell("tail -n +3 /proc/net/dev | cut -d: -f1").stdout.split()
        assert "lo" in interfaces
        assert not {"eth0", "ens3", "enp0s3", "wlan0"} & set(interfaces)
        program = (
            "import socket; s = socket.create_server(('127.0.0.1', 0)); "
            "c = socket.create_connection(s.getsockname()); print('connected')"
        )
        assert sandbox.run("/usr/bin/python3", "-c", program).stdout == "connected\n"

    def test_the_hosts_toolchains_are_found_last(self, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = Path(tempfile.mkdtemp(prefix="planarian-test-", dir="/var/tmp"))  # seen inside
        folder.chmod(0o755)
        try:
            for name, text in (("planarian-test-tool", "echo a tool"), ("cat", "echo a false cat")):
                (folder / name).write_text(f"#!/bin/sh\n{text}\n")
                (folder / name).chmod(0o755)
            monkeypatch.setenv("PATH", f"relative:{folder}:/nowhere:{os.environ['PATH']}:{folder}")
            assert sandbox.run("planarian-test-tool").stdout == "a tool\n"
            assert sandbox.run("cat", "hello.txt").stdout == "hello\n"
            path = sandbox.shell("echo $PATH").stdout.strip().split(":")
            assert path.count(str(folder)) == 1
            assert path[0] == "/run/planarian/bin"
            assert not {"relative", "/nowhere"} & set(path)
            if sys.prefix != sys.base_prefix:
                assert os.path.join(sys.prefix, "bin") not in path
        finally:
            shutil.rmtree(folder)

    def test_orphans_are_reaped(self, sandbox: Sandbox) -> None:
        sandbox.shell("for i in 1 2 3 4 5; do (sh -c 'sleep 0.05 &' &); done")
        assert until(lambda: "Z" not in sandbox.shell("cut -d' ' -f3 /proc/[0-9]*/stat").stdout.split())

    def test_calls_leave_no_files(self, sandbox: Sandbox) -> None:
        for number in range(20):
            sandbox.shell(f"sleep {unique_seconds()} & echo {number}", timeout=None)
        assert sandbox.shell("ls /run/planarian/calls").stdout == "agent.sock\n"
        large = Command(("ls", "/run/planarian/calls"), stdin=bytes(channel.LARGE + 1))
        assert ".stdin\n" in sandbox.command(large).stdout
        assert sandbox.shell("ls /run/planarian/calls").stdout == "agent.sock\n"

    def test_a_call_leaves_no_trace_in_the_layer(self, sandbox: Sandbox) -> None:
        sandbox.run("true")  # overlayfs notes where a directory comes from when it is first looked up
        before = captured(sandbox)
        sandbox.run("true")
        sandbox.command(Command(("cat",), stdin=b"some"))
        assert captured(sandbox) == before
        large = Command(("wc", "-c"), stdin=bytes(channel.LARGE + 1))
        assert sandbox.command(large).stdout == f"{channel.LARGE + 1}\n"
        assert captured(sandbox) == before
        listen = partial(
            sandbox.backend.execute, sandbox.spec, sandbox.live, requests=lambda _: AgentReply(stdout="hi")
        )
        listen(Command(("true",)))
        assert listen(Command(("planarian", "log"))).stdout == "hi"
        assert captured(sandbox) == before
        sandbox.shell("echo trace >trace")
        assert captured(sandbox) != before

    def test_tasks_are_those_of_the_namespace(self, sandbox: Sandbox) -> None:
        mark = unique_seconds()
        sandbox.shell(f"sleep {mark} & setsid sleep {mark} &")
        assert until(lambda: len(running(mark)) == 2)
        tasks = sandbox.backend.tasks(sandbox.spec, sandbox.live)
        own = os.stat(f"/proc/{sandbox.live.init_pid}/ns/pid").st_ino
        expected = {
            int(name) for name in os.listdir("/proc") if name.isdigit() and _inode(f"/proc/{name}/ns/pid") == own
        }
        assert tasks[0] == sandbox.live.init_pid
        assert set(tasks) == expected

    def test_a_killed_runtime_leaves_no_false_listener(self, sandbox: Sandbox) -> None:
        """A call's runtime is killed while it listens: later requests must not wait for it."""
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                sandbox.shell("sleep 60", requests=lambda _: AgentReply())
            os._exit(1)
        listening = "ls /run/planarian/listening | wc -l"
        assert until(lambda: sandbox.shell(listening).stdout.strip() == "1")
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert sandbox.shell(listening).stdout.strip() == "1"
        assert sandbox.shell("planarian log").exit_code == 69
        text = f"{listening}; planarian log; env -u PLANARIAN_CALL planarian log"
        answered = sandbox.shell(text, requests=lambda _: AgentReply(5))
        assert (answered.exit_code, answered.stdout.strip()) == (5, "2"), "it stays until its call has been ended"
        assert isinstance(sandbox.backend, NamespaceBackend)
        assert sandbox.backend.end_abandoned_calls(sandbox.spec, sandbox.live) == 1
        assert sandbox.shell(listening).stdout.strip() == "0"

    def test_adopt_gives_the_same_sandbox(self, sandbox: Sandbox) -> None:
        assert isinstance(sandbox.backend, NamespaceBackend)
        assert sandbox.backend.adopt(sandbox.spec, sandbox.live.init_pid) == sandbox.live

    def test_adopt_refuses_a_host_process(self, sandbox: Sandbox) -> None:
        assert isinstance(sandbox.backend, NamespaceBackend)
        with pytest.raises(SandboxError):
            sandbox.backend.adopt(sandbox.spec, os.getpid())

    def test_a_reused_pid_is_not_the_sandbox(self, sandbox: Sandbox) -> None:
        bystander = subprocess.Popen(["sleep", "60"])
        try:
            for wrong in (
                replace(sandbox.live, init_pid=bystander.pid),
                replace(sandbox.live, init_start=sandbox.live.init_start + 1),
                replace(sandbox.live, boot_id="another"),
            ):
                wrong = replace(wrong, cgroups=())
                assert not sandbox.backend.alive(sandbox.spec, wrong)
                with pytest.raises(SandboxError):
                    sandbox.backend.execute(sandbox.spec, wrong, Command(("true",)))
                sandbox.backend.stop(replace(sandbox.spec, id=new_id("sb")), wrong)
            assert bystander.poll() is None
            assert sandbox.backend.alive(sandbox.spec, sandbox.live)
        finally:
            bystander.kill()
            bystander.wait()

    def test_what_a_killed_runtime_left_is_ended(self, sandbox: Sandbox) -> None:
        mark = unique_seconds()
        sandbox.shell(f"setsid sleep {mark} &")
        assert until(lambda: len(running(mark)) == 1)
        sandbox.backend.stop(replace(sandbox.spec, id=new_id("sb")), None)
        assert sandbox.backend.alive(sandbox.spec, sandbox.live)
        sandbox.backend.stop(sandbox.spec, None)
        assert not sandbox.backend.alive(sandbox.spec, sandbox.live)
        assert not running(mark)
        assert not _cgroups_of(sandbox.spec.id)
        sandbox.backend.stop(sandbox.spec, None)

    def test_a_start_that_fails_leaves_nothing(self, sandbox: Sandbox) -> None:
        sandbox.backend.stop(sandbox.spec, sandbox.live)
        upper = Path(sandbox.spec.layer, "upper")
        kept = upper.with_name("kept")
        upper.rename(kept)
        before = _tree_of(os.getpid())
        with pytest.raises(SandboxError):
            sandbox.backend.start(sandbox.spec)
        assert _tree_of(os.getpid()) == before
        assert not _cgroups_of(sandbox.spec.id)
        kept.rename(upper)

    def test_a_second_start_is_refused_and_harms_nothing(self, sandbox: Sandbox) -> None:
        with pytest.raises(SandboxError, match="runs already"):
            sandbox.backend.start(sandbox.spec)
        assert sandbox.shell("echo fine").stdout == "fine\n"

    def test_an_interrupted_start_leaves_nothing(
        self, backend: NamespaceBackend, spec: SandboxSpec, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupted(_: LiveSandbox) -> None:
            raise KeyboardInterrupt

        prepared = backend.prepare(spec)
        monkeypatch.setattr(namespace, "await_agent", interrupted)
        with pytest.raises(KeyboardInterrupt):
            backend.start(prepared)
        assert not running(spec.id)
        assert not _cgroups_of(spec.id)

    def test_a_launcher_failure_names_the_step(self, sandbox: Sandbox) -> None:
        sandbox.backend.stop(sandbox.spec, sandbox.live)
        work = Path(sandbox.spec.layer, "work")
        work.rename(work.with_name("kept"))
        work.write_text("not a directory")
        with pytest.raises(SandboxError, match="overlay"):
            sandbox.backend.start(sandbox.spec)
        assert not _cgroups_of(sandbox.spec.id)

    def test_a_workspace_must_be_there(self, backend: NamespaceBackend, spec: SandboxSpec) -> None:
        with pytest.raises(ConfigurationError):
            backend.prepare(replace(spec, workspace=spec.workspace + "/nothing"))

    def test_a_home_that_can_not_be_written(self, backend: NamespaceBackend, spec: SandboxSpec) -> None:
        prepared = backend.prepare(spec)
        Path(spec.home, "mounts").write_text("a file where a directory is wanted")
        with pytest.raises(SandboxError, match="can't be started") as caught:
            backend.start(prepared)
        assert caught.value.remedy
        assert isinstance(caught.value.__cause__, OSError)
        assert not _cgroups_of(spec.id)

    def test_a_hidden_workspace_is_refused(self, backend: NamespaceBackend, spec: SandboxSpec) -> None:
        for workspace in (spec.home, str(Path(spec.layer).parent)):
            with pytest.raises(ConfigurationError):
                backend.prepare(replace(spec, workspace=workspace))
        with pytest.raises(ConfigurationError):
            backend.prepare(replace(spec, hidden=(spec.workspace,)))

    @pytest.mark.parametrize("name", ["../up", "a/b", "..", "", "a..b", "x" * 100])
    def test_an_id_is_no_path(self, backend: NamespaceBackend, spec: SandboxSpec, name: str) -> None:
        with pytest.raises(ConfigurationError):
            backend.prepare(replace(spec, id=name))

    def test_a_workspace_that_holds_the_home(self, backend: NamespaceBackend, spec: SandboxSpec) -> None:
        outer = Path(spec.home).parent
        (outer / "seen").write_text("seen")
        prepared = backend.prepare(replace(spec, workspace=str(outer)))
        live = backend.start(prepared)
        try:
            result = backend.execute(prepared, live, Command(("ls", "-A")))
            assert set(result.stdout.split()) == {"seen", "workspace"}
        finally:
            backend.stop(prepared, live)

    def test_renames_and_links_in_the_workspace(self, sandbox: Sandbox) -> None:
        text = (
            "mkdir d && echo 1 >d/one && ln d/one d/two && mv d e && ln -s e/one link && chmod 444 e/one && "
            "ls e && cat link && test e/one -ef e/two && mv hello.txt e/ && cat e/hello.txt"
        )
        assert sandbox.shell(text).stdout == "one\ntwo\n1\nhello\n"

    def test_host_network(self, backend: NamespaceBackend, spec: SandboxSpec) -> None:
        prepared = backend.prepare(replace(spec, network=Network.HOST))
        live = backend.start(prepared)
        try:
            result = backend.execute(prepared, live, Command(("readlink", "/proc/self/ns/net")))
            assert result.stdout.strip() == os.readlink("/proc/self/ns/net")
        finally:
            backend.stop(prepared, live)

    def test_two_sandboxes_do_not_meet(self, backend: NamespaceBackend, spec: SandboxSpec, sandbox: Sandbox) -> None:
        layer = Path(spec.home) / "sandboxes" / "two" / "layer"
        layer.mkdir(parents=True)
        other = backend.prepare(replace(spec, id=new_id("sb"), layer=str(layer)))
        live = backend.start(other)
        try:
            sandbox.shell("echo mine >/etc/mine; echo mine >mine; echo x >/tmp/mine; echo x >/dev/shm/mine")
            found = backend.execute(other, live, Command(("sh", "-c", "ls /etc/mine mine /tmp/mine /dev/shm/mine")))
            assert found.stdout == ""
        finally:
            backend.stop(other, live)

    def test_calls_race_a_stop(self, sandbox: Sandbox) -> None:
        outcomes: list[str] = []

        def loop() -> None:
            try:
                while True:
                    sandbox.run("true")
            except SandboxError as error:
                outcomes.append(error.code)

        threads = [threading.Thread(target=loop) for _ in range(3)]
        for thread in threads:
            thread.start()
        sandbox.shell("sleep 0.3")
        sandbox.backend.stop(sandbox.spec, sandbox.live)
        for thread in threads:
            thread.join(30)
        assert len(outcomes) == 3


@pytest.mark.needs("root")
class TestRootOnly(NamespaceFixtures):
    @pytest.fixture
    def sandbox(self, backend: NamespaceBackend, spec: SandboxSpec) -> Iterator[Sandbox]:
        prepared = backend.prepare(spec)
        live = backend.start(prepared)
        try:
            yield Sandbox(backend, prepared, live)
        finally:
            backend.stop(prepared, live)

    def test_a_copied_layer_works(self, backend: NamespaceBackend, sandbox: Sandbox) -> None:
        """Hard links and directories that were copied up have index entries, which name inodes of the source."""
        sandbox.shell(
            "mkdir -p /etc/xdg && chmod 700 /etc/xdg && touch /etc/xdg/new && cp -a /etc/profile /etc/p1 && "
            "ln /etc/profile /etc/profile-link && echo more >>/etc/profile && mv /etc/skel /etc/skeleton && "
            "rm /etc/hosts && chmod 711 /usr/share"
        )
        expected = sandbox.shell(_INSPECT).stdout
        backend.stop(sandbox.spec, sandbox.live)
        layer = sandbox.spec.layer + "-copy"
        subprocess.run(["cp", "-a", sandbox.spec.layer, layer], check=True)
        index = Path(layer, "work", "index")
        assert [entry for entry in index.iterdir() if entry.is_dir()], "the test needs a directory in the index"
        fork = replace(sandbox.spec, id=new_id("sb"), layer=layer)
        live = backend.start(fork)
        try:
            assert backend.execute(fork, live, Command(("/bin/sh", "-c", _INSPECT))).stdout == expected
            script = (
                "echo again >>/etc/profile-link; tail -n1 /etc/profile; mv /etc/skeleton /etc/skel; ls -A /etc/skel"
            )
            changed = backend.execute(fork, live, Command(("/bin/sh", "-c", script)))
            assert changed.stdout.startswith("again\n")
            assert changed.stderr == ""
        finally:
            backend.stop(fork, live)

    def test_a_copied_layer_without_healing_would_not_mount(self, backend: NamespaceBackend, sandbox: Sandbox) -> None:
        backend.stop(sandbox.spec, sandbox.live)
        layer = sandbox.spec.layer + "-copy"
        subprocess.run(["cp", "-a", sandbox.spec.layer, layer], check=True)
        options = "lowerdir=/,upperdir=upper,workdir=work,index=on,nfs_export=on,redirect_dir=on"
        command = ["unshare", "-m", "sh", "-c", 'mount -t overlay overlay -o "$1" /mnt', "sh", options]
        assert subprocess.run(command, cwd=layer, capture_output=True, check=False).returncode != 0
        fork = replace(sandbox.spec, id=new_id("sb"), layer=layer)
        backend.stop(fork, backend.start(fork))
        assert subprocess.run(command, cwd=layer, capture_output=True, check=False).returncode == 0

    def test_a_broken_python_inside_is_said(self, sandbox: Sandbox) -> None:
        sandbox.shell("rm /usr/bin/python3; echo nonsense >/usr/bin/python3; chmod +x /usr/bin/python3")
        sandbox.backend.stop(sandbox.spec, sandbox.live)
        with pytest.raises(SandboxError, match="python3"):
            sandbox.backend.start(sandbox.spec)
        assert not _cgroups_of(sandbox.spec.id)

    def test_a_workspace_on_another_file_system(self, backend: NamespaceBackend, spec: SandboxSpec) -> None:
        point = Path(tempfile.mkdtemp(prefix="planarian-test-", dir="/var/tmp"))  # seen inside
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(point)], check=True)
        try:
            (point / "repo").mkdir()
            (point / "repo" / "hello.txt").write_text("hello\n")
            prepared = backend.prepare(replace(spec, workspace=str(point / "repo")))
            box = Sandbox(backend, prepared, backend.start(prepared))
            assert box.shell("cat hello.txt; pwd; echo new >new.txt; rm hello.txt").stdout == f"hello\n{point}/repo\n"
            backend.stop(prepared, box.live)
            assert [path.name for path in (point / "repo").iterdir()] == ["hello.txt"]
            box.live = backend.start(prepared)
            assert box.shell("ls").stdout == "new.txt\n"
            assert box.live.details["mounts"] == [str(point / "repo"), "/dev"]
            backend.stop(prepared, box.live)
            assert prepared.exclude == ("work/work", "workspace/work/work")
        finally:
            subprocess.run(["umount", str(point)], check=True)
            point.rmdir()

    def test_output_of_another_user(self, sandbox: Sandbox) -> None:
        become = "setpriv --reuid 65534 --regid 65534 --clear-groups"
        result = sandbox.shell(f"{become} sh -c 'echo out >/dev/stdout; echo err >/dev/stderr'")
        assert (result.stdout, result.stderr) == ("out\n", "err\n")

    def test_requests_of_another_user(self, sandbox: Sandbox) -> None:
        become = "setpriv --reuid 65534 --regid 65534 --clear-groups"
        result = sandbox.shell(f"{become} planarian log", requests=lambda request: AgentReply(4, f"{request.argv}"))
        assert (result.exit_code, result.stdout) == (4, "('log',)")

    def test_a_full_disk(self, spec: SandboxSpec, tmp_path: Path) -> None:
        """Calls work on, and the sandbox itself can make room again; only large input finds none."""
        small = tmp_path / "small"
        small.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(small)], check=True)
        try:
            (small / "layer").mkdir()
            backend = NamespaceBackend(small)
            prepared = backend.prepare(replace(spec, home=str(small), layer=str(small / "layer")))
            box = Sandbox(backend, prepared, backend.start(prepared))
            try:
                assert box.shell("head -c 20M /dev/zero >big 2>/dev/null").exit_code == 1
                assert os.statvfs(small).f_bavail == 0
                assert box.shell("exit 5").exit_code == 5
                assert box.shell("echo some output").stdout == "some output\n"
                assert box.command(Command(("cat",), stdin=b"x" * 10_000)).stdout == "x" * 10_000
                with pytest.raises(SandboxError):
                    box.command(Command(("cat",), stdin=bytes(channel.LARGE + 1)))
                assert box.shell("rm big").exit_code == 0
                assert box.shell("echo fine").stdout == "fine\n"
            finally:
                backend.stop(prepared, box.live)
        finally:
            subprocess.run(["umount", str(small)], check=True)

    def test_limits_are_in_the_control_groups(self, sandbox: Sandbox) -> None:
        contents = [
            (Path(group) / name).read_text().strip()
            for group in sandbox.live.cgroups
            for name in ("memory.max", "memory.limit_in_bytes", "pids.max")
            if (Path(group) / name).exists()
        ]
        assert sorted(contents) == ["256", str(512 * 1024**2)]
        for group in sandbox.live.cgroups:
            assert sandbox.live.init_pid in {int(pid) for pid in Path(group, "cgroup.procs").read_text().split()}

    def test_stop_removes_the_control_groups(self, sandbox: Sandbox) -> None:
        sandbox.shell(f"sleep {unique_seconds()} &")
        assert all(os.path.isdir(group) for group in sandbox.live.cgroups)
        sandbox.backend.stop(sandbox.spec, sandbox.live)
        assert not _cgroups_of(sandbox.spec.id)

    def test_a_frozen_sandbox_can_be_stopped(self, sandbox: Sandbox) -> None:
        group = next(group for group in sandbox.live.cgroups if os.path.exists(f"{group}/cgroup.freeze"))
        Path(group, "cgroup.freeze").write_text("1")
        sandbox.backend.stop(sandbox.spec, sandbox.live)
        assert not sandbox.backend.alive(sandbox.spec, sandbox.live)

    def test_restore_environment(self, backend: NamespaceBackend, sandbox: Sandbox) -> None:
        sandbox.shell("echo kept >kept.txt")
        backend.stop(sandbox.spec, sandbox.live)
        place = backend.restore_environment(sandbox.spec)
        workspace = place.mounts[os.path.realpath(sandbox.spec.workspace)]
        descriptors = len(os.listdir("/proc/self/fd"))

        def look() -> tuple[str, bool, bool]:
            own_mounts()
            place.enter()
            null = Path(place.mounts["/dev"], "null")
            with null.open("wb") as device:
                device.write(b"x")
            return Path(workspace, "kept.txt").read_text(), null.is_char_device(), os.path.isdir(f"{place.root}/usr")

        assert in_thread(look) == ("kept\n", True, True)
        deadline = time.monotonic() + 30
        while True:
            try:
                seen = in_thread(look)
                break
            except OSError as error:  # the kernel takes the first thread's mounts down a moment after it ended
                if error.errno != errno.EBUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        assert seen == ("kept\n", True, True)
        assert sandbox.spec.home not in Path("/proc/self/mountinfo").read_text()
        assert len(os.listdir("/proc/self/fd")) == descriptors
        assert not os.listdir(workspace)
        assert not os.listdir(place.root)
        assert place.private_network
        assert place.freezer in place.groups
        assert set(place.groups) == set(_cgroups_of(sandbox.spec.id))
        backend.stop(sandbox.spec, replace(sandbox.live, cgroups=()))
        assert not _cgroups_of(sandbox.spec.id)
        assert not list(Path(sandbox.spec.home, "mounts").iterdir())

    def test_the_place_of_a_restore_follows_no_link(self, backend: NamespaceBackend, sandbox: Sandbox) -> None:
        backend.stop(sandbox.spec, sandbox.live)
        devices = Path(sandbox.spec.layer, "upper", "dev")
        shutil.rmtree(devices)
        devices.symlink_to("/etc")
        place = backend.restore_environment(sandbox.spec)
        descriptors = len(os.listdir("/proc/self/fd"))

        def enter() -> None:
            own_mounts()
            place.enter()

        with pytest.raises(OSError, match="mount /dev"):
            in_thread(enter)
        assert len(os.listdir("/proc/self/fd")) == descriptors
        backend.stop(sandbox.spec, None)

    def test_what_was_made_for_another_id_goes_too(self, backend: NamespaceBackend, spec: SandboxSpec) -> None:
        """As of a copy that was handed to a sandbox: its groups and mount points have the copy's id."""
        prepared = backend.prepare(spec)
        live = backend.start(prepared)
        handed = replace(prepared, id=new_id("sb"))
        assert backend.execute(handed, live, Command(("echo", "fine"))).stdout == "fine\n"
        assert backend.alive(handed, live)
        assert live.init_pid in backend.tasks(handed, live)
        backend.stop(handed, live)
        assert not _cgroups_of(spec.id)
        assert not list(Path(spec.home, "mounts").iterdir())
        backend.stop(handed, backend.start(handed))

    def test_exclude_names_what_is_no_state(self, backend: NamespaceBackend, spec: SandboxSpec) -> None:
        assert backend.prepare(spec).exclude == ("work/work", "workspace/work/work")

    def test_hidden_entries_are_whiteouts(self, backend: NamespaceBackend, spec: SandboxSpec, tmp_path: Path) -> None:
        prepared = backend.prepare(spec)
        found = os.lstat(f"{prepared.layer}/upper/etc/shadow")
        assert stat.S_ISCHR(found.st_mode)
        assert found.st_rdev == 0

    def test_an_ordinary_users_layer_is_refused(self, backend: NamespaceBackend, spec: SandboxSpec) -> None:
        prepared = backend.prepare(spec)
        layout = Path(prepared.layer, "layout.json")
        layout.write_text(layout.read_text().replace("false", "true"))
        with pytest.raises(SandboxError, match="ordinary user"):
            backend.start(prepared)


_INSPECT = """
stat -c '%a %n' /etc/xdg /usr/share; ls /etc/xdg/new /etc/p1 /etc/skeleton; ls /etc/skel /etc/hosts
tail -n1 /etc/profile-link; test /etc/profile -ef /etc/profile-link && echo linked
"""


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0


def _tree_of(pid: int) -> set[str]:
    found = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return {line for line in found.stdout.splitlines() if "ps -o" not in line}


def _cgroups_of(sandbox_id: str) -> list[str]:
    found = subprocess.run(
        ["find", "/sys/fs/cgroup", "-type", "d", "-name", sandbox_id], capture_output=True, text=True, check=False
    )
    return found.stdout.split()
