"""A full disk, a killed CRIU, a killed runtime: nothing stays stopped, nothing is left running."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from planarian_core.codec import encode
from planarian_core.errors import CaptureError, RestoreError
from planarian_core.model import new_id
from planarian_core.testing.process import Subject, eventually, goes_on, python
from planarian_core.testing.sandbox import running
from planarian_process.criu import CriuBackend

pytestmark = [pytest.mark.needs("criu"), pytest.mark.needs("namespaces")]


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
from planarian_core.testing.sandbox import running
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
    mark = new_id("mark")
    counting.spawn(python(), "-c", "import time; time.sleep(10000)", mark)
    assert eventually(lambda: len(running(mark)) == 1)
    taken = counting.take()
    before = running(mark)
    yards = set(Path("/tmp").glob(".criu.mntns.*"))  # noqa: S108  # where CRIU makes them
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
        assert eventually(lambda: running(mark) == before)
    # Waits for those of other programs' restores.
    assert eventually(lambda: set(Path("/tmp").glob(".criu.mntns.*")) <= yards)  # noqa: S108
    assert goes_on(counting)
