"""What ``copy`` takes for unchanged really is, and the rest is noticed."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from planarian_core.errors import CaptureError
from planarian_core.interfaces import Layer
from planarian_core.testing.oracle import assert_same, describe
from planarian_filesystem import host
from planarian_filesystem.copy import CopyBackend


def settle() -> None:
    """Wait until what was written is older than the clock's resolution, as it is for all but the latest files."""
    host.wait_past(time.time_ns())


def test_unchanged_files_are_not_read_again(backend: CopyBackend, layer: Layer) -> None:
    for number in range(20):
        (layer.path / f"file{number}").write_text(str(number))
    settle()
    first = backend.capture(layer, "sp-1")
    second = backend.capture(layer, "sp-2")
    assert first.details["hashed"] == 20
    assert second.details["hashed"] == 0
    assert second.stored == 0
    assert second.reference == first.reference


def test_only_changed_files_are_read_and_stored(backend: CopyBackend, layer: Layer) -> None:
    for number in range(20):
        (layer.path / f"file{number}").write_bytes(bytes([number]) * 10_000)
    settle()
    backend.capture(layer, "sp-1")
    (layer.path / "file7").write_bytes(b"new" * 1000)
    settle()
    artefact = backend.capture(layer, "sp-2")
    assert artefact.details["hashed"] == 1
    assert 3000 <= artefact.stored < 10_000


def test_a_page_changed_in_a_long_file_stores_one_piece(backend: CopyBackend, layer: Layer) -> None:
    path = layer.path / "database"
    path.write_bytes(os.urandom(12 * 1024 * 1024))
    backend.capture(layer, "sp-1")
    with open(path, "r+b") as file:
        file.seek(5_000_000)
        file.write(b"changed")
    artefact = backend.capture(layer, "sp-2")
    assert artefact.stored < 2 * 1024 * 1024


def test_a_moved_directory_is_not_read_again(backend: CopyBackend, layer: Layer) -> None:
    (layer.path / "source").mkdir()
    (layer.path / "source" / "file").write_text("content")
    settle()
    backend.capture(layer, "sp-1")
    (layer.path / "source").rename(layer.path / "moved")
    settle()
    assert backend.capture(layer, "sp-2").details["hashed"] == 0


def test_a_file_just_written_is_looked_at_twice(backend: CopyBackend, layer: Layer) -> None:
    """Two writes within one tick of the clock leave the same times: only reading tells."""
    path = layer.path / "file"
    for number in range(15):
        path.write_text(f"{number:03}")
        backend.capture(layer, f"sp-{number}")
        path.write_text(f"{number:03}!"[1:])
        artefact = backend.capture(layer, f"sp-{number}-b")
        path.write_text("wrecked")
        backend.stage(artefact, layer).switch()
        assert path.read_text() == f"{number:03}!"[1:]


def test_changed_and_changed_back_is_the_same_version(backend: CopyBackend, layer: Layer) -> None:
    path = layer.path / "file"
    path.write_text("one")
    os.utime(path, ns=(1, 1))
    first = backend.capture(layer, "sp-1")
    path.write_text("two")
    backend.capture(layer, "sp-2")
    path.write_text("one")
    os.utime(path, ns=(1, 1))
    assert backend.capture(layer, "sp-3").reference == first.reference


def test_after_a_restore_nothing_is_read_again(backend: CopyBackend, layer: Layer, tmp_path: Path) -> None:
    for number in range(10):
        (layer.path / f"folder{number}").mkdir()
        (layer.path / f"folder{number}" / "file").write_text(str(number))
    os.link(layer.path / "folder1" / "file", layer.path / "folder2" / "linked")
    settle()
    artefact = backend.capture(layer, "sp-1")
    (layer.path / "folder3" / "file").write_text("changed")
    (layer.path / "folder2" / "linked").unlink()
    backend.stage(artefact, layer).switch()
    again = backend.capture(layer, "sp-2")
    assert (again.details["hashed"], again.reference) == (0, artefact.reference)
    fork = Layer(tmp_path / "fork")
    backend.stage(artefact, fork).switch()
    forked = backend.capture(fork, "sp-3")
    assert (forked.details["hashed"], forked.reference) == (0, artefact.reference)


def test_link_groups_survive_a_renamed_directory(backend: CopyBackend, layer: Layer) -> None:
    """A rename of a directory leaves the stamps of what is in it: the group is then partly in equal directories."""
    for name in ("one", "two"):
        (layer.path / name).mkdir()
    (layer.path / "one" / "file").write_text("shared")
    os.link(layer.path / "one" / "file", layer.path / "two" / "file")
    before = describe(layer.path)
    artefact = backend.capture(layer, "sp-1")
    for _ in range(2):
        (layer.path / "two").rename(layer.path / "moved")
        moved = describe(layer.path)
        second = backend.capture(layer, "sp-2")
        backend.stage(artefact, layer).switch()
        assert_same(describe(layer.path), before)
        backend.stage(second, layer).switch()
        assert_same(describe(layer.path), moved)
        backend.stage(artefact, layer).switch()
        assert_same(describe(layer.path), before)


def test_a_kept_file_whose_mode_changed_keeps_its_inode(backend: CopyBackend, layer: Layer) -> None:
    path = layer.path / "file"
    path.write_bytes(b"x" * 100_000)
    inode = path.stat().st_ino
    artefact = backend.capture(layer, "sp-1")
    before = describe(layer.path)
    path.chmod(0o600)
    os.utime(path)
    backend.stage(artefact, layer).switch()
    assert_same(describe(layer.path), before)
    assert path.stat().st_ino == inode


WRITER = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
page = mmap.mmap(fd, 4096)
for line in sys.stdin:
    page[:5] = line.encode()[:5]
    print("done", flush=True)
"""


class MappedWriter:
    """A process that writes through a shared mapping which it keeps open."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def write(self, text: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=10)
        self._process.stdout.close()


def mapped_writes_are_noticed(backend: CopyBackend, layer: Layer) -> None:
    path = layer.path / "mapped"
    path.write_bytes(b"-" * mmap.PAGESIZE)
    writer = MappedWriter(path)
    try:
        for number in range(8):
            writer.write(f"a{number:04}")
            settle()
            if number % 2:
                backend.prepare(layer)
            backend.capture(layer, f"sp-{number}-a")
            writer.write(f"b{number:04}")
            artefact = backend.capture(layer, f"sp-{number}-b")
            writer.write("wreck")
            fork = Layer(layer.path.parent / f"fork{number}")
            backend.stage(artefact, fork).switch()
            assert (fork.path / "mapped").read_bytes()[:5] == f"b{number:04}".encode()
    finally:
        writer.close()


def test_writes_through_a_mapping_are_noticed(backend: CopyBackend, layer: Layer) -> None:
    mapped_writes_are_noticed(backend, layer)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no tmpfs at hand")  # noqa: S108
def test_on_a_filesystem_without_write_back_files_are_always_read(backend: CopyBackend) -> None:
    import tempfile

    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        layer = Layer(Path(folder) / "layer")
        backend.create(layer)
        assert not host.stat_proves_content(layer.path)
        mapped_writes_are_noticed(backend, layer)


def test_a_file_that_never_stands_still_is_named(backend: CopyBackend, layer: Layer) -> None:
    path = layer.path / "busy"
    path.write_bytes(b"x" * 60_000_000)
    stop = threading.Event()

    def scribble() -> None:
        with open(path, "r+b", buffering=0) as file:
            while not stop.is_set():
                file.seek(0)
                file.write(os.urandom(8))
                time.sleep(0.001)

    thread = threading.Thread(target=scribble)
    thread.start()
    try:
        backend.prepare(layer)
        with pytest.raises(CaptureError, match="busy") as caught:
            backend.capture(layer, "sp-1")
        assert caught.value.code == "capture-unsettled"
    finally:
        stop.set()
        thread.join()
    artefact = backend.capture(layer, "sp-2")
    backend.verify(artefact)


def test_many_entries_in_one_directory(backend: CopyBackend, layer: Layer) -> None:
    for number in range(3000):
        os.close(os.open(layer.path / f"{number}", os.O_CREAT | os.O_WRONLY))
    before = describe(layer.path)
    artefact = backend.capture(layer, "sp-1")
    for number in range(0, 3000, 7):
        (layer.path / f"{number}").unlink()
    (layer.path / "5000").write_text("new")
    backend.stage(artefact, layer).switch()
    assert_same(describe(layer.path), before)


def test_a_hole_of_a_terabyte_costs_nothing(backend: CopyBackend, layer: Layer, tmp_path: Path) -> None:
    with open(layer.path / "sparse", "wb") as file:
        file.truncate(1 << 40)
        file.seek(1 << 39)
        file.write(b"in the middle")
    before = describe(layer.path)
    artefact = backend.capture(layer, "sp-1")
    assert artefact.stored < 100_000
    fork = Layer(tmp_path / "fork")
    backend.stage(artefact, fork).switch()
    assert_same(describe(fork.path), before)


def test_a_tree_deeper_than_any_path(backend: CopyBackend, layer: Layer, tmp_path: Path) -> None:
    """1200 directories of names so long that their path is far beyond PATH_MAX."""
    name = "d" * 100
    fd = os.open(layer.path, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir(name, dir_fd=fd)
        deeper = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = deeper
    bottom = os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=fd)
    os.write(bottom, b"here")
    try:
        first = backend.capture(layer, "sp-1")
        os.pwrite(bottom, b"gone", 0)
        second = backend.capture(layer, "sp-2")
        assert first.reference != second.reference
        backend.stage(first, layer).switch()
        restored = os.open("bottom", os.O_RDONLY, dir_fd=fd)
        assert os.read(restored, 10) == b"here"
        os.close(restored)
        fork = Layer(tmp_path / "fork")
        backend.stage(first, fork).switch()
        assert backend.capture(fork, "sp-3").reference == first.reference
        backend.destroy(fork)
        assert not fork.path.exists()
    finally:
        os.close(bottom)
        os.close(fd)
        backend.destroy(layer)
    assert not layer.path.exists()
