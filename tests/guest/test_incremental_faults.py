"""What is deleted, changed or cut off half-way costs a full image or an error that says so, and loses nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from planarian_core.errors import CaptureError, RestoreError
from planarian_core.model import Artefact
from planarian_core.testing.memory import AFTER_A_SIGNAL, HOLDER, PAGE, Holder, awaits_signal
from planarian_core.testing.process import Subject, Taken, eventually, python
from tests.guest.kinds import BOTH, CONTAINER

pytestmark = [pytest.mark.needs("criu"), pytest.mark.needs("namespaces"), pytest.mark.needs("soft-dirty")]

SMALL = 8 << 20
INCREMENT = "memory as it differs from the image before"


@pytest.fixture
def holder(subject: Subject) -> Holder:
    return Holder.begin(subject, SMALL)


def comes_back(subject: Subject, taken: Taken, memory: bytes) -> None:
    subject.rollback(taken)
    holder = Holder.find(subject, SMALL)
    assert holder.memory() == memory
    holder.touch()


def workers() -> list[int]:
    """Our own children that are CRIU."""
    found = []
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            for pid in Path(f"/proc/self/task/{thread}/children").read_text().split():
                if Path(f"/proc/{pid}/comm").read_text().strip() == "criu":
                    found.append(int(pid))
    return found


def kill_workers() -> None:
    for pid in workers():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def biggest(images: Path) -> Path:
    return max(images.glob("pages-*.img"), key=lambda file: file.stat().st_size)


@BOTH
def test_giving_up_the_image_before_loses_nothing(subject: Subject, holder: Holder) -> None:
    first = subject.take()
    holder.touch()
    memory, second = holder.memory(), subject.take()
    subject.backend.discard(first.images)
    subject.backend.verify(_artefact(second), second.images)
    comes_back(subject, second, memory)
    third = subject.take()
    assert third.notes == (INCREMENT,)
    subject.backend.discard(second.images)
    memory = Holder.find(subject, SMALL).memory()
    comes_back(subject, third, memory)


def _artefact(taken: Taken) -> Artefact:
    assert taken.artefact is not None
    return taken.artefact


def cut_short(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def change(file: Path) -> None:
    with file.open("r+b") as content:
        content.seek(5000)
        byte = content.read(1)[0]
        content.seek(5000)
        content.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("damage", [Path.unlink, cut_short, change])
def test_nothing_is_built_on_a_damaged_image(
    subject: Subject, holder: Holder, damage: Callable[[Path], object]
) -> None:
    first = subject.take()
    holder.touch()
    time.sleep(0.02)  # the clock of file times goes on
    damage(biggest(first.images))
    memory, second = holder.memory(), subject.take()
    (note,) = second.notes
    assert note.startswith("memory in full: the image before can't be built on: ")
    assert str(first.images) in note
    assert _artefact(second).stored > SMALL
    comes_back(subject, second, memory)


@pytest.mark.parametrize("damage", [cut_short, change])
def test_pages_that_are_damaged_under_an_increment_are_found_before_anything_runs(
    subject: Subject, holder: Holder, damage: Callable[[Path], object]
) -> None:
    first = subject.take()
    holder.touch()
    second = subject.take()
    damage(biggest(first.images))
    with pytest.raises(RestoreError, match=r"parent/pages-") as caught:
        subject.fork(second)
    assert caught.value.remedy
    assert Holder.find(subject, SMALL).turn == 2
    memory, third = holder.memory(), subject.take()
    assert third.notes[0].startswith("memory in full")
    comes_back(subject, third, memory)


def test_an_image_that_is_not_the_one_before(subject: Subject) -> None:
    """Should a note ever be wrong, CRIU notices that pages are missing."""
    subject.spawn(python(), "-c", AFTER_A_SIGNAL + HOLDER, str(SMALL // PAGE))
    assert eventually(lambda: len(subject.running.tasks()) == 2)
    waiting = subject.running.tasks()[-1]
    assert eventually(lambda: awaits_signal(waiting))
    before = subject.take()
    notes = Path(subject.spec.home, "cache", "criu-increments")
    (note,) = notes.glob("*.json")
    wrong = json.loads(note.read_text())
    assert wrong["images"] == str(before.images)
    os.kill(waiting, signal.SIGUSR1)
    Holder.wait(subject, SMALL)
    subject.take()
    note.write_text(json.dumps(wrong))
    memory, taken = Holder.find(subject, SMALL).memory(), subject.take()
    assert taken.notes[0].startswith("memory in full: CRIU finds that the image before doesn't fit: ")
    assert "parent" in taken.notes[0]
    comes_back(subject, taken, memory)


def test_a_dump_that_is_killed_half_way(subject: Subject, holder: Holder) -> None:
    """The marks are gone then, and with them what the next increment would have needed."""
    subject.take()
    holder.touch()
    with pytest.raises(CaptureError, match="signal 9"):
        subject.take(inside=kill_workers)
    memory, taken = holder.memory(), subject.take()
    assert taken.notes == ("memory in full: the capture before was cut short",)
    comes_back(subject, taken, memory)


def test_a_capture_that_is_given_up(subject: Subject, holder: Holder) -> None:
    """In the instant, and after it: its image is gone again."""
    subject.take()
    holder.touch()

    def refuse() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        subject.take(inside=refuse)
    memory, taken = holder.memory(), subject.take()
    assert taken.notes == ("memory in full: the capture before was cut short",)
    comes_back(subject, taken, memory)
    subject.backend.discard(subject.take().images)
    memory, taken = Holder.find(subject, SMALL).memory(), subject.take()
    assert taken.notes[0].startswith("memory in full: the image before can't be built on: ")
    comes_back(subject, taken, memory)


def test_a_restore_that_is_killed_half_way(subject: Subject, holder: Holder) -> None:
    first = subject.take()
    holder.touch()
    memory, second = holder.memory(), subject.take()
    for delay in (0.05, 0.5, 1.0):

        def kill(delay: float = delay) -> None:
            eventually(lambda: bool(workers()), 10)
            time.sleep(delay)
            kill_workers()

        killer = threading.Thread(target=kill)
        killer.start()
        with contextlib.suppress(RestoreError):  # or it was too late
            subject.fork(second).stop()
        killer.join()
    subject.backend.verify(_artefact(first), first.images)
    comes_back(subject, second, memory)
    memory, third = Holder.find(subject, SMALL).memory(), subject.take()
    assert third.notes == (INCREMENT,)
    comes_back(subject, third, memory)


def test_where_there_can_be_no_links(subject: Subject, holder: Holder, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    subject.take()
    holder.touch()
    subprocess.run(["mount", "-t", "tmpfs", "planarian-test", elsewhere], check=True, timeout=60)
    try:
        images = elsewhere / "images"
        images.mkdir()
        memory, taken = holder.memory(), subject.take(images)
        assert taken.notes[0].startswith("memory in full: the image before can't be built on: ")
        comes_back(subject, taken, memory)
    finally:
        subject.stop()
        subprocess.run(["umount", elsewhere], check=True, timeout=60)


@CONTAINER
def test_a_checkpoint_by_hand_takes_no_marks_away(subject: Subject, holder: Holder, tmp_path: Path) -> None:
    subject.take()
    holder.touch()
    details = subject.live.details
    places = [f"--image-path={tmp_path / 'by-hand'}", f"--work-path={tmp_path / 'work'}"]
    options = ("--leave-running", "--file-locks", "--tcp-established", "--ext-unix-sk")
    command = [details["runtime"], "checkpoint", *options, *places, details["container"]]
    for name in ("by-hand", "work"):
        (tmp_path / name).mkdir()
    subprocess.run(command, check=True, timeout=120)
    memory, taken = holder.memory(), subject.take()
    assert taken.notes == (INCREMENT,)
    comes_back(subject, taken, memory)
