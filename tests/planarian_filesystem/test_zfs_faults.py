"""The ``zfs`` backend where something goes wrong. Needs a kernel with ZFS: ``nox -s guest``."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from planarian_core.errors import CaptureError, RestoreError
from planarian_core.interfaces import Layer
from planarian_core.model import Artefact
from planarian_core.testing.filesystem import FilesystemConformance
from planarian_core.testing.oracle import Description, assert_same, describe
from planarian_core.testing.zfs import file_pool, listed
from planarian_filesystem import zfs_library, zfs_making, zfs_mount
from planarian_filesystem.zfs import ZfsBackend
from planarian_filesystem.zfs_datasets import Datasets
from planarian_filesystem.zfs_notes import BESIDE, GRAVES, STATEPOINTS, Notes
from planarian_filesystem.zfs_pool import ZfsPool

pytestmark = pytest.mark.needs("zfs")

restore = FilesystemConformance.restore


def live(datasets: Datasets) -> list[str]:
    return listed(f"{datasets.base}/layers")


def snapshots(datasets: Datasets) -> list[str]:
    return [name.rpartition("@")[2] for name in listed(f"{datasets.base}/layers", "snapshot")]


def write_until_full(path: Path) -> None:
    """To the last: the larger a write is, the more room ZFS wants to be left by it."""
    block = os.urandom(1 << 20)
    with open(path, "wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(block)
        while True:
            file.write(block[: 1 << 13])


def test_a_busy_dataset_is_kept_and_goes_later(on_zfs: ZfsBackend, zfs_layer: Layer, datasets: Datasets) -> None:
    (zfs_layer.path / "file").write_text("mine")
    with open(zfs_layer.path / "file") as held:
        on_zfs.destroy(zfs_layer)
        assert not zfs_layer.path.exists()
        assert held.read() == "mine"
    on_zfs.discard("sp-none")
    datasets.sweep()
    assert live(datasets) == []


# --- no room


def test_a_full_pool_is_said_and_nothing_is_lost(tmp_path: Path) -> None:
    home = tmp_path / "small"
    home.mkdir()
    zfs_making.create_file(ZfsPool(home), zfs_making.SMALLEST, sparse=True)
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


def test_what_is_in_a_full_pool_of_others_can_be_removed(tmp_path: Path) -> None:
    """Going back may have no room there; then it says so, nothing is lost, and a removal makes the room."""
    home = tmp_path / "home"
    home.mkdir()
    with file_pool(tmp_path, 256 * 1024**2) as tank:
        zfs_making.create_below(ZfsPool(home), tank)
        backend = ZfsBackend(home)
        layer, other = (Layer(backend.place(name)) for name in ("sb-1", "sb-2"))
        for made in (layer, other):
            backend.create(made)
            (made.path / "file").write_text("precious")
        artefact = backend.capture(layer, "sp-1")
        backend.capture(other, "sp-2")
        with pytest.raises(OSError, match=r"space|quota"):
            write_until_full(other.path / "big")
        with contextlib.suppress(RestoreError):
            restore(backend, artefact, layer)
        assert (layer.path / "file").read_text() == "precious"
        backend.discard("sp-2")
        backend.destroy(other)
        subprocess.run(["zpool", "wait", "-t", "free", tank], check=True, timeout=60)
        for _ in range(4):  # what is freed can be had some transaction groups later
            subprocess.run(["zpool", "sync", tank], check=True, timeout=60)
        restore(backend, artefact, layer)
        assert (layer.path / "file").read_text() == "precious"
        zfs_making.destroy(ZfsPool(home), force=True)


def test_no_room_for_a_snapshot(
    on_zfs: ZfsBackend, zfs_layer: Layer, datasets: Datasets, monkeypatch: pytest.MonkeyPatch
) -> None:
    (zfs_layer.path / "file").write_text("0")
    monkeypatch.setenv("PLANARIAN_FAULT", "zfs.captured=fail")
    with pytest.raises(CaptureError) as caught:
        on_zfs.capture(zfs_layer, "sp-1")
    assert caught.value.code == "capture-no-space"
    assert "planarian prune" in caught.value.remedy
    monkeypatch.delenv("PLANARIAN_FAULT")
    assert snapshots(datasets) == []
    assert (zfs_layer.path / "file").read_text() == "0"


# --- killed


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
    home_on_zfs: Path, on_zfs: ZfsBackend, zfs_layer: Layer, datasets: Datasets, point: str, does: str, holds: str
) -> None:
    (zfs_layer.path / "file").write_text("old")
    artefact = on_zfs.capture(zfs_layer, "sp-1")
    (zfs_layer.path / "file").write_text("new")
    command = [sys.executable, "-c", _KILLED, str(home_on_zfs), does]
    done = subprocess.run(command, env={**os.environ, "PLANARIAN_FAULT": f"{point}=kill"}, check=False, timeout=300)
    assert done.returncode == -signal.SIGKILL
    again = ZfsBackend(home_on_zfs)
    again.place("sb-1")
    assert (zfs_layer.path / "file").read_text() == holds
    again.discard("sp-2")
    restore(again, artefact, zfs_layer)
    assert (zfs_layer.path / "file").read_text() == "old"
    assert snapshots(datasets) == ["sp-1"]
    assert len(live(datasets)) == 2


_CALLS = ("create", "clone", "snapshot", "hold", "release", "destroy", "destroy_snapshot", "promote", "rollback")
_STEPS: list[tuple[object, tuple[str, ...]]] = [
    (Notes, ("write", "remove")),
    (zfs_mount, ("attach", "place", "remove")),
    (zfs_library, _CALLS),
]
"""All that changes anything in the pool."""


def killed_before(step: int, work: Callable[[], object]) -> bool:
    """Do something in a process of its own that is killed before so many steps of it; whether it came to its end."""
    child = os.fork()
    if child:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, -signal.SIGKILL)
        return code == 0
    steps = itertools.count()

    def counted(call: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*arguments: object, **named: object) -> object:
            if next(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **named)

        return wrapped

    try:
        for where, names in _STEPS:
            for name in names:
                setattr(where, name, counted(getattr(where, name)))
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


@pytest.mark.parametrize("does", ["create", "capture", "restore", "fork", "discard", "destroy"])
def test_killed_before_any_step(home_on_zfs: Path, datasets: Datasets, does: str) -> None:
    """What was there is there, exactly; what was begun can be done again; and nothing is left that nobody needs."""
    for step in itertools.count():
        backend = ZfsBackend(home_on_zfs)
        layer, fork, fresh = (Layer(backend.place(f"{name}-{step}")) for name in ("sb", "fork", "fresh"))
        backend.create(layer)
        (layer.path / "file").write_text("old")
        old = describe(layer.path)
        artefact = backend.capture(layer, f"sp-{step}")
        (layer.path / "file").write_text("new")
        new = describe(layer.path)
        if does == "discard":  # of a statepoint that only a clone needs, beside an older one
            restore(backend, artefact, fork)
            backend.destroy(layer)
        works: dict[str, Callable[[], object]] = {
            "create": lambda: backend.create(fresh),  # noqa: B023  # called in this round
            "capture": lambda: backend.capture(layer, f"later-{step}"),  # noqa: B023
            "restore": lambda: restore(backend, artefact, layer),  # noqa: B023
            "fork": lambda: restore(backend, artefact, fork),  # noqa: B023
            "discard": lambda: backend.discard(f"sp-{step}"),  # noqa: B023
            "destroy": lambda: backend.destroy(layer),  # noqa: B023
        }
        ended = killed_before(step, works[does])
        again = ZfsBackend(home_on_zfs)
        again.place("any")
        if does == "discard":
            assert_same(describe(fork.path), old)
        elif does != "destroy":
            assert describe(layer.path) in ([old, new] if does == "restore" else [new])
        if does != "discard":
            restore(again, artefact, layer)
            assert_same(describe(layer.path), old)
        for made in (layer, fork, fresh):
            again.destroy(made)
        for statepoint in (f"sp-{step}", f"later-{step}"):
            again.discard(statepoint)
        assert live(datasets) == snapshots(datasets) == []
        assert not [*datasets.notes.names(GRAVES), *datasets.notes.names(BESIDE), *datasets.notes.names(STATEPOINTS)]
        if ended:
            assert step > 2
            return


def test_a_trial_that_was_killed_leaves_nothing(home_on_zfs: Path, datasets: Datasets) -> None:
    for step in itertools.count():
        ended = killed_before(step, lambda: ZfsBackend(home_on_zfs).probe())
        assert ZfsBackend(home_on_zfs).probe().available
        assert live(datasets) == []
        if ended:
            return


# --- several at once


def _cycles(home: Path, artefact: Artefact, expected: Description, name: str) -> None:
    """Fork what all share, and go on from there; each fork and statepoint is given up again."""
    backend = ZfsBackend(home)
    layer = Layer(backend.place(name))
    for number in range(4):
        restore(backend, artefact, layer)
        assert_same(describe(layer.path), expected)
        (layer.path / name).write_text(str(number))
        mine = backend.capture(layer, f"{name}-{number}")
        described = describe(layer.path)
        (layer.path / name).unlink()
        fork = Layer(layer.path.with_name(f"{name}-fork"))
        restore(backend, mine, fork)
        backend.destroy(layer)
        backend.discard(f"{name}-{number}")
        assert_same(describe(fork.path), described)
        backend.destroy(fork)


def test_several_runtimes_at_once(home_on_zfs: Path, on_zfs: ZfsBackend, zfs_layer: Layer, datasets: Datasets) -> None:
    """Clones of one snapshot come and go, and are promoted, while others look for theirs."""
    (zfs_layer.path / "file").write_text("shared")
    expected = describe(zfs_layer.path)
    artefact = on_zfs.capture(zfs_layer, "sp-1")
    on_zfs.destroy(zfs_layer)
    context = multiprocessing.get_context("fork")
    arguments = [(home_on_zfs, artefact, expected, f"sb-{number}") for number in range(2, 5)]
    workers = [context.Process(target=_cycles, args=given) for given in arguments]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    on_zfs.verify(artefact)
    on_zfs.discard("sp-1")
    assert live(datasets) == snapshots(datasets) == []


# --- changed behind our back


def test_a_deleted_snapshot_is_named(on_zfs: ZfsBackend, zfs_layer: Layer, datasets: Datasets) -> None:
    artefact = on_zfs.capture(zfs_layer, "sp-1")
    name = datasets.snapshot(datasets.current("sb-1"), "sp-1")
    zfs_library.release(name)
    zfs_library.destroy_snapshot(name)
    for refused in (lambda: on_zfs.verify(artefact), lambda: on_zfs.stage(artefact, zfs_layer)):
        with pytest.raises(RestoreError, match="sp-1") as caught:
            refused()
        assert caught.value.code == "restore-damaged"
    on_zfs.discard("sp-1")


def test_a_layer_that_was_destroyed_is_named_and_hinders_no_other(
    home_on_zfs: Path, on_zfs: ZfsBackend, zfs_layer: Layer, datasets: Datasets
) -> None:
    other = Layer(zfs_layer.path.with_name("sb-2"))
    on_zfs.create(other)
    (other.path / "file").write_text("mine")
    zfs_mount.remove(zfs_layer.path)
    subprocess.run(["zfs", "destroy", datasets.full(datasets.current("sb-1"))], check=True, timeout=60)
    zfs_mount.remove(other.path)
    zfs_mount.remove(datasets.root)
    again = ZfsBackend(home_on_zfs)
    again.place("any")
    assert (other.path / "file").read_text() == "mine"
    with pytest.raises(CaptureError):
        again.capture(zfs_layer, "sp-1")
    again.destroy(zfs_layer)
    assert live(datasets) == [datasets.full(datasets.current("sb-2"))]
