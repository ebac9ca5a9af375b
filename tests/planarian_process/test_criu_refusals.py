"""What criu can't capture is named before anything is stopped; what is left out is said."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from planarian_core.errors import CaptureError
from planarian_core.model import Network, SandboxSpec
from planarian_core.testing.process import COUNTER, Subject, eventually, goes_on, python
from planarian_process.criu import CriuBackend
from planarian_process.criu_tasks import read_tasks, refuse_uncapturable
from planarian_sandbox.namespace import NamespaceBackend

pytestmark = [pytest.mark.needs("criu"), pytest.mark.needs("namespaces")]

HOLD = "import os, sys, time, ctypes\nlibc = ctypes.CDLL(None)\n{}\nprint('ready', flush=True)\ntime.sleep(1000)"


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


def test_a_workspace_on_another_file_system(criu_backend: CriuBackend, criu_spec: SandboxSpec, tmp_path: Path) -> None:
    """It has an overlay of its own below the sandbox's root, which CRIU must find again."""
    other = tmp_path / "other"
    other.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "planarian-test", other], check=True)
    try:
        workspace = other / "odd ]: name"
        workspace.mkdir()
        (workspace / "hello.txt").write_text("hello\n")
        host = NamespaceBackend(Path(criu_spec.home))
        spec = host.prepare(replace(criu_spec, workspace=str(workspace)))
        subject = Subject(criu_backend, host, spec, tmp_path, host.start(spec))
        try:
            assert str(workspace) in Path(f"/proc/{subject.live.init_pid}/mountinfo").read_text().replace("\\040", " ")
            subject.spawn(python(), "-c", COUNTER)
            subject.shows("count")
            taken = subject.take()
            subject.shell("echo later >hello.txt")
            subject.rollback(taken)
            assert goes_on(subject)
            assert subject.read("hello.txt") == "hello\n"
            fork = subject.fork(taken)
            try:
                assert goes_on(fork)
            finally:
                fork.stop()
        finally:
            subject.stop()
    finally:
        subprocess.run(["umount", other], check=True)
