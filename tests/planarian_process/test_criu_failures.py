"""What criu can't capture or restore is named, and does no harm; nor does a death in the middle."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from planarian_core.codec import encode
from planarian_core.errors import CaptureError, RestoreError
from planarian_core.interfaces import SandboxCapabilities
from planarian_core.model import Network, SandboxSpec
from planarian_core.testing.process import COUNTER, Subject, eventually, goes_on, python
from planarian_process.criu import CriuBackend
from planarian_process.criu_tasks import read_tasks, refuse_uncapturable
from planarian_sandbox.namespace import NamespaceBackend

pytestmark = [pytest.mark.needs("criu"), pytest.mark.needs("namespaces")]

HOLD = "import os, sys, time, ctypes\nlibc = ctypes.CDLL(None)\n{}\nprint('ready', flush=True)\ntime.sleep(1000)"


@pytest.fixture
def counting(subject: Subject) -> Subject:
    subject.spawn(python(), "-c", COUNTER)
    subject.shows("count")
    return subject


def states(subject: Subject) -> set[str]:
    """State letters of all threads of the sandbox, by /proc."""
    found = set()
    for pid in subject.running.tasks():
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                text = Path(f"/proc/{pid}/task/{thread}/stat").read_text()
                found.add(text.rpartition(")")[2].split()[0])
    return found


def children(name: str) -> list[int]:
    """Our own child processes with this name."""
    found = []
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            for pid in Path(f"/proc/self/task/{thread}/children").read_text().split():
                if Path(f"/proc/{pid}/comm").read_text().strip() == name:
                    found.append(int(pid))
    return found


@contextlib.contextmanager
def holder(statement: str) -> Iterator[int]:
    """A process of the host that holds something that no sandbox may have."""
    process = subprocess.Popen([sys.executable, "-c", HOLD.format(statement)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        with process.stdout:
            if process.stdout.readline() != b"ready\n":
                pytest.skip(f"this host does not allow it: {statement}")
        yield process.pid
    finally:
        process.kill()
        process.wait()


# --- probe and limits -------------------------------------------------------------------------------------------------


def test_probe_tries_and_remembers(criu_home: Path) -> None:
    first = CriuBackend(criu_home).probe()
    assert first.available, first.reason
    assert "CRIU" in first.reason
    cached = list((criu_home / "cache").glob("criu-probe-*.json"))
    assert len(cached) == 1
    assert {"works", "version", "mem_track"} <= set(json.loads(cached[0].read_text()))
    assert CriuBackend(criu_home).probe() == first


def test_probe_leaves_nothing_behind(criu_home: Path) -> None:
    CriuBackend(criu_home).probe()
    assert str(criu_home) not in Path("/proc/self/mountinfo").read_text()
    assert sorted(path.suffix for path in (criu_home / "cache").iterdir()) == [".json", ".kdat"]


def test_a_spoilt_finding_is_made_anew(criu_home: Path) -> None:
    first = CriuBackend(criu_home).probe()
    (file,) = (criu_home / "cache").glob("criu-probe-*.json")
    file.write_text('{"works"')
    assert CriuBackend(criu_home).probe() == first


def test_a_missing_binary_names_the_packages(criu_home: Path) -> None:
    found = CriuBackend(criu_home, "criu-that-is-not-there").probe()
    assert not found.available
    assert "criu-that-is-not-there" in found.reason
    assert "apt-get install" in found.remedy


def test_a_binary_that_is_no_criu(criu_home: Path, tmp_path: Path) -> None:
    impostor = tmp_path / "criu"
    impostor.write_text("#!/bin/sh\necho 'nonsense' >&2\nexit 3\n")
    impostor.chmod(0o755)
    found = CriuBackend(criu_home, str(impostor)).probe()
    assert not found.available
    assert "exit code 3" in found.reason


def test_serves_only_a_tree(criu_backend: CriuBackend, criu_spec: SandboxSpec) -> None:
    flat = SandboxCapabilities(isolated=False, process_tree=False, in_place=True)
    refused = criu_backend.serves(criu_spec, flat)
    assert not refused.available
    assert refused.remedy


# --- what can't be captured -------------------------------------------------------------------------------------------


def test_a_traced_process_is_named(counting: Subject) -> None:
    traced = """
import ctypes, os, time
pid = os.fork()
if pid == 0:
    ctypes.CDLL(None).ptrace(0, 0, 0, 0)
    os.kill(os.getpid(), 19)
    time.sleep(1000)
os.waitpid(pid, 0x2)
open("tracing", "w").close()
time.sleep(1000)
"""
    counting.spawn(python(), "-c", traced)
    assert eventually(lambda: "yes" in counting.shell("test -e tracing && echo yes").stdout)
    with pytest.raises(CaptureError, match=r"process \d+ \(.*is traced by process \d+"):
        counting.take()
    assert goes_on(counting)


@pytest.mark.parametrize("where", ["os.chdir('/proc/self')", "held = os.open('/proc/1', os.O_RDONLY)"])
def test_a_directory_of_a_process_is_named(counting: Subject, where: str) -> None:
    counting.spawn(python(), "-c", f"import os, time\n{where}\nopen('/tmp/there', 'w').close()\ntime.sleep(1000)")
    assert eventually(lambda: "yes" in counting.shell("test -e /tmp/there && echo yes").stdout)
    with pytest.raises(CaptureError, match=r"process \d+ \(.*/proc/\d+") as caught:
        counting.take()
    assert caught.value.remedy
    assert goes_on(counting)


def test_what_lies_below_a_process_in_proc_is_fine(counting: Subject) -> None:
    program = "import os, time\na = open('/proc/self/stat')\nos.chdir('/proc/self/fd')\ntime.sleep(1000)"
    counting.spawn(python(), "-c", program)
    counting.rollback(counting.take())
    assert goes_on(counting)


@pytest.mark.parametrize(
    ("statement", "cause"),
    [
        ("a = os.open('/dev/fuse', os.O_RDWR)", r"/dev/fuse.*10:229"),
        ("ring = libc.syscall(425, 8, ctypes.create_string_buffer(120)); assert ring > 0", "io_uring"),
        ("fault = libc.syscall(323, 1); assert fault > 0", "userfaultfd"),
    ],
)
def test_kernel_objects_are_named(statement: str, cause: str) -> None:
    with holder(statement) as pid, pytest.raises(CaptureError, match=cause):
        refuse_uncapturable(read_tasks(pid, [pid]))


def test_an_ordinary_process_is_not_refused() -> None:
    with holder("a = os.open('/dev/null', os.O_RDWR); b = os.eventfd(0)") as pid:
        refuse_uncapturable(read_tasks(pid, [pid]))


def test_a_pid_namespace_within_is_named() -> None:
    done = subprocess.Popen(["unshare", "--pid", "--fork", "sleep", "1000"])
    try:
        inner = Path(f"/proc/{done.pid}/task/{done.pid}/children")
        assert eventually(lambda: bool(inner.read_text().split()))
        with pytest.raises(CaptureError, match=r"sleep 1000\).*pid namespace"):
            refuse_uncapturable(read_tasks(done.pid, [int(inner.read_text())]))
    finally:
        for pid in (*map(int, inner.read_text().split()), done.pid):
            os.kill(pid, signal.SIGKILL)
        done.wait()


# --- what is closed by policy -----------------------------------------------------------------------------------------


def test_connections_in_flight_are_gaps(subject: Subject) -> None:
    program = """
import socket, time
server = socket.create_server(("127.0.0.1", 7000))
client = socket.create_connection(("127.0.0.1", 7000))
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(("127.0.0.1", 0))
datagrams.sendto(b"unread", datagrams.getsockname())
open("ready", "w").write("yes")
while True:
    time.sleep(0.01)
    try:
        again = open("again").read()
    except OSError:
        continue
    client.close()
    fresh = socket.create_connection(("127.0.0.1", 7000))
    open("answer", "w").write("connected")
    break
"""
    subject.spawn(python(), "-c", program)
    subject.shows("ready")
    taken = subject.take()
    said = {gap.subject.partition("): ")[2]: gap.reason for gap in taken.gaps}
    assert set(said) == {"TCP connections that it has not accepted", "UDP datagrams that it has not read"}
    assert all("process" in gap.subject and "python3" in gap.subject for gap in taken.gaps)
    subject.rollback(taken)
    subject.shell("touch again")
    assert subject.shows("answer") == "connected"


def test_connections_out_of_the_sandbox_are_closed_and_said(
    criu_backend: CriuBackend, criu_spec: SandboxSpec, tmp_path: Path
) -> None:
    host = NamespaceBackend(Path(criu_spec.home))
    spec = host.prepare(replace(criu_spec, network=Network.HOST))
    assert "closes" in criu_backend.serves(spec, host.capabilities).reason
    subject = Subject(criu_backend, host, spec, tmp_path, host.start(spec))
    program = """
import socket, sys, time
client = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
open("ready", "w").write("yes")
time.sleep(0.2)
n = 0
while True:
    try:
        client.send(b"x")
        n += 1
        open("sent", "w").write(str(n))
    except OSError as error:
        open("lost", "w").write(type(error).__name__)
        time.sleep(1000)
    time.sleep(0.02)
"""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            subject.spawn(python(), "-c", program, str(server.getsockname()[1]))
            peer, _ = server.accept()
            with peer:
                subject.shows("ready")
                taken = subject.take()
                assert [gap.reason for gap in taken.gaps] == ["closed after a restore"]
                sent = int(subject.shows("sent"))
                assert eventually(lambda: int(subject.shows("sent")) > sent)
                assert subject.read("lost") == ""
                subject.rollback(taken)
                assert subject.shows("lost")
    finally:
        subject.stop()


# --- failures in the middle -------------------------------------------------------------------------------------------


def test_a_full_disk(counting: Subject, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "planarian-test", small], check=True)
    try:
        images = small / "images"
        images.mkdir()
        with pytest.raises(CaptureError, match="full") as caught:
            counting.take(images)
        assert "No space left" in caught.value.message
        assert not list(images.iterdir())
    finally:
        subprocess.run(["umount", small], check=True)
    assert goes_on(counting)
    assert not states(counting) & {"T", "t"}


def test_criu_killed_in_the_instant(counting: Subject) -> None:
    images = counting.new_images()

    def kill() -> None:
        (worker,) = children("criu")
        os.kill(worker, signal.SIGKILL)

    with pytest.raises(CaptureError, match="signal 9"):
        counting.take(images, inside=kill)
    assert not list(images.iterdir())
    assert goes_on(counting)
    assert not states(counting) & {"T", "t"}
    counting.rollback(counting.take())
    assert goes_on(counting)


def test_criu_killed_at_any_moment(counting: Subject) -> None:
    """Nothing stays stopped. A process in which CRIU was just at work may end with it: then the error says so."""
    for delay in (0.0, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04):

        def kill(delay: float = delay) -> None:
            eventually(lambda: bool(children("criu")), 5)
            time.sleep(delay)
            for worker in children("criu"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        error = ""
        try:
            counting.take()
        except CaptureError as failure:
            error = str(failure)
        killer.join()
        assert not states(counting) & {"T", "t"}
        if "roll back to a statepoint" in error:
            assert "runs on without" in error or "does not run" in error
            return
        assert goes_on(counting)


def test_our_own_death_in_the_instant(counting: Subject) -> None:
    """The sandbox isn't left standing, and the next capture works."""
    script = """
import json, sys
from pathlib import Path
from planarian_core.codec import decode
from planarian_core.interfaces import RunningSandbox
from planarian_core.model import LiveSandbox, SandboxSpec
from planarian_process.criu import CriuBackend
data = json.loads(sys.argv[1])
spec, live, tasks = decode(SandboxSpec, data["spec"]), decode(LiveSandbox, data["live"]), tuple(data["tasks"])
backend = CriuBackend(Path(spec.home))
with backend.instant(RunningSandbox(spec, live, lambda: tasks), Path(data["images"])):
    print("in the instant", flush=True)
    sys.stdin.read()
"""
    data = {
        "spec": encode(counting.spec),
        "live": encode(counting.live),
        "tasks": list(counting.running.tasks()),
        "images": str(counting.new_images()),
    }
    process = subprocess.Popen(
        [sys.executable, "-c", script, json.dumps(data)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"in the instant\n"
    assert "t" in states(counting)
    process.kill()
    process.communicate()
    assert isinstance(counting.backend, CriuBackend)
    counting.backend.thaw(counting.running)
    assert not states(counting) & {"T", "t"}
    assert goes_on(counting)
    counting.rollback(counting.take())
    assert goes_on(counting)


def test_a_restore_that_fails_leaves_nothing(counting: Subject) -> None:
    """The files don't fit the image: CRIU's reason is passed on."""
    counting.spawn(python(), "-c", "held = open('held', 'w+'); import time; time.sleep(1000)")
    counting.shell("until test -e held; do sleep 0.01; done")
    taken = counting.take()
    for file in taken.layer.rglob("held"):
        file.unlink()
    with pytest.raises(RestoreError, match=r"held.* is missing") as caught:
        counting.fork(taken)
    assert caught.value.state
    assert goes_on(counting)
    assert not children("criu")


def test_a_restore_whose_criu_is_killed_leaves_nothing(counting: Subject) -> None:
    taken = counting.take()
    before = running_counters()
    for delay in (0.0, 0.01, 0.02, 0.03):

        def kill(delay: float = delay) -> None:
            eventually(lambda: bool(children("criu")), 5)
            time.sleep(delay)
            for worker in children("criu"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        with contextlib.suppress(RestoreError):  # or it was too late
            counting.fork(taken).stop()
        killer.join()
        assert eventually(lambda: running_counters() == before)
    assert goes_on(counting)


def running_counters() -> set[int]:
    """Host pids of live processes that run :data:`COUNTER`."""
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if COUNTER.encode() in Path("/proc", name, "cmdline").read_bytes():
                found.add(int(name))
    return found
