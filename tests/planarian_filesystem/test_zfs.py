"""The ``zfs`` backend: the conformance suite, and what is its own. Needs a kernel with ZFS: ``nox -s guest``."""

from __future__ import annotations

import itertools
import mmap
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from planarian_core.errors import CaptureError, ConfigurationError, RestoreError
from planarian_core.interfaces import Layer
from planarian_core.model import Artefact
from planarian_core.testing.filesystem import BackendFactory, FilesystemConformance
from planarian_core.testing.oracle import describe
from planarian_core.testing.zfs import file_pool
from planarian_filesystem import zfs_library, zfs_making, zfs_mount
from planarian_filesystem.zfs import ZfsBackend
from planarian_filesystem.zfs_datasets import Datasets
from planarian_filesystem.zfs_pool import ZfsPool

pytestmark = pytest.mark.needs("zfs")

_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def tank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A pool of its own for all tests of this module."""
    with file_pool(tmp_path_factory.mktemp("zpool")) as name:
        yield name


@pytest.fixture
def home(tank: str, tmp_path: Path) -> Iterator[Path]:
    """A home with a place in the pool, which is given up in the end."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    zfs_making.create_below(ZfsPool(home), tank)
    base = ZfsPool(home).where().base
    yield home
    zfs_making.destroy(ZfsPool(home), force=True)
    assert base not in listed(tank)


def listed(name: str, kind: str = "filesystem") -> list[str]:
    """What ``zfs list`` knows below a dataset."""
    command = ["zfs", "list", "-H", "-r", "-t", kind, "-o", "name", name]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return [line for line in done.stdout.split() if line != name]


class TestConformance(FilesystemConformance):
    @pytest.fixture
    def home(self, home: Path) -> Path:
        return home

    @pytest.fixture
    def backend_factory(self) -> BackendFactory:
        return ZfsBackend


@pytest.fixture
def backend(home: Path) -> ZfsBackend:
    return ZfsBackend(home)


@pytest.fixture
def layer(backend: ZfsBackend) -> Layer:
    layer = Layer(backend.place("sb-1"))
    backend.create(layer)
    return layer


@pytest.fixture
def datasets(home: Path) -> Datasets:
    return ZfsPool(home).ready()


def restore(backend: ZfsBackend, artefact: Artefact, layer: Layer) -> None:
    staged = backend.stage(artefact, layer)
    staged.switch()
    staged.discard()


def live(datasets: Datasets) -> list[str]:
    return listed(f"{datasets.base}/layers")


def snapshots(datasets: Datasets) -> list[str]:
    return [name.rpartition("@")[2] for name in listed(f"{datasets.base}/layers", "snapshot")]


def write_until_full(path: Path) -> None:
    with open(path, "wb", buffering=0) as file:
        while True:
            file.write(os.urandom(1 << 20))


# --- what others must not lose


def test_going_back_keeps_what_is_newer(backend: ZfsBackend, layer: Layer) -> None:
    artefacts = []
    for number in range(3):
        (layer.path / "file").write_text(str(number))
        artefacts.append(backend.capture(layer, f"sp-{number}"))
    restore(backend, artefacts[0], layer)
    assert (layer.path / "file").read_text() == "0"
    for number in (2, 1, 0):
        backend.verify(artefacts[number])
        restore(backend, artefacts[number], layer)
        assert (layer.path / "file").read_text() == str(number)


def test_nobody_else_destroys_a_statepoint_by_accident(backend: ZfsBackend, layer: Layer, datasets: Datasets) -> None:
    (layer.path / "file").write_text("0")
    first = backend.capture(layer, "sp-0")
    second = backend.capture(layer, "sp-1")
    name = datasets.snapshot(datasets.current("sb-1"), "sp-0")
    for command in (["zfs", "rollback", "-r", name], ["zfs", "destroy", name]):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode != 0
    backend.verify(first)
    backend.verify(second)


def test_what_nobody_needs_goes(backend: ZfsBackend, layer: Layer, datasets: Datasets) -> None:
    """Statepoints before and after a rollback, given up oldest first: clones are promoted, graves emptied."""
    artefacts = []
    for number in range(3):
        (layer.path / "file").write_text(str(number))
        artefacts.append(backend.capture(layer, f"sp-{number}"))
    restore(backend, artefacts[1], layer)
    assert len(live(datasets)) == 2
    backend.discard("sp-1")
    backend.verify(artefacts[0])
    backend.verify(artefacts[2])
    backend.discard("sp-0")
    assert (layer.path / "file").read_text() == "1"
    restore(backend, artefacts[2], layer)
    assert (layer.path / "file").read_text() == "2"
    backend.discard("sp-2")
    assert (layer.path / "file").read_text() == "2"
    assert len(live(datasets)) == 1
    assert snapshots(datasets) in ([], ["sp-2"])  # held back by the layer that was made from it, if by anything
    backend.destroy(layer)
    assert live(datasets) == snapshots(datasets) == []


def test_a_promoted_fork_has_the_statepoints(backend: ZfsBackend, layer: Layer, datasets: Datasets) -> None:
    (layer.path / "file").write_text("0")
    older = backend.capture(layer, "sp-0")
    (layer.path / "file").write_text("1")
    newer = backend.capture(layer, "sp-1")
    fork = Layer(layer.path.with_name("sb-2"))
    restore(backend, newer, fork)
    backend.destroy(layer)
    backend.discard("sp-1")
    backend.verify(older)
    assert datasets.holder("sp-0") == datasets.current("sb-2")
    assert len(live(datasets)) == 1
    restore(backend, older, fork)
    assert (fork.path / "file").read_text() == "0"


def test_a_busy_dataset_is_kept_and_goes_later(backend: ZfsBackend, layer: Layer, datasets: Datasets) -> None:
    (layer.path / "file").write_text("mine")
    with open(layer.path / "file") as held:
        backend.destroy(layer)
        assert not layer.path.exists()
        assert held.read() == "mine"
    backend.discard("sp-none")
    datasets.sweep()
    assert live(datasets) == []


# --- what memory holds


def test_what_is_only_in_a_mapping_is_captured(backend: ZfsBackend, layer: Layer) -> None:
    path = layer.path / "mapped"
    path.write_bytes(b"a" * 8192)
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[5000:5004] = b"late"
        artefact = backend.capture(layer, "sp-1")
    path.write_bytes(b"")
    restore(backend, artefact, layer)
    assert path.read_bytes()[5000:5004] == b"late"


# --- changes


def test_changes_are_told_before_and_after_the_switch(backend: ZfsBackend, layer: Layer) -> None:
    for name in ("changed", "same", "deleted"):
        (layer.path / name).write_text("a")
    artefact = backend.capture(layer, "sp-1")
    (layer.path / "changed").write_text("longer")
    (layer.path / "deleted").unlink()
    (layer.path / "new").mkdir()
    staged = backend.stage(artefact, layer)
    assert staged.changed == ("changed", "deleted", "new")
    staged.switch()
    assert staged.changed == ("changed", "deleted", "new")
    staged.discard()
    staged.discard()


# --- faults


def test_a_full_pool_is_said_and_nothing_is_lost(tmp_path: Path) -> None:
    home = tmp_path / "small"
    home.mkdir()
    zfs_making.create_file(ZfsPool(home), zfs_making.SMALLEST)
    backend = ZfsBackend(home)
    layer = Layer(backend.place("sb-1"))
    backend.create(layer)
    (layer.path / "file").write_text("precious")
    artefact = backend.capture(layer, "sp-1")
    with pytest.raises(OSError, match=r"space|quota"):
        write_until_full(layer.path / "big")
    restore(backend, artefact, layer)
    assert os.listdir(layer.path) == ["file"]
    assert (layer.path / "file").read_text() == "precious"
    zfs_making.destroy(ZfsPool(home), force=True)


def test_no_room_for_a_snapshot(
    backend: ZfsBackend, layer: Layer, datasets: Datasets, monkeypatch: pytest.MonkeyPatch
) -> None:
    (layer.path / "file").write_text("0")
    monkeypatch.setenv("PLANARIAN_FAULT", "zfs.captured=fail")
    with pytest.raises(CaptureError) as caught:
        backend.capture(layer, "sp-1")
    assert caught.value.code == "capture-no-space"
    assert "planarian prune" in caught.value.remedy
    monkeypatch.delenv("PLANARIAN_FAULT")
    assert snapshots(datasets) == []
    assert (layer.path / "file").read_text() == "0"


_KILLED = """\
import sys
from pathlib import Path
from planarian_core.interfaces import Layer
from planarian_core.model import Artefact, Domain
from planarian_filesystem.zfs import ZfsBackend
backend = ZfsBackend(Path(sys.argv[1]))
layer = Layer(backend.place("sb-1"))
if sys.argv[2] == "capture":
    backend.capture(layer, "sp-2")
else:
    staged = backend.stage(Artefact(Domain.FILES, "zfs", "sp-1"), layer)
    staged.switch()
    staged.discard()
"""


@pytest.mark.parametrize(
    ("point", "does", "holds"),
    [("zfs.captured", "capture", "new"), ("zfs.staged", "restore", "new"), ("zfs.switched", "restore", "old")],
)
def test_killed_half_way(
    home: Path, backend: ZfsBackend, layer: Layer, datasets: Datasets, point: str, does: str, holds: str
) -> None:
    (layer.path / "file").write_text("old")
    artefact = backend.capture(layer, "sp-1")
    (layer.path / "file").write_text("new")
    command = [sys.executable, "-c", _KILLED, str(home), does]
    done = subprocess.run(command, env={**os.environ, "PLANARIAN_FAULT": f"{point}=kill"}, check=False, timeout=300)
    assert done.returncode == -9
    again = ZfsBackend(home)
    again.place("sb-1")
    assert (layer.path / "file").read_text() == holds
    again.discard("sp-2")
    restore(again, artefact, layer)
    assert (layer.path / "file").read_text() == "old"
    assert snapshots(datasets) == ["sp-1"]
    assert len(live(datasets)) == 2


def test_a_deleted_snapshot_is_named(backend: ZfsBackend, layer: Layer, datasets: Datasets) -> None:
    artefact = backend.capture(layer, "sp-1")
    name = datasets.snapshot(datasets.current("sb-1"), "sp-1")
    zfs_library.release(name)
    zfs_library.destroy_snapshot(name)
    for refused in (lambda: backend.verify(artefact), lambda: backend.stage(artefact, layer)):
        with pytest.raises(RestoreError, match="sp-1") as caught:
            refused()
        assert caught.value.code == "restore-damaged"
    backend.discard("sp-1")


# --- the pool


def test_a_pool_file_comes_back_after_an_export(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    pool = ZfsPool(home)
    zfs_making.create_file(pool, zfs_making.SMALLEST)
    with pytest.raises(ConfigurationError):
        zfs_making.create_file(pool, zfs_making.SMALLEST)
    backend = ZfsBackend(home)
    layer = Layer(backend.place("sb-1"))
    backend.create(layer)
    (layer.path / "file").write_text("kept")
    artefact = backend.capture(layer, "sp-1")
    zfs_mount.remove(layer.path)
    zfs_mount.remove(pool.root)
    subprocess.run(["zpool", "export", pool.where().base], check=True, timeout=60)
    for again in (backend, ZfsBackend(home)):
        again.verify(artefact)
        assert (layer.path / "file").read_text() == "kept"
    with pytest.raises(ConfigurationError):
        zfs_making.destroy(pool, force=False)
    assert zfs_making.destroy(pool, force=True) == (1, 1)
    assert not pool.file.exists()
    assert not ZfsBackend(home).probe().available


def test_a_home_without_zfs_says_what_to_do(tmp_path: Path) -> None:
    found = ZfsBackend(tmp_path).probe()
    assert not found.available
    assert "planarian zfs create" in found.remedy


# --- random cycles


@pytest.mark.parametrize("seed", range(3))
def test_random_cycles_keep_every_statepoint_exact(backend: ZfsBackend, layer: Layer, seed: int) -> None:
    """Captures, restores, forks and discards in any order, against descriptions that the backend knows nothing of."""
    chance = random.Random(seed)  # noqa: S311  # to be repeated, not secret
    kept: dict[str, tuple[Artefact, object]] = {}
    layers = [layer]
    for number in range(25):
        chosen = chance.choice(layers)
        step = chance.choice(["write", "write", "capture", "capture", "restore", "fork", "discard"])
        if step == "write":
            (chosen.path / f"file{chance.randrange(4)}").write_text(f"{seed} {number}")
        elif step == "capture":
            artefact = backend.capture(chosen, f"sp-{number}")
            kept[artefact.reference] = (artefact, describe(chosen.path))
        elif step == "discard" and kept:
            name = chance.choice(sorted(kept))
            backend.discard(name)
            del kept[name]
        elif step in ("restore", "fork") and kept:
            artefact, expected = kept[chance.choice(sorted(kept))]
            if step == "fork" and len(layers) < 4:
                chosen = Layer(layer.path.with_name(f"fork-{number}"))
                layers.append(chosen)
            restore(backend, artefact, chosen)
            assert describe(chosen.path) == expected
    for artefact, expected in kept.values():
        restore(backend, artefact, layer)
        assert describe(layer.path) == expected
