"""A runtime that is killed while it restores a tree frozen leaves nothing that the sandbox's stop doesn't remove."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from planarian_core.codec import encode
from planarian_core.model import SandboxSpec, new_id
from planarian_core.testing.process import Subject, Taken, eventually, goes_on, python
from planarian_core.testing.sandbox import running

pytestmark = [pytest.mark.needs("criu"), pytest.mark.needs("namespaces")]

RESTORE = """
import json, os, signal, sys
from pathlib import Path
from planarian_core.codec import decode
from planarian_core.model import Artefact, SandboxSpec
from planarian_process.criu import CriuBackend
from planarian_sandbox.namespace import NamespaceBackend
data = json.loads(sys.argv[1])
spec, artefact = decode(SandboxSpec, data["spec"]), decode(Artefact, data["artefact"])
host, backend = NamespaceBackend(Path(spec.home)), CriuBackend(Path(spec.home))
environment = host.restore_environment(spec)
print("begins", flush=True)
backend.restore(artefact, Path(data["images"]), environment, frozen=True)
print("restored", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def marked(subject: Subject) -> Iterator[tuple[Subject, str]]:
    mark = new_id("mark")
    subject.spawn(python(), "-c", "import time; time.sleep(10000)", mark)
    assert eventually(lambda: len(running(mark)) == 1)
    yield subject, mark
    assert eventually(lambda: len(running(mark)) == 1), "the source runs on"


def copy_of(subject: Subject, taken: Taken) -> SandboxSpec:
    layer = subject.folder / new_id("copy")
    subprocess.run(["cp", "-a", taken.layer, layer], check=True)
    return replace(subject.spec, id=new_id("sb"), layer=str(layer))


def remains(spec: SandboxSpec) -> list[str]:
    found = subprocess.run(
        ["find", "/sys/fs/cgroup", "-type", "d", "-name", spec.id], capture_output=True, text=True, check=False
    )
    return [*found.stdout.split(), *map(str, Path(spec.home, "mounts").glob(f"{spec.id}*"))]


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.02, 0.03, 0.04, 0.05, None])
def test_our_own_death_in_the_middle(marked: tuple[Subject, str], delay: float | None) -> None:
    """``None``: when all is restored and stands still, and nobody has written that down yet."""
    subject, mark = marked
    taken = subject.take()
    spec = copy_of(subject, taken)
    before = running(mark)
    data = {"spec": encode(spec), "artefact": encode(taken.artefact), "images": str(taken.images)}
    process = subprocess.Popen(
        [sys.executable, "-c", RESTORE, json.dumps(data)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"begins\n"
    if delay is None:
        assert process.stdout.readline() == b"restored\n"
        assert len(running(mark)) == 2
    else:
        time.sleep(delay)
    process.kill()
    process.communicate()
    subject.host.stop(spec, None)
    assert eventually(lambda: running(mark) == before)
    subject.host.stop(spec, None)
    assert not remains(spec)
    assert str(subject.folder) not in Path("/proc/self/mountinfo").read_text()
    assert eventually(lambda: not _workers())


def _workers() -> list[str]:
    """CRIU workers whose runtime is gone."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[1]
            if "swrk" in Path("/proc", name, "cmdline").read_text().split("\0") and parent == "1":
                found.append(name)
        except OSError:
            continue
    return found


def test_a_server_answers_when_its_copy_is_woken(counting: Subject) -> None:
    """Connections inside and the network of its own come back with it."""
    counting.spawn(python(), "-m", "http.server", "8000", "--bind", "127.0.0.1")
    ask = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8000/').status)"
    assert eventually(lambda: counting.run(python(), "-c", ask).stdout == "200\n")
    copy = counting.fork(counting.take(), frozen=True)
    try:
        networks = {os.readlink(f"/proc/{pid}/ns/net") for pid in ("self", counting.live.init_pid, copy.live.init_pid)}
        assert len(networks) == 3
        copy.wake()
        assert copy.run(python(), "-c", ask).stdout == "200\n"
        assert counting.run(python(), "-c", ask).stdout == "200\n"
        assert goes_on(copy)
    finally:
        copy.stop()
