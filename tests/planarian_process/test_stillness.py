"""The proof that nothing has moved since a capture by CRIU: it holds for what waits."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from planarian_core.model import Command
from planarian_core.testing.process import Subject
from planarian_core.testing.stillness import StillnessTrial
from planarian_process.stillness import DETAIL, idle

pytestmark = [pytest.mark.needs("criu"), pytest.mark.needs("namespaces")]


@pytest.fixture
def trial(subject: Subject) -> StillnessTrial:
    return StillnessTrial(subject)


def doubt(trial: StillnessTrial) -> str:
    """Why there is no proof; empty when there is one."""
    return str(trial.artefact.details["stillness"].get("doubt", ""))


WAITING = {
    "asleep": "ready(); time.sleep(1000)",
    "accept": """
s = socket.socket()
s.bind(('127.0.0.1', 80))
s.listen()
ready()
while True: s.accept()
""",
    "accept on a path": "s = socket.socket(socket.AF_UNIX); s.bind('/tmp/s'); s.listen(); ready(); s.accept()",
    "receive": "s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('127.0.0.1', 80)); ready(); s.recv(9)",
    "poll": "a, b = socket.socketpair(); p = select.poll(); p.register(a, 1); ready(); p.poll()",
    "poll with a timeout": "a, b = socket.socketpair(); p = select.poll(); p.register(a, 1); ready(); p.poll(10**6)",
    "select": "a, b = socket.socketpair(); ready(); select.select([a], [], [], 1000)",
    "epoll": """
a, b = socket.socketpair()
p = select.epoll()
p.register(a, 1)
ready()
while True: p.poll()
""",
    "asyncio": """
import asyncio
async def main():
  s = await asyncio.start_server(print, '127.0.0.1', 80)
  ready()
  await s.serve_forever()
asyncio.run(main())
""",
    "pipe": "a, b = os.pipe(); ready(); os.read(a, 1)",
    "threads": """
e = threading.Event()
for _ in range(5): threading.Thread(target=e.wait).start()
ready()
e.wait(1000)
""",
    "signal": "ready(); signal.pause()",
    "child": "c = subprocess.Popen(['sleep', '1000']); time.sleep(0.3); ready(); c.wait()",
    "stopped": "ready(); os.kill(os.getpid(), signal.SIGSTOP)",
    "a byte in a pipe": "a, b = os.pipe(); os.write(b, b'x'); ready(); time.sleep(1000)",
    "terminal": "import pty; m, s = pty.openpty(); ready(); os.read(m, 1)",
}
"""Programs that wait, each in its own way."""


@pytest.mark.parametrize("program", WAITING.values(), ids=WAITING)
def test_what_waits_is_still(trial: StillnessTrial, program: str) -> None:
    trial.start(program)
    trial.capture()
    assert doubt(trial) == ""
    assert trial.still()
    for _ in range(2):
        trial.subject.shell("ls -l / >/tmp/list; cat /proc/[0-9]*/status /proc/[0-9]*/maps >/dev/null")
        assert trial.still()


def test_a_second_capture_gives_its_own_proof(trial: StillnessTrial) -> None:
    trial.start(WAITING["accept"])
    first = trial.capture()
    second = trial.capture()
    assert not trial.backend.still(trial.subject.running, first)
    assert trial.backend.still(trial.subject.running, second)


def test_an_empty_sandbox_is_still(trial: StillnessTrial) -> None:
    trial.capture()
    assert trial.still()
    trial.subject.run("true")
    assert trial.still()
    assert idle(trial.subject.running)


def test_a_session_that_nobody_uses_is_still(trial: StillnessTrial) -> None:
    session = Command(("cd /; x=1",), session="one", timeout=20)
    trial.subject.host.execute(trial.subject.spec, trial.subject.live, session)
    trial.settle()
    trial.capture()
    assert trial.still()
    trial.subject.run("true")
    assert trial.still()
    trial.subject.host.execute(trial.subject.spec, trial.subject.live, session)
    assert not trial.still()


def test_a_call_that_asks_for_the_snapshot_gives_no_proof(trial: StillnessTrial) -> None:
    trial.start(WAITING["asleep"])
    sandbox = replace(trial.subject.running, in_flight=(2,))
    with trial.backend.instant(sandbox, trial.subject.new_images()) as instant:
        pass
    assert instant.artefact is not None
    assert "under way" in instant.artefact.details[DETAIL]["doubt"]


def test_what_was_restored_are_other_processes(trial: StillnessTrial) -> None:
    trial.start(WAITING["asleep"])
    trial.capture()
    assert trial.still()
    assert trial.taken is not None
    trial.subject.rollback(trial.taken)
    assert not trial.still()
    trial.settle()
    trial.capture()
    assert trial.still()


def test_a_stopped_sandbox_is_not_still(trial: StillnessTrial) -> None:
    trial.start(WAITING["asleep"])
    trial.capture()
    running = trial.subject.running
    trial.subject.stop()
    assert not trial.backend.still(running, trial.artefact)
    assert not idle(running)


def test_without_a_baseline_nothing_is_still(trial: StillnessTrial) -> None:
    artefact = trial.capture()
    without: list[dict[str, Any]] = [{}, {DETAIL: None}, {DETAIL: {}}, {DETAIL: {"digest": "", "memory": True}}]
    for details in without:
        assert not trial.backend.still(trial.subject.running, replace(artefact, details=details))


@pytest.mark.parametrize("count", [1, 20])
def test_the_cost_grows_with_the_processes_alone(trial: StillnessTrial, count: int) -> None:
    """In files opened, because a time says little on a busy machine."""
    for _ in range(count):
        trial.subject.spawn("sleep", "1000")
    trial.settle()
    trial.capture()
    opened = _count_events(trial.still, "open")
    assert opened <= 25 + 8 * count
    assert _count_events(trial.still, "subprocess.Popen") == 0


_COUNTING: list[str] = []


def _count_events(action: Callable[[], bool], event: str) -> int:
    """How often Python reports ``event`` (of ``sys.audit``) while ``action`` is done, which must succeed."""
    events: list[str] = []

    def listen(name: str, _: object) -> None:
        if [event] == _COUNTING and name == event:
            events.append(name)

    sys.addaudithook(listen)  # there for good: it must cost nothing afterwards
    _COUNTING[:] = [event]
    try:
        assert action()
    finally:
        _COUNTING.clear()
    return len(events)


def test_nobody_is_left_in_another_namespace(trial: StillnessTrial) -> None:
    before = os.readlink("/proc/thread-self/ns/ipc")
    trial.capture()
    assert trial.still()
    assert os.readlink("/proc/thread-self/ns/ipc") == before
    descriptors = len(os.listdir("/proc/self/fd"))
    assert trial.still()
    assert len(os.listdir("/proc/self/fd")) == descriptors
