"""Statepoints of podman sandboxes, and what happens when somebody else meddles with their containers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from planarian_core import Planarian, Sandbox
from planarian_core.errors import BackendUnavailable, PlanarianError, SandboxError
from planarian_core.testing.sandbox import running, unique_seconds, until
from planarian_core.testing.small_root import small_root
from planarian_core.testing.workloads import remove_all
from planarian_filesystem import pool_making
from planarian_filesystem.pool import Pool
from planarian_sandbox.podman_engine import LABEL_LAYER, LABEL_SANDBOX, Engine, container_name

pytestmark = [pytest.mark.needs("podman"), pytest.mark.needs("namespaces" if os.geteuid() == 0 else "userns")]
if os.geteuid() != 0:  # each home tries podman anew, which takes an ordinary user many seconds on some hosts
    pytestmark.append(pytest.mark.thorough)

MakeSandbox = Callable[..., Sandbox]


@pytest.fixture
def planarian(tmp_path: Path) -> Iterator[Planarian]:
    with Planarian.open(tmp_path / "home") as planarian:
        yield planarian
        remove_all(planarian)


@pytest.fixture
def make(planarian: Planarian, workspace: Path) -> MakeSandbox:
    def make(place: Path | str = workspace, **further: str | Path) -> Sandbox:
        return planarian.create_sandbox(place, sandbox="podman", **further)  # type: ignore[arg-type]  # by name

    return make


def podman(*arguments: str) -> str:
    """What the user's own podman says, not by way of the backend."""
    done = subprocess.run(["podman", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def state(sandbox: Sandbox) -> dict[str, object]:
    """Podman's own account of the sandbox's container."""
    found: dict[str, object] = json.loads(podman("inspect", container_name(sandbox.id)))[0]["State"]
    return found


def containers(home: Path) -> list[str]:
    """Names of the containers whose layers lie in this home."""
    text = f'{{{{.Names}}}} {{{{index .Labels "{LABEL_LAYER}"}}}}'
    listed = podman("ps", "--all", "--filter", f"label={LABEL_SANDBOX}", "--format", text)
    return [line.split()[0] for line in listed.splitlines() if line.split()[1].startswith(f"{home}/")]


def groups(sandbox_id: str) -> list[Path]:
    """Control groups that are named after a sandbox, in all hierarchies."""
    return [path for path in Path("/sys/fs/cgroup").rglob(sandbox_id) if path.is_dir()]


def test_the_environment_is_in_nobody_s_arguments(make: MakeSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may log in on the host reads the arguments of all processes."""
    monkeypatch.setenv("PLANARIAN_TEST_KEY", secret := unique_seconds())
    over, seen = threading.Event(), set[str]()

    def look() -> None:
        while not over.is_set():
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    seen.update(
                        kind for kind in ("cmdline", "environ") if secret.encode() in (process / kind).read_bytes()
                    )

    thread = threading.Thread(target=look)
    thread.start()
    try:
        assert make().run("env").stdout.count(secret) == 0
    finally:
        over.set()
        thread.join()
    assert seen == {"environ"}


@pytest.mark.needs("btrfs")
@pytest.mark.parametrize("own", [False, True], ids=["another-home", "its-own-home"])
def test_what_podman_leaves_running_keeps_no_pool(
    make: MakeSandbox, planarian: Planarian, tmp_path: Path, own: bool
) -> None:
    """conmon stays in the mount namespace that the sandbox was started in."""
    with Planarian.open(planarian.home if own else tmp_path / "other home") as whose:
        pool = Pool(whose.home)
    pool_making.create_file(pool, 256 << 20, sparse=True)
    try:
        sandbox = make(filesystem="copy")
        conmon = int(str(state(sandbox)["ConmonPid"]))
        point = str(pool.path).replace(" ", r"\040")
        assert f" {point} " not in Path(f"/proc/{conmon}/mountinfo").read_text()
        pool_making.destroy(pool)
        assert state(sandbox)["Running"]
    finally:
        subprocess.run(["umount", "--lazy", str(pool.path)], capture_output=True, check=False)


def test_it_is_a_container_of_the_user_s_podman(make: MakeSandbox, planarian: Planarian) -> None:
    sandbox = make()
    assert sandbox.record.process == ("podman" if shutil.which("criu") and os.geteuid() == 0 else "respawn")
    live = sandbox.record.live
    assert live is not None
    assert state(sandbox)["Pid"] == live.init_pid
    if os.geteuid() == 0:  # an ordinary user's podman may be in another user namespace already
        assert podman("exec", container_name(sandbox.id), "cat", "/proc/1/cmdline").endswith(f"{sandbox.id}\0")
    assert str(planarian.home) not in Path("/proc/self/mountinfo").read_text(), "something is mounted on the host"
    planarian.remove_sandbox(sandbox)
    assert containers(planarian.home) == []
    assert groups(sandbox.id) == []


def test_rollback_and_fork(make: MakeSandbox, planarian: Planarian) -> None:
    sandbox = make()
    mark = unique_seconds()
    sandbox.run("echo good > f; echo good > /etc/own; echo good > /dev/shm/own; rm hello.txt")
    sandbox.spawn(["sleep", mark])
    good = planarian.snapshot(sandbox, name="good")
    sandbox.run("echo bad > f; rm /etc/own /dev/shm/own; pkill sleep")
    assert until(lambda: not running(mark))
    sandbox.rollback(good)
    fork = planarian.fork(good)
    for one in (sandbox, fork):
        assert one.run("cat f /etc/own /dev/shm/own; ls hello.txt").stdout == "good\n" * 3
    assert until(lambda: len(running(mark)) == 2)
    fork.run("echo other > f")
    assert sandbox.run("cat f").stdout == "good\n"
    assert sorted(containers(planarian.home)) == sorted(map(container_name, (sandbox.id, fork.id)))
    assert {change.path for change in planarian.diff(good, of=fork).files} >= {"f"}


@pytest.mark.needs("root")
def test_an_image_s_files_are_what_it_stands_on(make: MakeSandbox, planarian: Planarian, tmp_path: Path) -> None:
    sandbox = make("/project", root=small_root(tmp_path / "root"))
    assert "ID=small" in sandbox.run("cat /etc/os-release").stdout
    assert sandbox.run(f"ls {tmp_path}").exit_code != 0
    good = planarian.snapshot(sandbox, name="good")
    assert sandbox.run("echo 42 > answer.txt; rm /etc/passwd; echo x > /usr/lib/new").exit_code == 0
    assert (tmp_path / "root/project/answer.txt").read_text() == "41\n"
    assert (tmp_path / "root/etc/passwd").exists()
    sandbox.rollback(good)
    assert sandbox.run("cat answer.txt; ls /etc/passwd /usr/lib/new").stdout == "41\n/etc/passwd\n"


def test_memory_past_podman_is_refused(make: MakeSandbox, planarian: Planarian, workspace: Path) -> None:
    with pytest.raises(BackendUnavailable, match="no container of podman any more"):
        make(process="criu")
    with pytest.raises(BackendUnavailable, match="is no container of podman"):
        planarian.create_sandbox(workspace, sandbox="namespace", process="podman")
    assert planarian.registry.sandboxes() == []
    sandbox = make(process="respawn")
    sandbox.spawn(["sleep", "1000"])
    good = planarian.snapshot(sandbox, name="good")
    assert any("sleep" in gap.subject for gap in good.coverage.missing)


def test_confinement(make: MakeSandbox) -> None:
    sandbox = make()
    status = dict(line.split(":\t", 1) for line in sandbox.run("cat /proc/self/status").stdout.splitlines())
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert status["CapBnd"] == "00000000a80425fb"  # the container engines' default
    assert len(sandbox.run("ls -d /proc/[0-9]*").stdout.split()) < 8
    for text in (
        "echo x > /etc/hostname", "echo x > /run/.containerenv", "echo c > /proc/sysrq-trigger",
        "echo 1 > /proc/sys/kernel/panic", "mount -t tmpfs none /mnt", "unshare -U true", "mkdir /sys/fs/cgroup/pids/x",
        "mknod /tmp/disk b 254 0 && cat /tmp/disk", "echo x > /sys/kernel/uevent_helper", "test -s /proc/kallsyms",
        "dmesg", "echo 4 > /proc/self/clear_refs", "echo x > /proc/self/comm",
    ):  # fmt: skip
        assert sandbox.run(text).exit_code != 0, text
    interfaces = sandbox.run("tail -n +3 /proc/net/dev | cut -d: -f1").stdout.split()
    assert not [name for name in interfaces if name.startswith(("eth", "en", "wl"))]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls")
def test_forbidden_system_calls(make: MakeSandbox) -> None:
    program = """
import ctypes, errno, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def error(*arguments):
    return errno.errorcode[ctypes.get_errno()] if libc.syscall(*arguments) < 0 else "none"
print(error(41, 40, 1, 0), error(41, 38, 5, 0), error(425, 1, 0), error(435, 0, 0), error(321, 0, 0, 0))
print(error(272, 0x10000000), error(272, 0x20000000), error(56, 0x10000000 | 17, 0, 0, 0, 0), error(41, 1, 1, 0))
"""
    answer = make().run(["/usr/bin/python3", "-c", program])
    assert answer.stdout.splitlines() == [
        "EAFNOSUPPORT EAFNOSUPPORT ENOSYS ENOSYS ENOSYS",  # vsock, kernel crypto, io_uring, clone3, bpf
        "EPERM EPERM EPERM none",
    ], answer


def test_a_fork_bomb_is_bounded_and_ended(make: MakeSandbox) -> None:
    sandbox = make()
    started = time.monotonic()
    # Without pipes: root's are counted together, and other tests' processes could not be restored meanwhile.
    sandbox.run("bomb() { bomb & bomb & }; bomb; sleep 60", timeout=3.0)
    assert time.monotonic() - started < 60
    assert sandbox.run("echo fine").stdout == "fine\n"


def test_with_the_host_s_network_names_are_resolved_as_on_the_host(make: MakeSandbox) -> None:
    sandbox = make(network="host")
    assert sandbox.run("cat /etc/resolv.conf").stdout == Path("/etc/resolv.conf").read_text()
    assert sandbox.run("cat /proc/net/dev").stdout.count(":") == Path("/proc/net/dev").read_text().count(":")


# --- faults ---------------------------------------------------------------------------------------------------------


def test_a_container_that_was_removed_behind_our_back(make: MakeSandbox, planarian: Planarian) -> None:
    sandbox = make()
    sandbox.run("echo kept > f")
    good = planarian.snapshot(sandbox, name="good")
    podman("rm", "--force", "--time=0", container_name(sandbox.id))
    with pytest.raises(SandboxError, match="attach"):
        sandbox.run("true")
    planarian.attach(sandbox)
    sandbox = planarian.sandbox(sandbox.id)
    assert sandbox.run("cat f").stdout == "kept\n"
    podman("rm", "--force", "--time=0", container_name(sandbox.id))
    planarian.rollback(sandbox, good)
    assert planarian.sandbox(sandbox.id).run("cat f").stdout == "kept\n"


def test_conmon_is_not_needed(make: MakeSandbox, planarian: Planarian) -> None:
    sandbox = make()
    conmon = state(sandbox)["ConmonPid"]
    assert isinstance(conmon, int)
    assert conmon > 0
    os.kill(conmon, signal.SIGKILL)
    assert until(lambda: not Path(f"/proc/{conmon}").exists())
    assert sandbox.run("echo one > f; cat f").stdout == "one\n"
    good = planarian.snapshot(sandbox, name="good")
    sandbox.rollback(good)
    assert sandbox.run("cat f").stdout == "one\n"


def test_podman_is_gone(make: MakeSandbox, planarian: Planarian, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = make(process="respawn")
    mark = unique_seconds()
    sandbox.spawn(["sleep", mark])
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "/nowhere")
        assert sandbox.run("echo fine").stdout == "fine\n"
        planarian.snapshot(sandbox, name="good")
        with pytest.raises(SandboxError, match="podman is not installed") as caught:
            sandbox.stop()
        assert "processes have ended" in caught.value.state
        assert not running(mark)
        with pytest.raises(BackendUnavailable, match="podman is not installed"):
            make()
    assert containers(planarian.home) == [container_name(sandbox.id)]


def test_a_runtime_without_its_program_is_named() -> None:
    with pytest.raises(BackendUnavailable, match="no-such-runtime is not installed"):
        Engine.find("no-such-runtime")


def test_containers_of_a_home_that_was_removed_are_reclaimed(
    make: MakeSandbox, planarian: Planarian, tmp_path: Path, workspace: Path
) -> None:
    with Planarian.open(tmp_path / "other") as other:
        forsaken = other.create_sandbox(workspace, sandbox="podman")
        mark = unique_seconds()
        forsaken.spawn(["sleep", mark])
    subprocess.run(["rm", "-rf", str(tmp_path / "other")], check=True)
    assert containers(tmp_path / "other") == [container_name(forsaken.id)]
    sandbox = make()
    assert containers(tmp_path) == [container_name(sandbox.id)]
    assert not running(mark)


CREATE = """
import sys
from planarian_core import Planarian
with Planarian.open(sys.argv[1]) as planarian:
    print("begins", flush=True)
    planarian.create_sandbox(sys.argv[2], sandbox="podman")
    print("made", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize(
    "delay", [0.5, 0.7, 0.8, 1.0, *(pytest.param(delay, marks=pytest.mark.thorough) for delay in (0.3, 0.6, 0.9, 1.2))]
)
def test_a_runtime_killed_while_podman_works_leaves_nothing(tmp_path: Path, workspace: Path, delay: float) -> None:
    """At whatever moment: a container that nobody recorded goes at the next opening."""
    home = tmp_path / "home"
    with Planarian.open(home) as planarian:
        assert planarian.plugins.sandbox("podman").probe().available
    runtime = subprocess.Popen(
        [sys.executable, "-c", CREATE, str(home), str(workspace)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert runtime.stdout is not None
    assert runtime.stdout.readline() == b"begins\n"
    time.sleep(delay)
    runtime.kill()
    runtime.communicate()
    with Planarian.open(home) as planarian:
        made = planarian.registry.sandboxes()
        assert sorted(containers(home)) == sorted(container_name(record.id) for record in made if record.live)
        for record in made:
            planarian.remove_sandbox(planarian.sandbox(record.id))
    assert containers(home) == []
    found = [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(home).encode() in _content(path)]
    assert {path: _content(path) for path in found} == {}


@pytest.mark.parametrize(
    "fault",
    [
        *("create.started", "rollback.stopped", "fork.restored"),
        *(
            pytest.param(point, marks=pytest.mark.thorough)
            for point in ("create.begun", "rollback.switched", "rollback.restored", "fork.staged")
        ),
    ],
)
def test_a_runtime_killed_at_a_fault_point(
    make: MakeSandbox, planarian: Planarian, workspace: Path, fault: str
) -> None:
    sandbox = make()
    sandbox.run("echo good > f")
    planarian.snapshot(sandbox, name="good")
    sandbox.run("echo bad > f")
    kind = fault.partition(".")[0]
    operate = Path(__file__).parents[1] / "crash" / "operate.py"
    further = [str(workspace), "podman", "respawn", "copy"] if kind == "create" else ["good"]
    target = "fresh" if kind == "create" else sandbox.id
    done = subprocess.run(
        [sys.executable, str(operate), str(planarian.home), kind, target, *further],
        env={**os.environ, "PLANARIAN_FAULT": f"{fault}=kill"}, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    with Planarian.open(planarian.home) as again:
        survivor = again.sandbox(sandbox.id)
        assert survivor.run("cat f").stdout == ("good\n" if kind == "rollback" else "bad\n")
        assert containers(again.home) == [container_name(sandbox.id)]
        assert len(again.registry.sandboxes()) == 1


@pytest.mark.needs("root")
def test_no_room_to_start(tmp_path: Path, workspace: Path) -> None:
    home = tmp_path / "small"
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "small", str(home)], check=True)
    try:
        with Planarian.open(home) as planarian:
            sandbox = planarian.create_sandbox(workspace, sandbox="podman")
            sandbox.run("echo one > f")
            planarian.snapshot(sandbox, name="one")
            sandbox.run("head -c 9M /dev/urandom > big")
            with pytest.raises(PlanarianError) as caught:
                planarian.snapshot(sandbox, name="two")
            assert "space" in caught.value.remedy + caught.value.message
            planarian.rollback(sandbox, "one", safety=False)
            assert sandbox.run("cat f; ls big").stdout == "one\n"
            planarian.remove_sandbox(sandbox)
        assert containers(home) == []
    finally:
        subprocess.run(["umount", "-l", str(home)], check=True)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
