"""No increment is built on another process's memory, or leaves out what no mark tells of."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from planarian_core.testing.memory import AFTER_A_SIGNAL, HOLDER, PAGE, Holder, awaits_signal, read
from planarian_core.testing.process import Subject, eventually, python
from tests.guest.kinds import BOTH

pytestmark = [pytest.mark.needs("criu"), pytest.mark.needs("namespaces"), pytest.mark.needs("soft-dirty")]

SMALL = 8 << 20
INCREMENT = "memory as it differs from the image before"
AREA = 64 * PAGE

FORKER = f"""
import ctypes, mmap, os, signal
memory = mmap.mmap(-1, {AREA}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory[:] = b"F" * {AREA}
child = turn = 0
def begin(*unused):
    global child, turn
    turn += 1
    child = os.fork()
    if not child:
        if turn == 1:
            memory[:] = b"A" * {AREA}
        while True:
            signal.pause()
def end(*unused):
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
signal.signal(signal.SIGUSR1, begin)
signal.signal(signal.SIGUSR2, end)
with open("address.new", "w") as file:
    file.write(str(ctypes.addressof(ctypes.c_char.from_buffer(memory))))
os.rename("address.new", "address")
while True:
    signal.pause()
"""
"""Its first child writes over the memory that it gets; later ones have the forker's as it is, unwritten."""


def inside(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("NSpid:")[2].splitlines()[0].split()[-1])


def forker(subject: Subject) -> int:
    """The one process that the sandbox's init has, besides what belongs to a call."""
    return child_of(subject.live.init_pid)


def child_of(pid: int) -> int:
    """The only child of a process, once it is there."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    assert eventually(lambda: len(path.read_text().split()) == 1)
    return int(path.read_text())


def begin_child(subject: Subject, parent: int, wanted: int = 0) -> int:
    """Let the forker fork; ``wanted``: the pid that the child is to have inside."""
    if wanted:
        command = f"echo {wanted - 1} >/proc/sys/kernel/ns_last_pid"
        subprocess.run(["nsenter", "-t", str(subject.live.init_pid), "-p", "sh", "-c", command], check=True, timeout=60)
    os.kill(parent, signal.SIGUSR1)
    child = child_of(parent)
    assert eventually(lambda: _sleeps(child))
    return child


def _sleeps(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


@pytest.mark.parametrize("restored", [False, True], ids=["at once", "after a rollback"])
def test_a_pid_that_another_process_took_between_two_images(subject: Subject, restored: bool) -> None:
    """The paper's own example: the new process has the marks of its parent, which say that nothing was written."""
    subject.spawn(python(), "-c", FORKER)
    address = int(subject.shows("address"))
    parent = forker(subject)
    first = begin_child(subject, parent)
    assert eventually(lambda: read(first, address, AREA) == b"A" * AREA)
    taken = subject.take()
    if restored:
        subject.rollback(taken)
        parent = forker(subject)
        first = child_of(parent)
        assert read(first, address, AREA) == b"A" * AREA
    number = inside(first)
    os.kill(parent, signal.SIGUSR2)
    assert eventually(lambda: not Path(f"/proc/{first}").exists())
    second = begin_child(subject, parent, number)
    assert inside(second) == number
    assert read(second, address, AREA) == b"F" * AREA
    taken = subject.take()
    assert taken.notes == (INCREMENT,)
    subject.rollback(taken)
    parent = forker(subject)
    assert read(parent, address, AREA) == b"F" * AREA
    again = child_of(parent)
    assert inside(again) == number
    assert read(again, address, AREA) == b"F" * AREA


SHARER = f"""
import ctypes, mmap, os, signal
file = os.memfd_create("shared")
os.ftruncate(file, {AREA})
memory = mmap.mmap(file, {AREA})
memory[:] = b"0" * {AREA}
def write(*unused):
    os.pwrite(file, b"1" * {PAGE}, 0)
    child = os.fork()
    if not child:
        memory[{PAGE}:2 * {PAGE}] = b"2" * {PAGE}
        os._exit(0)
    os.waitpid(child, 0)
    os.rename("address", "written")
signal.signal(signal.SIGUSR1, write)
with open("address.new", "w") as place:
    place.write(str(ctypes.addressof(ctypes.c_char.from_buffer(memory))))
os.rename("address.new", "address")
while True:
    signal.pause()
"""


def test_shared_memory_that_was_written_past_every_mapping(subject: Subject) -> None:
    """Through a descriptor, and by a process that has ended: no mark of a process that is captured tells of it."""
    subject.spawn(python(), "-c", SHARER)
    address = int(subject.shows("address"))
    subject.rollback(subject.take())
    os.kill(forker(subject), signal.SIGUSR1)
    subject.shows("written")
    taken = subject.take()
    assert taken.notes == (INCREMENT,)
    expected = b"1" * PAGE + b"2" * PAGE + b"0" * (AREA - 2 * PAGE)
    assert read(forker(subject), address, AREA) == expected
    subject.rollback(taken)
    assert read(forker(subject), address, AREA) == expected


@BOTH
def test_no_program_clears_marks(subject: Subject) -> None:
    """It would have its pages left out of the next image."""
    done = subject.run("sh", "-c", "echo 4 >/proc/self/clear_refs")
    assert done.exit_code != 0
    assert "Read-only file system" in done.stderr


@BOTH
def test_a_process_that_became_another_program(subject: Subject) -> None:
    """It has the same pid and the same start."""
    program = f"{AFTER_A_SIGNAL}\nimport os, sys\nos.execv(sys.executable, sys.argv[1:])"
    subject.spawn(python(), "-c", program, python(), "-c", HOLDER, str(SMALL // PAGE))
    pid = forker(subject)
    assert eventually(lambda: awaits_signal(pid))
    subject.rollback(subject.take())
    os.kill(forker(subject), signal.SIGUSR1)
    memory = Holder.wait(subject, SMALL).memory()
    taken = subject.take()
    assert taken.notes == (INCREMENT,)
    subject.rollback(taken)
    holder = Holder.find(subject, SMALL)
    assert holder.memory() == memory
    holder.touch()
