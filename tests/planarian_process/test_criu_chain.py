"""What images are built on: notes, links, and pages that are found again. Without CRIU: images are written by hand."""

from __future__ import annotations

import json
import os
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planarian_core.errors import RestoreError
from planarian_process import criu_increments, criu_sharing
from planarian_process.criu_chain import Broken, inherit
from planarian_process.criu_images import MANIFEST, PARENT, Manifest, check, clear, exclusive, seal
from planarian_process.criu_increments import Increments, Plan, usable
from planarian_process.criu_pagemaps import PAGE, Chain, Pagemap, Run

pytestmark = [pytest.mark.needs("linux"), pytest.mark.needs("criu")]

Memory = dict[int, bytes]
"""Content by number of page."""


def number(value: int) -> bytes:
    """As protobuf writes it."""
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def record(*fields: tuple[int, int]) -> bytes:
    content = b"".join(bytes([key << 3]) + number(value) for key, value in fields)
    return struct.pack("<I", len(content)) + content


def write(images: Path, memory: Memory, pid: int = 7) -> None:
    """A full image of one process."""
    images.mkdir(exist_ok=True)
    content, pages, runs = struct.pack("<II", 0x54564319, 0x56084025) + record((1, pid)), b"", list[list[int]]()
    for page in sorted(memory):
        pages += memory[page]
        if runs and runs[-1][-1] == page - 1:
            runs[-1].append(page)
        else:
            runs.append([page])
    for run in runs:
        content += record((1, run[0] * PAGE), (2, 0), (4, 4), (5, len(run)))
    (images / f"pagemap-{pid}.img").write_bytes(content)
    (images / f"pages-{pid}.img").write_bytes(pages)
    (images / "inventory.img").write_bytes(struct.pack("<II", 0x58313116, 2) + b"\x08\x02")


def stored(images: Path, pages: range, pid: int = 7) -> Memory:
    """What an image and all that it is built on hold of these pages."""
    found = {}
    with Chain(images, f"pagemap-{pid}.img") as chain:
        for piece, content in chain.pieces(Run(pages.start * PAGE, len(pages), False)):
            for index in range(piece.count if content is not None else 0):
                assert content is not None
                start = piece.offset + index * PAGE
                found[piece.address // PAGE + index] = content[start : start + PAGE]
    return found


def image(folder: Path, name: str, memory: Memory) -> tuple[Path, Manifest]:
    images = folder / name
    write(images, memory)
    return images, seal(images, images)


def page(byte: int) -> bytes:
    return bytes([byte]) * PAGE


MEMORIES = st.lists(
    st.dictionaries(st.integers(0, 40), st.integers(0, 3).map(page), min_size=1), min_size=2, max_size=4
)


@settings(max_examples=60, deadline=None)
@given(MEMORIES)
def test_each_image_of_a_chain_holds_its_own_memory(
    tmp_path_factory: pytest.TempPathFactory, memories: list[Memory]
) -> None:
    folder = tmp_path_factory.mktemp("chain")
    before, manifest = image(folder, "0", memories[0])
    for turn, memory in enumerate(memories[1:], 1):
        images = folder / str(turn)
        images.mkdir()
        inherited = inherit(before, manifest.digest, 0, images)
        write(images, memory)
        was = (images / "pages-7.img").stat().st_size
        if not criu_sharing.share(images, images / PARENT):
            clear(images)
            write(images, memory)
            inherited = {}
        else:
            assert (images / "pages-7.img").stat().st_size < was
        manifest = seal(images, images, inherited)
        assert manifest.added == exclusive(images)
        clear(before)
        before = images
        assert stored(images, range(41)) == memory or not memory
        check(images, manifest.digest)


def test_what_is_equal_is_stored_once(tmp_path: Path) -> None:
    memory = {number: page(number) for number in range(10, 200)}
    before, manifest = image(tmp_path, "one", memory)
    images = tmp_path / "two"
    images.mkdir()
    inherited = inherit(before, manifest.digest, 0, images)
    changed = {**memory, 50: page(1), 200: page(2)}
    del changed[100]
    write(images, changed)
    assert criu_sharing.share(images, images / PARENT)
    after = seal(images, images, inherited)
    assert (images / "pages-7.img").stat().st_size == 2 * PAGE
    assert stored(images, range(300)) == changed
    assert after.size > manifest.size > after.added
    assert exclusive(before) < PAGE, "all but its list has another name"
    assert exclusive(images) == after.added


def test_damage_and_change_are_told(tmp_path: Path) -> None:
    before, manifest = image(tmp_path, "one", {1: page(1)})
    images = tmp_path / "two"
    images.mkdir()
    with pytest.raises(Broken, match="damaged"):
        inherit(before, "0" * 64, 0, images)
    pages = before / "pages-7.img"
    seen = pages.stat()
    os.utime(pages, ns=(seen.st_atime_ns, seen.st_mtime_ns + 10**10))
    with pytest.raises(Broken, match=r"pages-7\.img was changed"):
        inherit(before, manifest.digest, 0, images)
    os.utime(pages, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    os.truncate(pages, 5)
    with pytest.raises(Broken, match="5 bytes"):
        inherit(before, manifest.digest, 0, images)
    pages.unlink()
    with pytest.raises(Broken, match="missing"):
        inherit(before, manifest.digest, 0, images)
    assert not list(images.iterdir())


@pytest.mark.parametrize("name", ["../secret", "parent/../../secret", "/secret", "other/secret", "parent/", ".."])
def test_a_list_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    before, _ = image(tmp_path, "one", {1: page(1)})
    (tmp_path / "secret").write_text("secret")
    content = json.dumps({name: [6, "0" * 64]}).encode()
    (before / MANIFEST).write_bytes(content)
    import hashlib

    with pytest.raises(RestoreError, match="damaged"):
        check(before, hashlib.sha256(content).hexdigest())


@pytest.mark.parametrize("cut", [0, 4, 8, 11, 13, -1])
def test_a_map_that_is_cut_short_is_refused(tmp_path: Path, cut: int) -> None:
    write(tmp_path, {1: page(1)})
    file = tmp_path / "pagemap-7.img"
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(ValueError, match="unknown form"):
        Pagemap.read(file)


def test_notes_are_taken_back_before_a_dump(tmp_path: Path) -> None:
    """Whatever becomes of that dump, the next one isn't built on what was noted before it."""
    increments = Increments(tmp_path / "notes", 3)
    init = os.getpid()
    assert increments.plan(init, tracked=True).reason == criu_increments._UNKNOWN
    increments.keep(init, usable(tmp_path, "digest", 0, {}))
    plan = increments.plan(init, tracked=True)
    assert plan.origin == usable(tmp_path, "digest", 0, {})
    assert plan.depth == 1
    assert increments.plan(init, tracked=True).reason == criu_increments._CUT_SHORT
    increments.keep(init, usable(tmp_path, "digest", 2, {}))
    assert "every 3 images" in increments.plan(init, tracked=True).reason


def test_where_pages_are_compared_a_note_stays_true(tmp_path: Path) -> None:
    increments = Increments(tmp_path / "notes", 3)
    init = os.getpid()
    increments.keep(init, usable(tmp_path, "digest", 0, {}))
    for _ in range(2):
        plan = increments.plan(init, tracked=False)
        assert plan.origin is not None
        assert not plan.note
    assert replace(plan, compared=True).note


def test_notes_that_nobody_can_use(tmp_path: Path) -> None:
    increments = Increments(tmp_path / "notes", 3)
    init = os.getpid()
    increments.keep(init, usable(tmp_path, "digest", 0, {}))
    (note,) = (tmp_path / "notes").glob("*.json")
    note.write_text("{]")
    assert increments.plan(init, tracked=True).origin is None
    note.rename(note.with_name(note.name.replace(f"-{init}-", "-1-")))
    increments.keep(init, usable(tmp_path, "digest", 0, {}))
    assert [file.name for file in (tmp_path / "notes").iterdir()] == [note.name], "those of ended trees go"
    assert Increments(tmp_path / "notes", 1).plan(init, tracked=True) == Plan(noted=False)
