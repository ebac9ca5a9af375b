"""The ``zfs`` backend: the conformance suite, and what is its own. Needs a kernel with ZFS: ``nox -s guest``."""

from __future__ import annotations

import mmap
import random
import subprocess
from pathlib import Path

import pytest

from planarian_core.errors import CaptureError, RestoreError
from planarian_core.interfaces import Layer
from planarian_core.model import Artefact
from planarian_core.testing.filesystem import BackendFactory, FilesystemConformance
from planarian_core.testing.oracle import describe
from planarian_core.testing.zfs import listed
from planarian_filesystem.zfs import ZfsBackend
from planarian_filesystem.zfs_datasets import Datasets

pytestmark = pytest.mark.needs("zfs")


class TestConformance(FilesystemConformance):
    @pytest.fixture
    def home(self, home_on_zfs: Path) -> Path:
        return home_on_zfs

    @pytest.fixture
    def backend_factory(self) -> BackendFactory:
        return ZfsBackend


restore = FilesystemConformance.restore


def zfs(*arguments: str) -> None:
    subprocess.run(["zfs", *arguments], check=True, timeout=60)


def live(datasets: Datasets) -> list[str]:
    return listed(f"{datasets.base}/layers")


def snapshots(datasets: Datasets) -> list[str]:
    return [name.rpartition("@")[2] for name in listed(f"{datasets.base}/layers", "snapshot")]


# --- what others must not lose


def test_going_back_keeps_what_is_newer(on_zfs: ZfsBackend, zfs_layer: Layer) -> None:
    artefacts = []
    for number in range(3):
        (zfs_layer.path / "file").write_text(str(number))
        artefacts.append(on_zfs.capture(zfs_layer, f"sp-{number}"))
    restore(on_zfs, artefacts[0], zfs_layer)
    assert (zfs_layer.path / "file").read_text() == "0"
    for number in (2, 1, 0):
        on_zfs.verify(artefacts[number])
        restore(on_zfs, artefacts[number], zfs_layer)
        assert (zfs_layer.path / "file").read_text() == str(number)


def test_nobody_else_destroys_a_statepoint_by_accident(
    on_zfs: ZfsBackend, zfs_layer: Layer, datasets: Datasets
) -> None:
    (zfs_layer.path / "file").write_text("0")
    first = on_zfs.capture(zfs_layer, "sp-0")
    second = on_zfs.capture(zfs_layer, "sp-1")
    name = datasets.snapshot(datasets.current("sb-1"), "sp-0")
    for command in (["zfs", "rollback", "-r", name], ["zfs", "destroy", name]):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode != 0
    on_zfs.verify(first)
    on_zfs.verify(second)


def test_what_nobody_needs_goes(on_zfs: ZfsBackend, zfs_layer: Layer, datasets: Datasets) -> None:
    """Statepoints before and after a rollback, given up oldest first: clones are promoted, graves emptied."""
    artefacts = []
    for number in range(3):
        (zfs_layer.path / "file").write_text(str(number))
        artefacts.append(on_zfs.capture(zfs_layer, f"sp-{number}"))
    restore(on_zfs, artefacts[1], zfs_layer)
    assert len(live(datasets)) == 2
    on_zfs.discard("sp-1")
    on_zfs.verify(artefacts[0])
    on_zfs.verify(artefacts[2])
    on_zfs.discard("sp-0")
    assert (zfs_layer.path / "file").read_text() == "1"
    restore(on_zfs, artefacts[2], zfs_layer)
    assert (zfs_layer.path / "file").read_text() == "2"
    on_zfs.discard("sp-2")
    assert (zfs_layer.path / "file").read_text() == "2"
    assert len(live(datasets)) == 1
    assert snapshots(datasets) == []
    on_zfs.destroy(zfs_layer)
    assert live(datasets) == snapshots(datasets) == []


def test_a_promoted_fork_has_the_statepoints(on_zfs: ZfsBackend, zfs_layer: Layer, datasets: Datasets) -> None:
    (zfs_layer.path / "file").write_text("0")
    older = on_zfs.capture(zfs_layer, "sp-0")
    (zfs_layer.path / "file").write_text("1")
    newer = on_zfs.capture(zfs_layer, "sp-1")
    fork = Layer(zfs_layer.path.with_name("sb-2"))
    restore(on_zfs, newer, fork)
    on_zfs.destroy(zfs_layer)
    on_zfs.discard("sp-1")
    on_zfs.verify(older)
    assert datasets.holder("sp-0") == datasets.current("sb-2")
    assert len(live(datasets)) == 1
    restore(on_zfs, older, fork)
    assert (fork.path / "file").read_text() == "0"


def test_a_fork_outlives_what_it_came_from(on_zfs: ZfsBackend, zfs_layer: Layer, datasets: Datasets) -> None:
    """Given up in the order in which a sandbox is removed: its statepoints, then its layer."""
    (zfs_layer.path / "file").write_text("0")
    artefact = on_zfs.capture(zfs_layer, "sp-0")
    fork = Layer(zfs_layer.path.with_name("sb-2"))
    restore(on_zfs, artefact, fork)
    on_zfs.discard("sp-0")
    on_zfs.destroy(zfs_layer)
    assert (fork.path / "file").read_text() == "0"
    assert live(datasets) == [datasets.full(datasets.current("sb-2"))]
    assert snapshots(datasets) == []


def test_a_statepoint_is_never_taken_twice(on_zfs: ZfsBackend, zfs_layer: Layer) -> None:
    (zfs_layer.path / "file").write_text("first")
    artefact = on_zfs.capture(zfs_layer, "sp-0")
    (zfs_layer.path / "file").write_text("second")
    with pytest.raises(CaptureError):
        on_zfs.capture(zfs_layer, "sp-0")
    restore(on_zfs, artefact, zfs_layer)
    assert (zfs_layer.path / "file").read_text() == "first"


def test_what_others_made_of_a_statepoint_is_theirs(
    tank: str, on_zfs: ZfsBackend, zfs_layer: Layer, datasets: Datasets
) -> None:
    """A clone, a hold and a snapshot: none is destroyed, and none takes what is ours."""
    (zfs_layer.path / "file").write_text("0")
    artefact = on_zfs.capture(zfs_layer, "sp-0")
    later = on_zfs.capture(zfs_layer, "sp-1")
    name = datasets.snapshot(datasets.current("sb-1"), "sp-0")
    zfs("clone", "-o", "mountpoint=none", name, f"{tank}/theirs")
    zfs("hold", "theirs", datasets.snapshot(datasets.current("sb-1"), "sp-1"))
    zfs("snapshot", "-r", f"{tank}@daily")
    restore(on_zfs, artefact, zfs_layer)
    with pytest.raises(RestoreError, match="busy"):
        on_zfs.discard("sp-1")
    on_zfs.discard("sp-0")
    assert f"{tank}/theirs" in listed(tank)
    assert name in listed(tank, "snapshot")
    zfs("destroy", "-r", f"{tank}/theirs")
    assert (zfs_layer.path / "file").read_text() == "0"
    restore(on_zfs, later, zfs_layer)
    zfs("release", "theirs", datasets.snapshot(datasets.holder("sp-1"), "sp-1"))
    on_zfs.discard("sp-1")
    on_zfs.destroy(zfs_layer)
    assert {n.rpartition("@")[2] for n in listed(f"{datasets.base}/layers", "snapshot")} <= {"daily"}
    zfs("destroy", "-r", f"{tank}@daily")
    datasets.sweep()
    assert live(datasets) == []


# --- what memory holds


def test_what_is_only_in_a_mapping_is_captured(on_zfs: ZfsBackend, zfs_layer: Layer) -> None:
    path = zfs_layer.path / "mapped"
    path.write_bytes(b"a" * 8192)
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[5000:5004] = b"late"
        artefact = on_zfs.capture(zfs_layer, "sp-1")
    path.write_bytes(b"")
    restore(on_zfs, artefact, zfs_layer)
    assert path.read_bytes()[5000:5004] == b"late"


# --- changes


def test_changes_are_told_before_and_after_the_switch(on_zfs: ZfsBackend, zfs_layer: Layer) -> None:
    for name in ("changed", "same", "deleted"):
        (zfs_layer.path / name).write_text("a")
    artefact = on_zfs.capture(zfs_layer, "sp-1")
    (zfs_layer.path / "changed").write_text("longer")
    (zfs_layer.path / "deleted").unlink()
    (zfs_layer.path / "new").mkdir()
    staged = on_zfs.stage(artefact, zfs_layer)
    assert staged.changed == ("changed", "deleted", "new")
    staged.switch()
    assert staged.changed == ("changed", "deleted", "new")
    staged.discard()
    staged.discard()


# --- random cycles


@pytest.mark.parametrize("seed", range(3))
def test_random_cycles_keep_every_statepoint_exact(
    on_zfs: ZfsBackend, zfs_layer: Layer, datasets: Datasets, seed: int
) -> None:
    """Captures, restores, forks and discards in any order, against descriptions that the backend knows nothing of."""
    chance = random.Random(seed)  # noqa: S311  # to be repeated, not secret
    kept: dict[str, tuple[Artefact, object]] = {}
    layers = [zfs_layer]
    for number in range(25):
        chosen = chance.choice(layers)
        step = chance.choice(["write", "write", "capture", "capture", "restore", "fork", "discard"])
        if step == "write":
            (chosen.path / f"file{chance.randrange(4)}").write_text(f"{seed} {number}")
        elif step == "capture":
            artefact = on_zfs.capture(chosen, f"sp-{number}")
            kept[artefact.reference] = (artefact, describe(chosen.path))
        elif step == "discard" and kept:
            name = chance.choice(sorted(kept))
            on_zfs.discard(name)
            del kept[name]
        elif step in ("restore", "fork") and kept:
            artefact, expected = kept[chance.choice(sorted(kept))]
            if step == "fork" and len(layers) < 4:
                chosen = Layer(zfs_layer.path.with_name(f"fork-{number}"))
                layers.append(chosen)
            restore(on_zfs, artefact, chosen)
            assert describe(chosen.path) == expected
    for artefact, expected in kept.values():
        restore(on_zfs, artefact, zfs_layer)
        assert describe(zfs_layer.path) == expected
    for gone in layers:
        on_zfs.destroy(gone)
    for name in kept:
        on_zfs.discard(name)
    assert live(datasets) == snapshots(datasets) == [], "nothing that nobody needs is left"
