"""Damage, full and read-only disks, kills: nothing is lost and the error says what is true."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from planarian_core.errors import CaptureError, PlanarianError, RestoreError
from planarian_core.interfaces import Layer
from planarian_core.testing.filesystem import fill, wreck
from planarian_core.testing.oracle import assert_same, describe
from planarian_filesystem.copy import CopyBackend


def blob_of(home: Path, content: bytes) -> Path:
    """The file in the store that holds ``content``."""
    for path in (home / "store" / "objects").glob("??/*"):
        if path.stat().st_size == len(content) and path.read_bytes() == content:
            return path
    raise AssertionError("not in the store")


def trees(home: Path) -> list[Path]:
    return [p for p in (home / "store" / "objects").glob("??/*") if p.read_bytes().startswith(b"planarian-tree")]


def nothing_staged(layer: Layer) -> bool:
    return not [name for name in os.listdir(layer.path.parent) if name.startswith(".planarian-")]


# --- damage


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("length", [100, 5 * 1024 * 1024])
def test_a_flipped_bit_is_found_before_anything_changes(
    backend: CopyBackend, layer: Layer, home: Path, length: int
) -> None:
    content = os.urandom(length)
    (layer.path / "folder").mkdir()
    (layer.path / "folder" / "file").write_bytes(content)
    artefact = backend.capture(layer, "sp-1")
    blob = blob_of(home, content[: 1024 * 1024])
    flip(blob)
    (layer.path / "folder" / "file").write_text("changed")
    before = describe(layer.path)
    with pytest.raises(RestoreError, match=r"folder/file") as caught:
        backend.stage(artefact, layer)
    assert caught.value.code == "restore-damaged"
    assert f"{blob.parent.name}{blob.name}" in caught.value.message
    assert_same(describe(layer.path), before)
    assert nothing_staged(layer)


def test_damage_is_mended_by_the_next_capture_of_the_same_content(
    backend: CopyBackend, layer: Layer, home: Path, tmp_path: Path
) -> None:
    (layer.path / "file").write_bytes(b"precious" * 100)
    artefact = backend.capture(layer, "sp-1")
    flip(blob_of(home, b"precious" * 100))
    with pytest.raises(RestoreError):
        backend.stage(artefact, Layer(tmp_path / "fork"))
    with pytest.raises(RestoreError, match="missing"):
        backend.verify(artefact)
    again = backend.capture(layer, "sp-2")
    assert again.reference == artefact.reference
    backend.verify(artefact)
    backend.stage(artefact, Layer(tmp_path / "fork")).switch()
    assert (tmp_path / "fork" / "file").read_bytes() == b"precious" * 100


def test_a_deleted_blob_is_named(backend: CopyBackend, layer: Layer, home: Path) -> None:
    (layer.path / "file").write_text("content")
    artefact = backend.capture(layer, "sp-1")
    blob_of(home, b"content").unlink()
    with pytest.raises(RestoreError, match="file") as caught:
        backend.verify(artefact)
    assert caught.value.code == "restore-damaged"


def test_a_truncated_blob_is_named_and_stored_anew(backend: CopyBackend, layer: Layer, home: Path) -> None:
    (layer.path / "file").write_text("content")
    artefact = backend.capture(layer, "sp-1")
    os.truncate(blob_of(home, b"content"), 3)
    with pytest.raises(RestoreError, match="file"):
        backend.verify(artefact)
    backend.capture(layer, "sp-2")
    backend.verify(artefact)


def test_a_truncated_tree_is_found(backend: CopyBackend, layer: Layer, home: Path) -> None:
    fill(layer.path)
    artefact = backend.capture(layer, "sp-1")
    wreck(layer.path)
    before = describe(layer.path)
    tree = max(trees(home), key=lambda path: path.stat().st_size)
    os.truncate(tree, tree.stat().st_size // 2)
    with pytest.raises(RestoreError, match="damaged"):
        backend.verify(artefact)
    with pytest.raises(RestoreError):
        backend.stage(artefact, layer)
    assert_same(describe(layer.path), before)


@pytest.mark.parametrize("damage", ["garbage", "torn", "gone"])
def test_a_broken_index_is_made_anew(backend: CopyBackend, layer: Layer, home: Path, damage: str) -> None:
    fill(layer.path)
    first = backend.capture(layer, "sp-1")
    (index,) = (home / "store" / "index").glob("*.sqlite")
    if damage == "garbage":
        index.write_bytes(b"no database at all" * 1000)
    elif damage == "torn":
        with sqlite3.connect(index) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        database.close()
        with open(index, "r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * 8192)
    else:
        index.unlink()
    before = describe(layer.path)
    second = backend.capture(layer, "sp-2")
    assert second.logical == first.logical
    wreck(layer.path)
    backend.stage(second, layer).switch()
    assert_same(describe(layer.path), before)


# --- disks


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[None]:
    path.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(path)], check=True, timeout=30)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True, timeout=30)


@pytest.mark.needs("root")
def test_a_full_home_fails_the_capture_alone(layer: Layer, tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "8m"):
        backend = CopyBackend(tmp_path / "small")
        (layer.path / "file").write_text("one")
        kept = backend.capture(layer, "sp-1")
        (layer.path / "large").write_bytes(os.urandom(16 * 1024 * 1024))
        before = describe(layer.path)
        for call in (lambda: backend.prepare(layer), lambda: backend.capture(layer, "sp-2")):
            with pytest.raises(CaptureError) as caught:
                call()
            assert caught.value.code == "capture-no-space"
        assert_same(describe(layer.path), before)
        assert not (tmp_path / "small" / "store" / "roots" / "sp-2").exists()
        backend.stage(kept, layer).switch()
        assert not (layer.path / "large").exists()
        backend.capture(layer, "sp-3")


@pytest.mark.needs("root")
def test_no_room_to_stage_leaves_the_layer(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "24m"):
        backend = CopyBackend(tmp_path / "home")
        layer = Layer(tmp_path / "small" / "layer")
        backend.create(layer)
        (layer.path / "large").write_bytes(os.urandom(10 * 1024 * 1024))
        artefact = backend.capture(layer, "sp-1")
        (layer.path / "large").write_bytes(os.urandom(20 * 1024 * 1024))
        before = describe(layer.path)
        with pytest.raises(RestoreError) as caught:
            backend.stage(artefact, layer)
        assert caught.value.code == "restore-no-space"
        assert_same(describe(layer.path), before)
        assert nothing_staged(layer)


@pytest.mark.needs("root")
def test_a_read_only_home(layer: Layer, tmp_path: Path) -> None:
    """Captures fail and say so; restores into a layer elsewhere still work."""
    with small_disk(tmp_path / "small", "8m"):
        backend = CopyBackend(tmp_path / "small")
        (layer.path / "file").write_text("one")
        artefact = backend.capture(layer, "sp-1")
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path / "small")], check=True, timeout=30)
        assert not backend.probe().available
        (layer.path / "file").write_text("two")
        with pytest.raises(CaptureError) as caught:
            backend.capture(layer, "sp-2")
        assert caught.value.code == "capture-files"
        backend.stage(artefact, layer).switch()
        assert (layer.path / "file").read_text() == "one"


# --- kills


CHILD = """
import os, signal, sys
from pathlib import Path
from planarian_core.interfaces import Layer
from planarian_core.model import Artefact, Domain
from planarian_filesystem.copy import CopyBackend

home, layer, reference, left = Path(sys.argv[1]), Layer(Path(sys.argv[2])), sys.argv[3], int(sys.argv[4])
backend = CopyBackend(home)

def count(event, _):
    global left
    if event == "open" or event.startswith(("os.", "sqlite3.", "fcntl.", "shutil.")):
        left -= 1
        if left == -1:  # once: the kill is an event itself
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(count)
if reference:
    backend.stage(Artefact(Domain.FILES, "copy", reference), layer).switch()
else:
    backend.capture(layer, "sp-killed")
"""


def deposits(home: Path) -> list[str]:
    """What captures have begun to store."""
    return [name for name in os.listdir(home / "store" / "pending") if name.startswith("deposit-")]


def killed_after(operations: int, home: Path, layer: Layer, reference: str = "") -> bool:
    """Capture, or restore ``reference``, in a process that dies (SIGKILL) at its Nth file operation; True if it did."""
    arguments = [sys.executable, "-c", CHILD, str(home), str(layer.path), reference, str(operations)]
    done = subprocess.run(arguments, timeout=60, check=False)
    assert done.returncode in (0, -signal.SIGKILL)
    return done.returncode != 0


def points() -> Iterator[int]:
    """Numbers of operations to die after, further and further apart; larger than what a child needs at last."""
    point = 3
    while True:
        yield point
        point += max(7, point // 4)


def test_a_killed_capture_loses_nothing(backend: CopyBackend, layer: Layer, home: Path) -> None:
    fill(layer.path)
    kept_description = describe(layer.path)
    kept = backend.capture(layer, "sp-1")
    wreck(layer.path)
    description = describe(layer.path)
    deaths = left = 0
    for point in points():
        if not killed_after(point, home, layer):
            break
        deaths += 1
        left += len(deposits(home))
        backend.prepare(layer)  # as the next snapshot does: gives back modes that the dead process had widened
        assert_same(describe(layer.path), description)
        assert deposits(home) == []
    assert deaths > 5
    assert left, "no kill left anything that was to be swept"
    backend.collect()
    again = backend.capture(layer, "sp-3")
    backend.verify(again)
    backend.stage(kept, layer).switch()
    assert_same(describe(layer.path), kept_description)
    backend.stage(again, layer).switch()
    assert_same(describe(layer.path), description)


@pytest.mark.parametrize("fork", [False, True])
def test_a_killed_switch_is_finished_by_staging_again(
    backend: CopyBackend, layer: Layer, home: Path, tmp_path: Path, fork: bool
) -> None:
    fill(layer.path)
    description = describe(layer.path)
    artefact = backend.capture(layer, "sp-1")
    target = Layer(tmp_path / "fork") if fork else layer
    deaths = 0
    for point in points():
        if fork:
            backend.destroy(target)
        else:
            wreck(layer.path)
        died = killed_after(point, home, target, artefact.reference)
        backend.stage(artefact, target).switch()
        assert_same(describe(target.path), description)
        assert nothing_staged(target)
        if not died:
            break
        deaths = point
    assert deaths > 100
    assert backend.capture(target, "sp-2").reference == artefact.reference


def test_a_failure_is_a_planarian_error_with_a_next_step(backend: CopyBackend, layer: Layer) -> None:
    (layer.path / "gone").mkdir()
    with pytest.raises(PlanarianError) as caught:
        backend.capture(Layer(layer.path / "gone" / "nowhere"), "sp-1")
    assert caught.value.state
    assert caught.value.remedy
