"""Images of memory stay small across rollbacks and forks, and bring back what there was (paper, Algorithm 1)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from planarian_core.testing.huge_pages import Merger
from planarian_core.testing.memory import Holder
from planarian_core.testing.process import Subject, Taken
from planarian_process.criu import CriuBackend
from tests.guest.kinds import BOTH

pytestmark = [pytest.mark.needs("criu"), pytest.mark.needs("namespaces"), pytest.mark.needs("soft-dirty")]

SIZE = 200 << 20
CYCLES = int(os.environ.get("PLANARIAN_CYCLES", "1"))
"""Each is a rollback and a fork; with more than one, without huge pages too."""
SMALL = 8 << 20
INCREMENT = "memory as it differs from the image before"
ASKS_FOR_HUGE_PAGES = """
import ctypes
ctypes.CDLL(None).prctl(41, 0, 0, 0, 0)
"""


@pytest.fixture(params=["always", "never"] if CYCLES > 1 else ["always"])
def merger(request: pytest.FixtureRequest) -> Iterator[Merger]:
    """The kernel with and without transparent huge pages."""
    with Merger.hurried(request.param) as merger:
        yield merger


def stored(taken: Taken) -> int:
    assert taken.artefact is not None
    return taken.artefact.stored


def is_small(taken: Taken, full: Taken) -> bool:
    """The bar: at most a hundredth of the full image, on the disk and as it is accounted for."""
    files = (path.stat() for path in taken.images.rglob("*") if path.is_file())
    own = sum(file.st_size for file in files if file.st_nlink == 1)
    print(f"full {stored(full)}, increment {own}: {taken.notes}")
    assert stored(taken) == own
    return own * 100 <= stored(full)


@BOTH
def test_images_stay_small_after_rollbacks_and_forks(subject: Subject, merger: Merger) -> None:
    kind = type(subject.backend)
    assert issubclass(kind, CriuBackend)
    subject.backend = kind(Path(subject.spec.home), full_every=2 * CYCLES + 2)
    Holder.begin(subject, SIZE)
    merger.look_twice()
    full = subject.take()
    assert stored(full) > SIZE
    memory, taken = write_and_take(subject)
    assert is_small(taken, full), "before any restore"
    subject.rollback(taken)
    for _ in range(CYCLES):
        merger.look_twice()
        memory, taken = write_and_take(subject)
        assert is_small(taken, full), "after a rollback"
        fork = subject.fork(taken)
        subject.stop()
        subject.spec, subject.live = fork.spec, fork.live
        assert Holder.find(subject, SIZE).memory() == memory
        merger.look_twice()
        memory, taken = write_and_take(subject)
        assert is_small(taken, full), "after a fork"
        Holder.find(subject, SIZE).touch()
        subject.rollback(taken)
        assert Holder.find(subject, SIZE).memory() == memory


def write_and_take(subject: Subject) -> tuple[bytes, Taken]:
    holder = Holder.find(subject, SIZE)
    holder.touch()
    return holder.memory(), subject.take()


def test_a_program_that_asks_for_huge_pages_has_them_and_larger_images(subject: Subject) -> None:
    with Merger.hurried("always") as merger:
        holder = Holder.begin(subject, 4 * SMALL, ASKS_FOR_HUGE_PAGES)
        assert holder.may_have_huge_pages
        subject.rollback(subject.take())
        merger.look_twice()
        holder = Holder.find(subject, 4 * SMALL)
        assert holder.may_have_huge_pages
        assert holder.huge > 0
        holder.touch()
        memory, taken = holder.memory(), subject.take()
        assert stored(taken) > SMALL, taken.notes
        subject.rollback(taken)
        assert Holder.find(subject, 4 * SMALL).memory() == memory


def test_other_programs_have_none(subject: Subject) -> None:
    with Merger.hurried("always") as merger:
        holder = Holder.begin(subject, SMALL)
        merger.look_twice()
        assert (holder.may_have_huge_pages, holder.huge) == (False, 0)
        subject.rollback(subject.take())
        merger.look_twice()
        holder = Holder.find(subject, SMALL)
        assert (holder.may_have_huge_pages, holder.huge) == (False, 0)


@BOTH
def test_forks_of_one_image_go_on_each_for_itself(subject: Subject) -> None:
    holder = Holder.begin(subject, SMALL)
    full = subject.take()
    inventory = (full.images / "inventory.img").read_bytes()
    forks = [subject.fork(full) for _ in range(2)]
    try:
        taken, memories = [], []
        for turns, fork in enumerate([subject, *forks]):
            holder = Holder.find(fork, SMALL)
            for _ in range(turns + 1):
                holder.touch()
            memories.append(holder.memory())
        assert len(set(memories)) == 3
        taken = [one.take() for one in (subject, *forks)]
        assert all(one.notes == (INCREMENT,) for one in taken)
        for one, image, memory in zip((subject, *forks), taken, memories, strict=True):
            one.rollback(image)
            assert Holder.find(one, SMALL).memory() == memory
        assert (full.images / "inventory.img").read_bytes() == inventory
        subject.rollback(full)
    finally:
        for fork in forks:
            fork.stop()


def test_a_full_image_every_so_often(subject: Subject) -> None:
    subject.backend = CriuBackend(Path(subject.spec.home), full_every=3)
    holder = Holder.begin(subject, SMALL)
    kinds, last = [], subject.take()
    for _ in range(6):
        kinds.append(last.notes == (INCREMENT,))
        holder.touch()
        last = subject.take()
    assert kinds == [False, True, True, False, True, True]
    memory = holder.memory()
    subject.rollback(last)
    assert Holder.find(subject, SMALL).memory() == memory


def test_all_images_full_where_that_is_wanted(subject: Subject) -> None:
    subject.backend = CriuBackend(Path(subject.spec.home), full_every=1)
    Holder.begin(subject, SMALL)
    for _ in range(2):
        taken = subject.take()
        assert stored(taken) > SMALL
        assert not taken.notes
        subject.rollback(taken)


def test_doctor_says_that_there_are_increments(subject: Subject) -> None:
    assert "increments: this kernel tracks memory changes" in subject.backend.probe().reason
