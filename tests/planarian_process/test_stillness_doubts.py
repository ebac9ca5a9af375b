"""The proof that nothing has moved since a capture by CRIU: where something would move unseen there is none."""

from __future__ import annotations

import time

import pytest

from planarian_core.testing.process import Subject
from planarian_core.testing.stillness import StillnessTrial

pytestmark = [pytest.mark.needs("criu"), pytest.mark.needs("namespaces")]


@pytest.fixture
def trial(subject: Subject) -> StillnessTrial:
    return StillnessTrial(subject)


def doubt(trial: StillnessTrial) -> str:
    """Why there is no proof; empty when there is one."""
    return str(trial.artefact.details["stillness"].get("doubt", ""))


DOUBTFUL = {
    "an alarm": ("signal.alarm(1000); ready(); time.sleep(1000)", "alarm"),
    "an alarm of processor time": ("signal.setitimer(signal.ITIMER_PROF, 1000); ready(); time.sleep(1000)", "alarm"),
    "a timer": (
        """
ready()
os.execvp('timeout', ['timeout', '1000', 'sleep', '1000'])
""",
        "alarm|timer",
    ),
    "a timer's descriptor": (
        """
libc = ctypes.CDLL(None)
t = libc.timerfd_create(1, 0)
libc.timerfd_settime(t, 0, struct.pack('4q', 0, 0, 1000, 0), None)
ready()
time.sleep(1000)
""",
        "timer",
    ),
    "a memory file": ("m = os.memfd_create('m'); os.write(m, b'x'); ready(); time.sleep(1000)", "without a name"),
    "a file without a name": ("f = tempfile.TemporaryFile(); ready(); time.sleep(1000)", "without a name"),
    "shared memory": ("assert ctypes.CDLL(None).shmget(77, 4096, 0o1600) >= 0; ready(); time.sleep(1000)", "System V"),
    "a signal of the kind that queues": (
        "signal.pthread_sigmask(signal.SIG_BLOCK, {40}); os.kill(os.getpid(), 40); ready(); time.sleep(1000)",
        "signal",
    ),
    "an unread message": ("a, b = socket.socketpair(); b.send(b'x'); ready(); time.sleep(1000)", "unread"),
    "fewer bytes than it waits for": (
        """
s = socket.socket()
s.bind(('127.0.0.1', 80))
s.listen()
c = socket.create_connection(('127.0.0.1', 80))
a = s.accept()[0]
a.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 10)
c.send(b'x')
ready()
time.sleep(1000)
""",
        "unread",
    ),
    "a lock in a file's memory": (
        """
f = open('/tmp/f', 'w+b')
f.truncate(4096)
m = mmap.mmap(f.fileno(), 4096)
ready()
threading.Event().wait()
""",
        "shares",
    ),
    "a program that works": (
        """
ready()
while True: sum(range(1000))
""",
        "",
    ),
    "a program that looks often": (
        """
ready()
while True: time.sleep(0.001)
""",
        "",
    ),
}
"""Programs, and a word of the reason."""


@pytest.mark.parametrize(("program", "reason"), DOUBTFUL.values(), ids=DOUBTFUL)
def test_in_doubt_there_is_no_proof(trial: StillnessTrial, program: str, reason: str) -> None:
    trial.start(program, waits=False)
    time.sleep(0.2)
    trial.capture()
    assert doubt(trial)
    if reason:
        assert any(word in doubt(trial) for word in reason.split("|")), doubt(trial)
    assert not trial.still()


def test_what_looks_now_and_then_is_not_still_for_long(trial: StillnessTrial) -> None:
    """As servers that wait with a timeout do: between two looks they may be, afterwards they aren't."""
    trial.start("ready()\nwhile True: time.sleep(0.4)")
    trial.capture()
    time.sleep(0.6)
    assert not trial.still()
