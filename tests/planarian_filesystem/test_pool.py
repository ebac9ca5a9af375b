"""The pool of a home: made, found again, grown, removed, and what a user is told when something is wrong with it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from planarian_core.errors import BackendUnavailable, ConfigurationError, PlanarianError
from planarian_core.interfaces import Layer
from planarian_core.model import Artefact
from planarian_core.testing.btrfs import loop_btrfs
from planarian_core.testing.filesystem import fill
from planarian_core.testing.oracle import assert_same, describe
from planarian_core.testing.process import eventually
from planarian_filesystem import pool_loop, pool_making, pool_status
from planarian_filesystem.btrfs import BtrfsBackend
from planarian_filesystem.pool import Pool

pytestmark = pytest.mark.needs("btrfs")

SIZE = 256 * 1024**2


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home that isn't on btrfs; what is mounted in it is unmounted in the end."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "registry.sqlite").touch()  # a home is known by it: another test's podman doesn't keep its mounts then
    yield home
    while subprocess.run(["umount", str(home / "pool")], capture_output=True, check=False).returncode == 0:
        pass


@pytest.fixture
def pool(home: Path) -> Pool:
    """A pool file, mounted."""
    pool = Pool(home)
    pool_making.create_file(pool, SIZE, sparse=True)
    return pool


def loops(file: Path) -> list[str]:
    """The loop devices of a file, as the system's own tool tells them."""
    done = subprocess.run(["losetup", "--noheadings", "--output", "NAME", "--associated", str(file)],
                          capture_output=True, text=True, check=True)  # fmt: skip
    return done.stdout.split()


def mounts(point: Path) -> list[list[str]]:
    lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [line for line in lines if line[1] == str(point)]


def unmount(pool: Pool) -> None:
    """As a reboot would."""
    subprocess.run(["umount", str(pool.path)], check=True)
    assert eventually(lambda: not loops(pool.file)), "the loop device stays"


def filled(home: Path) -> tuple[Layer, Artefact]:
    backend = BtrfsBackend(home)
    layer = Layer(backend.place("sb-1"))
    backend.create(layer)
    fill(layer.path)
    return layer, backend.capture(layer, "sp-1")


# --- made and found again


def test_a_pool_is_mounted_apart_and_for_root_alone(pool: Pool) -> None:
    [mount] = mounts(pool.path)
    assert mount[2] == "btrfs"
    assert {"nosuid", "nodev", "noatime"} <= set(mount[3].split(","))
    assert pool.file.stat().st_mode & 0o777 == 0o600
    assert (pool.path / "layers").stat().st_mode & 0o777 == 0o700
    assert len(loops(pool.file)) == 1


def test_space_is_set_aside_unless_it_is_sparse(home: Path) -> None:
    pool_making.create_file(Pool(home), SIZE)
    assert (home / "pool.btrfs").stat().st_blocks * 512 >= SIZE
    pool_making.destroy(Pool(home))
    pool_making.create_file(Pool(home), SIZE, sparse=True)
    assert (home / "pool.btrfs").stat().st_blocks * 512 < SIZE / 2


def test_a_pool_is_mounted_again_by_whoever_needs_it(pool: Pool) -> None:
    layer, artefact = filled(pool.home)
    before = describe(layer.path)
    unmount(pool)
    assert not layer.path.exists()
    backend = BtrfsBackend(pool.home)
    assert backend.probe().available
    assert_same(describe(layer.path), before)
    backend.verify(artefact)
    assert len(mounts(pool.path)) == len(loops(pool.file)) == 1


def test_many_at_once_mount_it_once(pool: Pool) -> None:
    unmount(pool)
    children = []
    for _ in range(8):
        child = os.fork()
        if child == 0:
            os._exit(0 if BtrfsBackend(pool.home).probe().available else 1)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 8
    assert len(mounts(pool.path)) == len(loops(pool.file)) == 1


def test_an_unmount_under_a_backend_is_mended_by_its_next_use(pool: Pool) -> None:
    layer, artefact = filled(pool.home)
    backend = BtrfsBackend(pool.home)
    backend.verify(artefact)
    unmount(pool)
    backend.capture(layer, "sp-2")
    backend.verify(artefact)


def test_a_loop_device_that_is_there_already_is_used(pool: Pool) -> None:
    unmount(pool)
    done = subprocess.run(["losetup", "--find", "--show", str(pool.file)], capture_output=True, text=True, check=True)
    try:
        assert pool_loop.device_of(pool.file) == done.stdout.strip()
        pool.ready()
        assert loops(pool.file) == [done.stdout.strip()]
    finally:
        subprocess.run(["umount", str(pool.path)], check=True)
        subprocess.run(["losetup", "--detach", done.stdout.strip()], check=True)


def test_a_second_pool_is_refused(pool: Pool) -> None:
    with pytest.raises(ConfigurationError) as caught:
        pool_making.create_file(pool, SIZE)
    assert caught.value.code == "pool-exists"
    with pytest.raises(ConfigurationError) as caught:
        pool_making.create_directory(pool, pool.home)
    assert caught.value.code == "pool-exists"


def test_a_home_on_btrfs_needs_none(home_on_btrfs: Path) -> None:
    assert Pool(home_on_btrfs).kind == "home"
    with pytest.raises(ConfigurationError) as caught:
        pool_making.create_file(Pool(home_on_btrfs), SIZE)
    assert caught.value.code == "pool-none"


def test_one_that_is_too_large_or_too_small_is_refused(home: Path) -> None:
    for size, code in ((1 << 60, "pool-no-room"), (1024, "pool-size")):
        with pytest.raises(ConfigurationError) as caught:
            pool_making.create_file(Pool(home), size)
        assert caught.value.code == code
    assert set(os.listdir(home)) <= {"registry.sqlite", "pool.lock"}


# --- grown


def test_a_pool_grows_while_it_is_used(pool: Pool) -> None:
    layer, artefact = filled(pool.home)
    before = describe(layer.path)
    pool_making.grow(pool, 2 * SIZE)
    found = pool_status.status(pool)
    assert found.size == pool.file.stat().st_size == 2 * SIZE
    assert found.sandboxes == found.statepoints == 1
    assert_same(describe(layer.path), before)
    with pytest.raises(ConfigurationError) as caught:
        pool_making.grow(pool, 2 * SIZE)
    assert caught.value.code == "pool-size"
    with pytest.raises(ConfigurationError):
        pool_making.grow(pool, SIZE)
    unmount(pool)
    BtrfsBackend(pool.home).verify(artefact)


def test_growing_makes_room_in_a_full_pool(pool: Pool) -> None:
    layer, _ = filled(pool.home)
    with pytest.raises(OSError, match="No space"):
        write_without_end(layer.path / "more")
    pool_making.grow(pool, 2 * SIZE)
    with open(layer.path / "after", "wb") as file:
        file.write(os.urandom(32 * 1024**2))
        os.fsync(file.fileno())


def write_without_end(path: Path) -> None:
    with open(path, "wb") as file:
        while True:
            file.write(os.urandom(1024 * 1024))
            os.fsync(file.fileno())


# --- removed


def test_a_pool_that_holds_something_is_not_removed(pool: Pool) -> None:
    layer, _ = filled(pool.home)
    with pytest.raises(ConfigurationError) as caught:
        pool_making.destroy(pool)
    assert caught.value.code == "pool-in-use"
    assert layer.path.is_dir()
    BtrfsBackend(pool.home).destroy(layer)
    with pytest.raises(ConfigurationError):
        pool_making.destroy(pool)
    BtrfsBackend(pool.home).discard("sp-1")
    assert pool_making.destroy(pool) == (0, 0)
    assert not pool.file.exists()
    assert not pool.path.exists()
    assert mounts(pool.path) == []
    assert pool.kind == ""


def test_force_removes_it_with_all_that_it_holds(pool: Pool) -> None:
    layer, artefact = filled(pool.home)
    assert pool_making.destroy(pool, force=True) == (1, 1)
    assert not pool.file.exists()
    backend = BtrfsBackend(pool.home)
    for use in (lambda: backend.verify(artefact), lambda: backend.stage(artefact, layer), lambda: backend.place("x")):
        with pytest.raises(BackendUnavailable) as caught:
            use()
        assert "planarian pool create" in caught.value.remedy
    backend.discard("sp-1")  # so that its sandboxes can be removed
    backend.destroy(layer)
    backend.forget(layer)


def test_a_pool_in_use_is_not_removed_even_by_force(pool: Pool) -> None:
    layer, _ = filled(pool.home)
    with open(layer.path / "text"), pytest.raises(PlanarianError) as caught:
        pool_making.destroy(pool, force=True)
    assert caught.value.code == "pool-busy"
    apart = subprocess.Popen(["unshare", "--mount", "sleep", "60"])  # as a sandbox holds it
    try:
        while os.readlink(f"/proc/{apart.pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt"):
            pass
        with pytest.raises(PlanarianError) as caught:
            pool_making.destroy(pool, force=True)
        assert caught.value.code == "pool-busy"
        assert layer.path.is_dir()
        assert len(mounts(pool.path)) == len(loops(pool.file)) == 1
    finally:
        apart.kill()
        apart.wait()
    assert pool_making.destroy(pool, force=True) == (1, 1)


# --- a directory elsewhere


def test_a_directory_of_a_btrfs_serves(home: Path, btrfs: Path) -> None:
    pool = Pool(home)
    pool_making.create_directory(pool, btrfs)
    layer, artefact = filled(home)
    assert layer.path.is_relative_to(btrfs)
    assert pool_status.status(pool).kind == "directory"
    with pytest.raises(ConfigurationError) as caught:
        pool_making.grow(pool, SIZE)
    assert caught.value.code == "pool-kind"
    with pytest.raises(ConfigurationError):
        pool_making.destroy(pool)
    neighbours = set(os.listdir(btrfs))
    assert pool_making.destroy(pool, force=True) == (1, 1)
    assert neighbours - set(os.listdir(btrfs)) == {layer.path.parts[-3]}
    with pytest.raises(BackendUnavailable):
        BtrfsBackend(home).verify(artefact)


def test_a_directory_elsewhere_than_on_btrfs_is_refused(home: Path, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(ConfigurationError) as caught:
            pool_making.create_directory(Pool(home), path)
        assert caught.value.code == "pool-path"
    assert not os.path.lexists(home / "pool")
    assert os.listdir(tmp_path) == ["home"]


def test_a_directory_that_is_gone_or_open_to_others_is_said(home: Path, tmp_path: Path) -> None:
    with loop_btrfs(tmp_path) as mounted:
        pool_making.create_directory(Pool(home), mounted)
        target = Path(os.readlink(home / "pool"))
        target.chmod(0o755)
        assert "chmod 700" in BtrfsBackend(home).probe().remedy
        target.chmod(0o700)
        assert BtrfsBackend(home).probe().available
    found = BtrfsBackend(home).probe()
    assert not found.available
    assert str(target) in found.reason
    assert "mount" in found.remedy


# --- what is wrong


def cut_off(pool: Pool) -> None:
    os.truncate(pool.file, SIZE // 2)


def overwritten(pool: Pool) -> None:
    with open(pool.file, "r+b") as file:
        file.write(bytes(1024 * 1024))


def emptied(pool: Pool) -> None:
    os.truncate(pool.file, 0)


def foreign(pool: Pool) -> None:
    subprocess.run(["mkfs.btrfs", "--quiet", "--force", "--label", "mine", str(pool.file)], check=True)


def in_the_way(pool: Pool) -> None:
    (pool.path / "file").write_text("somebody's")


def something_else_mounted(pool: Pool) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "none", str(pool.path)], check=True)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut_off, "cut off"),
        (overwritten, "holds no btrfs"),
        (emptied, "holds no btrfs"),
        (foreign, "no pool of Planarian's"),
        (in_the_way, "isn't empty"),
        (something_else_mounted, "something else"),
    ],
)
def test_a_damaged_pool_is_told_and_not_touched(pool: Pool, damage: Callable[[Pool], None], words: str) -> None:
    layer, artefact = filled(pool.home)
    unmount(pool)
    damage(pool)
    was = describe(pool.home)
    backend = BtrfsBackend(pool.home)
    found = backend.probe()
    assert not found.available
    assert words in found.reason
    assert found.remedy
    for use in (
        lambda: backend.capture(layer, "sp-2"),
        lambda: backend.stage(artefact, layer),
        lambda: backend.discard("sp-1"),
        lambda: backend.destroy(layer),
        lambda: pool_status.status(pool),
        lambda: pool_making.destroy(pool),
    ):
        with pytest.raises(BackendUnavailable, match=words):
            use()
    assert not backend.unchanged(layer, artefact)
    assert_same(describe(pool.home), was)
    assert loops(pool.file) == []


def test_a_damaged_pool_can_be_given_up(pool: Pool) -> None:
    unmount(pool)
    cut_off(pool)
    pool_making.destroy(pool, force=True)
    assert pool.kind == ""
    pool_making.create_file(pool, SIZE, sparse=True)


def test_a_deleted_pool_file_loses_nothing_while_it_is_mounted(pool: Pool) -> None:
    layer, artefact = filled(pool.home)
    before = describe(layer.path)
    pool.file.unlink()
    backend = BtrfsBackend(pool.home)
    found = backend.probe()
    assert found.available
    assert "deleted" in found.reason
    staged = backend.stage(artefact, layer)
    staged.switch()
    staged.discard()
    assert_same(describe(layer.path), before)
    subprocess.run(["umount", str(pool.path)], check=True)
    with pytest.raises(BackendUnavailable, match="no pool"):
        BtrfsBackend(pool.home).verify(artefact)


def test_a_pool_that_went_read_only_is_said(pool: Pool) -> None:
    layer, artefact = filled(pool.home)
    subprocess.run(["mount", "-o", "remount,ro", str(pool.path)], check=True)
    backend = BtrfsBackend(pool.home)
    backend.verify(artefact)
    with backend.open_tree(artefact) as tree:
        assert tree.entry("text") is not None
    for use in (lambda: backend.capture(layer, "sp-2"), lambda: backend.stage(artefact, layer)):
        with pytest.raises(PlanarianError, match="read-only") as caught:
            use()
        assert "planarian pool status" in caught.value.remedy
    assert not BtrfsBackend(pool.home).probe().available
    assert pool_status.status(pool).read_only
    subprocess.run(["mount", "-o", "remount,rw", str(pool.path)], check=True)
    backend.capture(layer, "sp-2")


def test_without_the_tools_it_is_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BackendUnavailable, match=r"mkfs\.btrfs") as caught:
        pool_making.create_file(Pool(home), SIZE)
    assert "btrfs-progs" in caught.value.remedy


def test_without_loop_devices_it_is_said_and_nothing_remains(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_loop, "_CONTROL", str(home / "no-such-device"))
    with pytest.raises(BackendUnavailable) as caught:
        pool_making.create_file(Pool(home), SIZE, sparse=True)
    assert caught.value.remedy
    assert not (home / "pool.btrfs").exists()


def test_without_a_pool_it_is_said(home: Path) -> None:
    found = BtrfsBackend(home).probe()
    assert not found.available
    assert found.remedy == "planarian pool create"
