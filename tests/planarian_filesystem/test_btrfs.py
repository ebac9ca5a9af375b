"""The ``btrfs`` backend: the conformance suites, and what is its own."""

from __future__ import annotations

import codecs
import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from planarian_core.errors import BackendUnavailable, CaptureError, RestoreError
from planarian_core.interfaces import Layer
from planarian_core.testing.btrfs import loop_btrfs
from planarian_core.testing.filesystem import BackendFactory, FilesystemConformance, fill, wreck
from planarian_core.testing.oracle import assert_same, describe
from planarian_core.testing.unchanged import UnchangedConformance
from planarian_filesystem import btrfs_changes, btrfs_ioctl, btrfs_subvolumes
from planarian_filesystem.btrfs import BtrfsBackend

pytestmark = pytest.mark.needs("btrfs")

USER = 61234


class TestConformance(UnchangedConformance, FilesystemConformance):
    @pytest.fixture
    def home(self, home_on_btrfs: Path) -> Path:
        return home_on_btrfs

    @pytest.fixture
    def backend_factory(self) -> BackendFactory:
        return BtrfsBackend


@pytest.fixture
def backend(home_on_btrfs: Path) -> BtrfsBackend:
    return BtrfsBackend(home_on_btrfs)


@pytest.fixture
def layer(backend: BtrfsBackend) -> Layer:
    layer = Layer(backend.place("sb-1"))
    backend.create(layer)
    return layer


@pytest.fixture
def opened(layer: Layer) -> Iterator[int]:
    fd = os.open(layer.path, os.O_RDONLY)
    yield fd
    os.close(fd)


def beside(layer: Layer) -> list[str]:
    return sorted(name for name in os.listdir(layer.path.parent) if name not in (".statepoints", ".origins"))


def origins(layer: Layer) -> list[str]:
    return os.listdir(layer.path.parent / ".origins")


# --- leftovers


@pytest.mark.parametrize("switched", [False, True])
def test_what_a_killed_restore_left_goes_with_the_next_operation(
    backend: BtrfsBackend, layer: Layer, switched: bool
) -> None:
    fill(layer.path)
    artefact = backend.capture(layer, "sp-1")
    before = describe(layer.path)
    for repeat in (
        lambda: backend.capture(layer, "sp-2"),
        lambda: backend.stage(artefact, layer).discard(),
        lambda: backend.forget(layer),
    ):
        staged = backend.stage(artefact, layer)
        if switched:
            staged.switch()
        assert len(beside(layer)) == 2
        repeat()
        assert beside(layer) == ["sb-1"]
        assert_same(describe(layer.path), before)
    assert len(origins(layer)) <= 1
    backend.stage(artefact, layer)
    backend.destroy(layer)
    assert beside(layer) == origins(layer) == []


def test_leftovers_of_another_layer_stay(backend: BtrfsBackend, layer: Layer) -> None:
    artefact = backend.capture(layer, "sp-1")
    other = Layer(layer.path.with_name("sb-1.staged"))
    staged = backend.stage(artefact, other)
    backend.forget(layer)
    staged.switch()
    assert other.path.is_dir()


def test_a_discarded_restore_leaves_nothing(backend: BtrfsBackend, layer: Layer) -> None:
    artefact = backend.capture(layer, "sp-1")
    for _ in range(3):
        staged = backend.stage(artefact, layer)
        staged.switch()
        staged.switch()
        staged.discard()
        staged.discard()
    assert beside(layer) == ["sb-1"]
    assert len(origins(layer)) == 1


def test_changes_that_nobody_can_tell_any_more(backend: BtrfsBackend, layer: Layer) -> None:
    artefact = backend.capture(layer, "sp-1")
    staged = backend.stage(artefact, layer)
    staged.switch()
    staged.discard()
    with pytest.raises(RestoreError) as caught:
        _ = staged.changed
    assert caught.value.code == "restore-changes"


# --- what changed


def test_changes_are_told_after_the_switch_too(backend: BtrfsBackend, layer: Layer) -> None:
    (layer.path / "folder").mkdir()
    for name in ("changed", "same", "deleted", "touched"):
        (layer.path / "folder" / name).write_text("a")
    artefact = backend.capture(layer, "sp-1")
    (layer.path / "folder" / "changed").write_text("b")
    (layer.path / "folder" / "deleted").unlink()
    (layer.path / "new" / "deep").mkdir(parents=True)
    (layer.path / "new" / "deep" / "file").write_text("c")
    os.utime(layer.path / "folder" / "touched", ns=(1, 1))
    expected = ("folder/changed", "folder/deleted", "folder/touched", "new", "new/deep", "new/deep/file")
    ahead = backend.stage(artefact, layer)
    assert ahead.changed == expected
    ahead.discard()
    staged = backend.stage(artefact, layer)
    staged.switch()
    assert staged.changed == expected
    assert staged.changed_count == len(expected)


def test_the_stream_and_the_walk_agree(backend: BtrfsBackend, layer: Layer) -> None:
    fill(layer.path)
    backend.capture(layer, "sp-1")
    wreck(layer.path)
    backend.capture(layer, "sp-2")
    kept = layer.path.parent / ".statepoints"
    fds = [os.open(kept / name, os.O_RDONLY) for name in ("sp-1", "sp-2")]
    for before, after in (fds, reversed(fds)):
        sent, count = btrfs_changes.changes(before, after)
        walked = set(btrfs_changes.walked(before, after))
        assert count == len(sent)
        assert [path for path in walked if not any(_at_or_below(path, told) for told in sent)] == []
        surplus = {path for path in sent if path not in walked and not _linked(path)}
        assert surplus == set()
    for fd in fds:
        os.close(fd)


def _at_or_below(path: str, top: str) -> bool:
    return path == top or path.startswith(f"{top}/")


def _linked(path: str) -> bool:
    """Whether :func:`fill` or :func:`wreck` make several names of it: a name more or less changes the others."""
    return os.path.basename(path) in ("text", "same text", "read-only", "linked", "whiteout")


def test_very_many_changes_are_counted_as_a_least_number(
    backend: BtrfsBackend, layer: Layer, monkeypatch: pytest.MonkeyPatch
) -> None:
    artefact = backend.capture(layer, "sp-1")
    for number in range(1500):
        (layer.path / f"file{number}").write_text("x")
    staged = backend.stage(artefact, layer)
    assert staged.changed_count == 1500
    assert len(staged.changed) == 1000
    monkeypatch.setattr(btrfs_changes, "MOST_COMMANDS", 500)
    staged = backend.stage(artefact, layer)
    assert 100 < staged.changed_count < 1500


# --- proofs


def test_calls_are_no_change_but_what_they_leave_is(backend: BtrfsBackend, layer: Layer) -> None:
    calls = layer.path / "upper" / "run" / "planarian" / "calls"
    calls.mkdir(parents=True)
    artefact = backend.capture(layer, "sp-1")
    for name in ("a", "b"):
        (calls / name).write_text("output")
        (calls / name).unlink()
    assert backend.unchanged(layer, artefact)
    (calls / "left").write_text("output")
    assert not backend.unchanged(layer, artefact)
    (calls / "left").unlink()
    assert backend.unchanged(layer, artefact)
    (calls.parent.parent / "other").write_text("x")
    (calls.parent.parent / "other").unlink()
    assert not backend.unchanged(layer, artefact)


def test_a_file_that_is_linked_into_a_calls_directory_is_no_excuse(backend: BtrfsBackend, layer: Layer) -> None:
    calls = layer.path / "upper" / "run" / "planarian" / "calls"
    calls.mkdir(parents=True)
    (layer.path / "upper" / "file").write_text("one")
    os.link(layer.path / "upper" / "file", calls / "linked")
    artefact = backend.capture(layer, "sp-1")
    (layer.path / "upper" / "file").write_text("two")
    assert not backend.unchanged(layer, artefact)


def test_a_directory_moved_out_of_the_calls_directory_is_a_change(backend: BtrfsBackend, layer: Layer) -> None:
    calls = layer.path / "upper" / "run" / "planarian" / "calls"
    (calls / "folder").mkdir(parents=True)
    artefact = backend.capture(layer, "sp-1")
    os.rename(calls / "folder", layer.path / "upper" / "folder")
    assert not backend.unchanged(layer, artefact)


def test_changes_of_what_is_excluded_are_none(backend: BtrfsBackend) -> None:
    layer = Layer(backend.place("sb-2"), ("work/work",))
    backend.create(layer)
    (layer.path / "work" / "work" / "deep").mkdir(parents=True)
    artefact = backend.capture(layer, "sp-1")
    (layer.path / "work" / "work" / "deep" / "file").write_text("x")
    assert backend.unchanged(layer, artefact)
    (layer.path / "work" / "file").write_text("x")
    assert not backend.unchanged(layer, artefact)


def test_reading_is_no_change_where_it_is_noted(tmp_path: Path) -> None:
    """An overlay notes the time of access in its layer whatever the pool's mount says."""
    with loop_btrfs(tmp_path, options="strictatime") as mounted:
        backend = BtrfsBackend(mounted)
        layer = Layer(backend.place("sb-1"))
        backend.create(layer)
        fill(layer.path)
        artefact = backend.capture(layer, "sp-1")
        time.sleep(0.05)
        before = os.lstat(layer.path / "text").st_atime_ns
        for path in ("text", "big", "sticky/same text"):
            (layer.path / path).read_bytes()
        os.listdir(layer.path)
        os.listdir(layer.path / "folder" / "sub")
        os.sync()
        assert os.lstat(layer.path / "text").st_atime_ns != before
        assert backend.unchanged(layer, artefact)
        with open(layer.path / "big", "r+b") as file:
            file.write(file.read(4096))
        assert not backend.unchanged(layer, artefact)


@pytest.mark.parametrize("kind", ["not copied on write", "preallocated"])
def test_a_write_in_place_is_none_while_a_snapshot_shares_it(backend: BtrfsBackend, layer: Layer, kind: str) -> None:
    path = layer.path / "file"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    if kind == "preallocated":
        os.posix_fallocate(fd, 0, 1 << 20)
    else:
        fcntl.ioctl(fd, 0x40086602, bytearray((0x00800000).to_bytes(8, "little")))  # FS_IOC_SETFLAGS, FS_NOCOW_FL
        os.write(fd, os.urandom(1 << 20))
    os.fsync(fd)
    artefact = backend.capture(layer, "sp-1")
    for number in range(2):
        assert backend.unchanged(layer, artefact)
        before = path.read_bytes()
        os.pwrite(fd, b"changed%d" % number, 4096)
        os.utime(fd, ns=(1, os.fstat(fd).st_mtime_ns))
        assert not backend.unchanged(layer, artefact)
        with backend.open_tree(artefact) as tree:
            assert b"".join(tree.read("file")) == before
        artefact = backend.capture(layer, f"sp-2-{number}")
    os.close(fd)


def test_of_a_file_in_very_many_pieces_nothing_is_proven_by_a_look(tmp_path: Path) -> None:
    with loop_btrfs(tmp_path, options="strictatime") as mounted:
        backend = BtrfsBackend(mounted)
        layer = Layer(backend.place("sb-1"))
        backend.create(layer)
        with open(layer.path / "pieces", "wb") as file:
            for number in range(3000):
                file.seek(number * 8192)
                file.write(b"x" * 4096)
        artefact = backend.capture(layer, "sp-1")
        assert backend.unchanged(layer, artefact)
        time.sleep(0.05)
        (layer.path / "pieces").read_bytes()
        assert not backend.unchanged(layer, artefact)


def test_an_exchanged_snapshot_is_no_proof(backend: BtrfsBackend, layer: Layer) -> None:
    artefact = backend.capture(layer, "sp-1")
    backend.discard("sp-1")
    (layer.path / "new").write_text("x")
    backend.capture(layer, "sp-1")
    assert not backend.unchanged(layer, artefact)
    with pytest.raises(RestoreError) as caught:
        backend.verify(artefact)
    assert caught.value.code == "restore-damaged"


def test_a_snapshot_made_writable_is_refused(backend: BtrfsBackend, layer: Layer) -> None:
    artefact = backend.capture(layer, "sp-1")
    fd = os.open(layer.path.parent / ".statepoints" / "sp-1", os.O_RDONLY)
    btrfs_ioctl.set_read_only(fd, False)
    os.close(fd)
    assert not backend.unchanged(layer, artefact)
    with pytest.raises(RestoreError):
        backend.stage(artefact, layer)


# --- nested subvolumes


def nest(parent: Path, name: str) -> Path:
    fd = os.open(parent, os.O_RDONLY)
    btrfs_ioctl.create(fd, name)
    os.close(fd)
    return parent / name


def test_nested_subvolumes_are_named_and_hinder_nothing(backend: BtrfsBackend, layer: Layer) -> None:
    (layer.path / "folder").mkdir()
    inner = nest(layer.path / "folder", "inner")
    (inner / "file").write_text("not captured")
    innermost = nest(inner, "innermost")
    (innermost / "file").write_text("x")
    nest(layer.path, "top")
    artefact = backend.capture(layer, "sp-1")
    assert sorted(path for path, _ in artefact.details["gaps"]) == ["folder/inner", "top"]
    assert not backend.unchanged(layer, artefact)
    staged = backend.stage(artefact, layer)
    staged.switch()
    staged.discard()
    assert beside(layer) == ["sb-1"]
    assert os.listdir(layer.path / "folder" / "inner") == []
    nest(layer.path / "folder", "another")
    backend.destroy(layer)
    assert beside(layer) == []


# --- what goes wrong


def test_a_layer_elsewhere_is_refused(backend: BtrfsBackend, tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable):
        backend.create(Layer(tmp_path / "layer"))
    with pytest.raises(BackendUnavailable):
        backend.capture(Layer(tmp_path / "layer"), "sp-1")
    backend.destroy(Layer(tmp_path / "layer"))


def test_a_symlink_in_a_layers_place_is_not_followed(backend: BtrfsBackend, layer: Layer) -> None:
    artefact = backend.capture(layer, "sp-1")
    alias = Layer(layer.path.with_name("alias"))
    alias.path.symlink_to(layer.path)
    with pytest.raises(CaptureError):
        backend.capture(alias, "sp-2")
    assert not backend.unchanged(alias, artefact)


@pytest.mark.parametrize("reference", ["../sb-1", ".", "", "sp-1/..", ".origins", "sp-1\0"])
def test_hostile_references_lead_nowhere(backend: BtrfsBackend, layer: Layer, reference: str) -> None:
    artefact = backend.capture(layer, "sp-1")
    hostile = type(artefact)(artefact.domain, artefact.backend, reference, details=artefact.details)
    for use in (backend.verify, lambda a: backend.stage(a, layer)):
        with pytest.raises(RestoreError):
            use(hostile)


@pytest.mark.parametrize("lineage", [None, 7, "x", [[1]], [["a", 2]], [[1, "x"], 3]])
def test_hostile_details_give_no_identity(backend: BtrfsBackend, layer: Layer, lineage: object) -> None:
    (layer.path / "file").write_text("x")
    artefact = backend.capture(layer, "sp-1")
    details = {**artefact.details, "lineage": lineage}
    with backend.open_tree(type(artefact)(artefact.domain, "btrfs", "sp-1", details=details)) as tree:
        entry = tree.entry("file")
    assert entry is not None
    assert entry.identity == ""


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, "no-space"), (errno.EROFS, "files")])
def test_a_full_or_read_only_pool_loses_nothing(
    backend: BtrfsBackend, layer: Layer, monkeypatch: pytest.MonkeyPatch, number: int, code: str
) -> None:
    """The kernel's refusals are made up: metadata can't be filled at will."""
    fill(layer.path)
    artefact = backend.capture(layer, "sp-1")
    before = describe(layer.path)
    real = fcntl.ioctl

    def refuse(fd: int, request: int, *arguments: object) -> object:
        if request & 0xFF in (23, 24):  # snapshots and subvolumes
            raise OSError(number, os.strerror(number))
        return real(fd, request, *arguments)  # type: ignore[call-overload]  # any of them

    monkeypatch.setattr("fcntl.ioctl", refuse)
    with pytest.raises(CaptureError) as captured:
        backend.capture(layer, "sp-2")
    with pytest.raises(RestoreError) as staged:
        backend.stage(artefact, layer)
    assert (captured.value.code, staged.value.code) == (f"capture-{code}", f"restore-{code}")
    assert "planarian pool" in captured.value.remedy
    assert "planarian pool" in staged.value.remedy
    monkeypatch.undo()
    assert beside(layer) == ["sb-1"]
    assert os.listdir(layer.path.parent / ".statepoints") == ["sp-1"]
    assert_same(describe(layer.path), before)
    backend.verify(artefact)


def write_without_end(path: Path) -> None:
    with open(path, "wb") as file:
        while True:
            file.write(os.urandom(1024 * 1024))
            os.fsync(file.fileno())


def test_a_pool_that_is_full_of_data(tmp_path: Path) -> None:
    with loop_btrfs(tmp_path, 256 * 1024**2) as mounted:
        backend = BtrfsBackend(mounted)
        layer = Layer(backend.place("sb-1"))
        backend.create(layer)
        (layer.path / "kept").write_text("kept")
        first = backend.capture(layer, "sp-1")
        with pytest.raises(OSError, match="No space"):
            write_without_end(layer.path / "big")
        try:
            backend.capture(layer, "sp-2")
        except CaptureError as error:
            assert error.code == "capture-no-space"  # noqa: PT017  # both ends are fine
        staged = backend.stage(first, layer)
        staged.switch()
        staged.discard()
        assert os.listdir(layer.path) == ["kept"]
        backend.discard("sp-2")
        backend.verify(first)


# --- an ordinary user


def as_user(action: Callable[[], None]) -> None:
    """Run something in a child that is an ordinary user; its failure is ours."""
    codecs.lookup("ascii")  # the child may not be able to read what the interpreter has not loaded yet
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.chdir("/")  # where we are may be closed to that user
            os.setgroups([])
            os.setgid(USER)
            os.setuid(USER)
            action()
            status = 0
        except BaseException as error:
            os.write(writing, repr(error).encode())
        finally:
            os._exit(status)
    os.close(writing)
    with open(reading, "rb") as file:
        said = file.read().decode()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, said


@pytest.fixture
def users_home(tmp_path: Path) -> Iterator[Path]:
    """The home of an ordinary user on a btrfs that lets users remove subvolumes."""
    with loop_btrfs(tmp_path, options="user_subvol_rm_allowed") as mounted:
        home = mounted / "home"
        home.mkdir(mode=0o700)
        os.chown(home, USER, USER)
        for folder in (*reversed(tmp_path.parents[:-2]), tmp_path, mounted):
            folder.chmod(folder.stat().st_mode | stat.S_IXOTH)
        yield home


def test_an_ordinary_user_where_the_mount_allows_it(users_home: Path) -> None:
    def work() -> None:
        backend = BtrfsBackend(users_home)
        found = backend.probe()
        assert found.available, found.reason
        layer = Layer(backend.place("sb-1"))
        backend.create(layer)
        fill(layer.path)
        before = describe(layer.path)
        artefact = backend.capture(layer, "sp-1")
        assert backend.unchanged(layer, artefact)
        wreck(layer.path)
        assert not backend.unchanged(layer, artefact)
        inner = nest(layer.path / "extra", "inner")
        (inner / "file").write_text("x")
        nest(inner, "innermost")
        assert backend.capture(layer, "sp-2").details["gaps"][0][0] == "extra/inner"
        staged = backend.stage(artefact, layer)
        staged.switch()
        assert "text" in staged.changed
        staged.discard()
        assert_same(describe(layer.path), before)
        with backend.open_tree(artefact) as tree:
            entry = tree.entry("text")
            assert entry is not None
            assert entry.identity == ""
        backend.discard("sp-1")
        backend.discard("sp-2")
        backend.destroy(layer)
        assert beside(layer) == []

    as_user(work)


def test_an_ordinary_user_elsewhere_is_told_why_not(btrfs: Path, home_on_btrfs: Path) -> None:
    os.chown(home_on_btrfs, USER, USER)
    for folder in (*reversed(btrfs.parents[:-2]), btrfs):
        folder.chmod(folder.stat().st_mode | stat.S_IXOTH)

    def work() -> None:
        found = BtrfsBackend(home_on_btrfs).probe()
        assert not found.available
        assert "user_subvol_rm_allowed" in found.remedy

    as_user(work)
    assert [name for name in os.listdir(home_on_btrfs / "pool" / "layers") if name.startswith(".trial")] == []


# --- system calls


def test_searching_many_inodes(opened: int, layer: Layer) -> None:
    for number in range(3000):
        (layer.path / f"file{number}").write_text("x" * (number % 50))
    os.sync()
    found = {inode.number for inode in btrfs_ioctl.search(opened, 256, 2**63)}
    assert found == {256, *(entry.inode() for entry in os.scandir(layer.path))}


def test_many_nested_subvolumes_are_listed(backend: BtrfsBackend, opened: int, layer: Layer) -> None:
    for number in range(300):
        nest(layer.path, f"nested{number}")
    assert len(btrfs_ioctl.subvolumes_below(opened)) == 300
    gaps = backend.capture(layer, "sp-1").details["gaps"]
    assert len(gaps) == 21
    assert "280 more" in gaps[-1][1]
    base = os.open(layer.path.parent, os.O_RDONLY)
    btrfs_subvolumes.remove(base, layer.path.name)
    btrfs_subvolumes.remove(base, layer.path.name)
    os.close(base)
    assert not layer.path.exists()
