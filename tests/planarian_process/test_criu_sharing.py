"""Where no kernel tells what was written, pages that an image has in common with the one before are stored once."""

from __future__ import annotations

import os
import shutil
import signal

import pytest

from planarian_core.errors import RestoreError
from planarian_core.testing.memory import Holder
from planarian_core.testing.process import Subject, Taken
from planarian_process import criu_sharing
from planarian_process.criu import CriuBackend
from planarian_process.criu_images import PARENT

pytestmark = [pytest.mark.needs("criu"), pytest.mark.needs("namespaces")]

SIZE = 2 * criu_sharing.LEAST
SHARED = "memory in full, of which the disk has once what equals the image before"


@pytest.fixture
def comparing(subject: Subject) -> Subject:
    assert isinstance(subject.backend, CriuBackend)
    if subject.backend.tracks:
        pytest.skip("this kernel tells what was written: see tests/guest")
    return subject


def stored(taken: Taken) -> int:
    assert taken.artefact is not None
    return taken.artefact.stored


def test_only_what_differs_is_stored_and_all_comes_back(comparing: Subject) -> None:
    holder = Holder.begin(comparing, SIZE)
    first = comparing.take()
    assert stored(first) > SIZE
    memories, taken = [], []
    for _ in range(3):
        holder.touch()
        memories.append(holder.memory())
        taken.append(comparing.take())
        assert taken[-1].notes == (SHARED,)
        assert stored(taken[-1]) < SIZE // 4
    for memory, image in reversed(list(zip(memories, taken, strict=True))):
        comparing.rollback(image)
        holder = Holder.find(comparing, SIZE)
        assert holder.memory() == memory
        holder.touch()
    after = comparing.take()
    assert after.notes == (SHARED,), "also after a rollback"
    comparing.backend.discard(first.images)
    comparing.backend.discard(taken[0].images)
    fork = comparing.fork(after)
    try:
        assert Holder.find(fork, SIZE).memory() == holder.memory()
    finally:
        fork.stop()


def test_what_is_small_is_not_compared(counting: Subject) -> None:
    for _ in range(2):
        taken = counting.take()
        assert not taken.notes
        assert not (taken.images / PARENT).exists()


def test_what_has_little_in_common_is_full(comparing: Subject) -> None:
    first = Holder.begin(comparing, SIZE)
    comparing.take()
    os.kill(first.pid, signal.SIGKILL)
    Holder.begin(comparing, 4 * SIZE)
    taken = comparing.take()
    assert not taken.notes
    assert not (taken.images / PARENT).exists()


def test_damage_below_is_found_before_anything_runs(comparing: Subject) -> None:
    holder = Holder.begin(comparing, SIZE)
    comparing.take()
    holder.touch()
    second = comparing.take()
    damaged = max((second.images / PARENT).glob("pages-*.img"), key=lambda file: file.stat().st_size)
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(RestoreError, match=r"parent/pages-"):
        comparing.fork(second)
    holder.touch()
    third = comparing.take()
    assert not third.notes, "nothing is built on it any more"
    shutil.rmtree(second.images)
    comparing.rollback(third)
    assert Holder.find(comparing, SIZE).turn == 3
