"""Writing where somebody else may change every name; and single paths brought back from a statepoint, on fakes."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from planarian_core import Planarian
from planarian_core.directory_tree import DirectoryTree
from planarian_core.errors import ConfigurationError, RestoreError, SandboxError
from planarian_core.file_tree import FileEntry, FileKind
from planarian_core.sandbox import Sandbox
from planarian_core.testing.oracle import assert_same, describe
from planarian_core.writing import Writer

MARK = ".planarian-mark"

# --- the writer ---


@pytest.fixture
def source(tmp_path: Path) -> Iterator[DirectoryTree]:
    """One of each kind."""
    root = tmp_path / "source"
    root.mkdir()
    (root / "file").write_text("content")
    (root / "file").chmod(0o640)
    os.utime(root / "file", ns=(7, 1_000_000_007))
    os.setxattr(root / "file", "user.note", b"1")
    with open(root / "sparse", "wb") as file:
        file.seek(1 << 34)
        file.write(b"end")
    (root / "link").symlink_to("/etc/passwd")
    os.mkfifo(root / "fifo", 0o600)
    (root / "directory").mkdir(mode=0o750)
    with DirectoryTree(root) as tree:
        yield tree


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def writer(root: Path) -> Iterator[Writer]:
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    yield Writer(fd, MARK)
    os.close(fd)


def _entry(tree: DirectoryTree, path: str) -> FileEntry:
    entry = tree.entry(path)
    assert entry is not None
    return entry


@pytest.mark.parametrize("name", ["file", "sparse", "link", "fifo"])
@pytest.mark.parametrize("there", ["nothing", "file", "link", "directory", "full directory"])
def test_what_is_put_is_exact_whatever_was_there(
    source: DirectoryTree, writer: Writer, root: Path, tmp_path: Path, name: str, there: str
) -> None:
    (root / "sub").mkdir()
    target = root / "sub" / name
    if there == "file":
        target.write_text("other")
    elif there == "link":
        target.symlink_to(tmp_path / "source" / "directory")
    elif there.endswith("directory"):
        target.mkdir()
        if there.startswith("full"):
            (target / "in").write_text("x")
    writer.put(f"sub/{name}", _entry(source, name), source, source=name)
    assert_same({b"x": describe(tmp_path / "source")[name.encode()]}, {b"x": describe(root)[f"sub/{name}".encode()]})
    assert os.listdir(root / "sub") == [name]


def test_a_hard_link_and_one_onto_itself(source: DirectoryTree, writer: Writer, root: Path) -> None:
    writer.put("a", _entry(source, "file"), source, source="file")
    writer.link("b", "a")
    writer.link("b", "a")
    assert os.stat(root / "a").st_nlink == 2
    assert sorted(os.listdir(root)) == ["a", "b"]


def test_a_link_to_a_symlink_does_not_follow_it(source: DirectoryTree, writer: Writer, root: Path) -> None:
    (root / "a").symlink_to("/etc/passwd")
    writer.link("b", "a")
    assert (root / "b").is_symlink()


def test_a_directory_is_made_and_mended(source: DirectoryTree, writer: Writer, root: Path) -> None:
    (root / "directory").symlink_to("/etc")
    writer.make_directory("directory")
    writer.make_directory("directory")
    writer.mend("directory", _entry(source, "directory"))
    assert stat.S_IMODE(os.lstat(root / "directory").st_mode) == 0o750
    with pytest.raises(OSError, match="took its place"):
        writer.mend("directory", _entry(source, "file"))


def test_no_step_follows_a_symlink(source: DirectoryTree, writer: Writer, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("precious")
    before = describe(outside)
    (root / "d").symlink_to(outside)
    entry = _entry(source, "file")
    attempts: list[Callable[[], None]] = [
        lambda: writer.put("d/file", entry, source, source="file"),
        lambda: writer.make_directory("d/new"),
        lambda: writer.mend("d/file", entry),
        lambda: writer.link("d/file2", "d/file"),
        lambda: writer.put("../outside/file", entry, source, source="file"),
        lambda: writer.put("/etc/new", entry, source, source="file"),
    ]
    for attempt in attempts:
        with pytest.raises(OSError) as caught:  # noqa: PT011  # which one is checked below
            attempt()
        assert caught.value.errno in (errno.ELOOP, errno.ENOTDIR, errno.EINVAL)
    writer.remove("d/file", whole=True)
    writer.sweep("d/file")
    assert_same(describe(outside), before)


def test_removal_takes_links_not_what_they_lead_to(writer: Writer, root: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("x")
    (root / "d" / "e").mkdir(parents=True)
    (root / "d" / "link").symlink_to(tmp_path / "outside")
    (root / "d" / "e" / "f").write_text("x")
    with pytest.raises(OSError, match="not empty"):
        writer.remove("d", whole=False)
    writer.remove("d", whole=True)
    writer.remove("d", whole=True)
    assert os.listdir(root) == []
    assert (tmp_path / "outside" / "file").exists()


def test_removal_of_directories_deeper_than_descriptors_and_recursion_go(writer: Writer, root: Path) -> None:
    """Of a path that is longer than any that the kernel takes."""
    here = os.open(root, os.O_PATH)
    for _ in range(3000):
        os.mkdir("deep", dir_fd=here)
        below = os.open("deep", os.O_PATH, dir_fd=here)
        os.close(here)
        here = below
    os.symlink("/etc", "link", dir_fd=here)
    os.close(here)
    writer.remove("deep", whole=True)
    assert not os.path.lexists(root / "deep")


def test_what_a_killed_process_left_is_swept_or_overwritten(source: DirectoryTree, writer: Writer, root: Path) -> None:
    (root / MARK).symlink_to("/etc/passwd")
    writer.put("file", _entry(source, "file"), source)
    assert sorted(os.listdir(root)) == ["file"]
    (root / MARK).mkdir()
    writer.sweep("file")
    assert sorted(os.listdir(root)) == ["file"]


def test_a_reader_sees_the_old_file_or_the_new_one(
    source: DirectoryTree, writer: Writer, root: Path, tmp_path: Path
) -> None:
    long = "x" * 300_000
    (root / "file").write_text("old")
    (tmp_path / "source" / "file").write_text(long)
    seen: set[int] = set()
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            seen.add(len((root / "file").read_text()))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(30):
        writer.put("file", _entry(source, "file"), source)
    stop.set()
    reader.join()
    assert seen <= {3, len(long)}


def test_attributes_that_are_not_managed_are_left_alone(source: DirectoryTree, root: Path) -> None:
    (root / "directory").mkdir()
    os.setxattr(root / "directory", "user.keep", b"1")
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    Writer(fd, MARK, manages=lambda name: name != "user.keep").mend("directory", _entry(source, "directory"))
    assert os.listxattr(root / "directory") == ["user.keep"]
    Writer(fd, MARK).mend("directory", _entry(source, "directory"))
    assert os.listxattr(root / "directory") == []
    os.close(fd)


@pytest.mark.needs("root")
def test_a_swapping_sandbox_gets_nothing_written_outside(
    source: DirectoryTree, writer: Writer, root: Path, tmp_path: Path
) -> None:
    """A directory becomes a symlink to the outside and back, as fast as it can, while files are written in it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("precious")
    before = describe(outside)
    (root / "real").mkdir()
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            os.symlink(outside, root / "next")
            os.rename(root / "real", root / "away")
            os.rename(root / "next", root / "real")
            os.unlink(root / "real")
            os.rename(root / "away", root / "real")

    swapper = threading.Thread(target=swap)
    swapper.start()
    entry = replace(_entry(source, "file"), uid=1234, gid=1234, mode=0o777)
    refused = written = 0
    steps: list[Callable[[], None]] = [
        lambda: writer.put("real/file", entry, source, source="file"),
        lambda: writer.mend("real/file", entry),
        lambda: writer.remove("real/file", whole=True),
        lambda: writer.make_directory("real/directory"),
    ]
    for number in range(8000):
        try:
            steps[number % len(steps)]()
            written += 1
        except OSError:
            refused += 1
    stop.set()
    swapper.join()
    assert refused
    assert written
    assert_same(describe(outside), before)


# --- paths of a sandbox ---


@pytest.fixture
def sandbox(fake_planarian: Planarian, workspace: Path) -> Sandbox:
    return fake_planarian.create_sandbox(workspace)


def _layer(sandbox: Sandbox) -> Path:
    return Path(sandbox.record.spec.layer)


def test_a_file_a_directory_and_what_was_not_there(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    sandbox.run("mkdir -p d/e; echo 1 > d/e/f; echo 1 > d/g; echo 1 > a; echo 1 > b; ln -s a l")
    point = fake_planarian.snapshot(sandbox, name="one")
    before = describe(_layer(sandbox))
    sandbox.run("echo 2 > a; echo 2 > b; rm -r d/e; echo 2 > d/g; rm l; mkdir l; touch l/x d/new other")
    done = fake_planarian.restore_paths(sandbox, "one", ["a", "d", "l", "other"])
    after = describe(_layer(sandbox))
    kept = {path for path in before if path not in (b".", b"b")}
    assert_same({p: after[p] for p in kept}, {p: before[p] for p in kept})
    assert (_layer(sandbox) / "b").read_text() == "2\n", "the rest is not touched"
    assert b"other" not in after
    assert {"a", "d/e", "d/e/f", "d/g", "l"} <= set(done.restored)
    assert set(done.removed) == {"d/new", "l/x", "other"}
    assert done.statepoint.id == point.id
    assert done.safety_id
    assert f"`a`, `d`, `l`, `other` of sandbox {sandbox.id}" in done.to_markdown()
    fake_planarian.rollback(sandbox, done.safety_id)
    assert (_layer(sandbox) / "a").read_text() == "2\n", "it can be undone"


def test_nothing_to_do_takes_no_statepoint(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    sandbox.run("echo 1 > a")
    fake_planarian.snapshot(sandbox, name="one")
    done = fake_planarian.restore_paths(sandbox, "one", ["a"])
    assert (done.restored, done.removed, done.safety_id) == ((), (), None)
    assert "nothing was changed" in done.to_markdown()
    assert len(fake_planarian.registry.statepoints(sandbox.id)) == 1


def test_without_safety(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    sandbox.run("echo 1 > a")
    fake_planarian.snapshot(sandbox, name="one")
    sandbox.run("echo 2 > a")
    assert fake_planarian.restore_paths(sandbox, "one", ["a"], safety=False).safety_id is None
    assert sandbox.run("cat a").stdout == "1\n"


def test_directories_above_come_back_too(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    sandbox.run("mkdir -p d/e; chmod 750 d; echo 1 > d/e/f; echo 1 > d/g")
    fake_planarian.snapshot(sandbox, name="one")
    sandbox.run("rm -r d")
    fake_planarian.restore_paths(sandbox, "one", ["d/e/f"])
    assert (_layer(sandbox) / "d" / "e" / "f").read_text() == "1\n"
    assert stat.S_IMODE((_layer(sandbox) / "d").stat().st_mode) == 0o750
    assert not (_layer(sandbox) / "d" / "g").exists()


def test_what_stands_in_the_way_is_said(fake_planarian: Planarian, sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.run("mkdir d; echo 1 > d/f")
    fake_planarian.snapshot(sandbox, name="one")
    (tmp_path / "outside").mkdir()
    sandbox.run(["sh", "-c", f"rm -r d; ln -s {tmp_path}/outside d"])
    with pytest.raises(ConfigurationError, match="no directory now"):
        fake_planarian.restore_paths(sandbox, "one", ["d/f"])
    assert list((tmp_path / "outside").iterdir()) == []
    fake_planarian.restore_paths(sandbox, "one", ["d"])
    assert (_layer(sandbox) / "d" / "f").read_text() == "1\n"


@pytest.mark.parametrize(("path", "why"), [("never", "no never"), ("../x", "outside"), ("l/f", "symbolic link")])
def test_paths_that_mean_nothing(fake_planarian: Planarian, sandbox: Sandbox, path: str, why: str) -> None:
    sandbox.run("mkdir d; touch d/f; ln -s d l")
    fake_planarian.snapshot(sandbox, name="one")
    with pytest.raises(ConfigurationError, match=why):
        fake_planarian.restore_paths(sandbox, "one", [path])
    with pytest.raises(ConfigurationError, match="no path"):
        fake_planarian.restore_paths(sandbox, "one", [])


def test_a_stopped_sandbox_says_how_it_comes_back(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    sandbox.run("echo 1 > a")
    fake_planarian.snapshot(sandbox, name="one")
    sandbox.stop()
    with pytest.raises(SandboxError) as caught:
        fake_planarian.restore_paths(sandbox, "one", ["a"])
    assert "planarian attach" in caught.value.remedy


def test_a_missing_artefact_is_found_before_anything_is_touched(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    sandbox.run("echo 1 > a")
    point = fake_planarian.snapshot(sandbox, name="one")
    sandbox.run("echo 2 > a")
    shutil.rmtree(fake_planarian.home / "fake-files" / point.id)
    with pytest.raises(RestoreError):
        fake_planarian.restore_paths(sandbox, "one", ["a"])
    assert sandbox.run("cat a").stdout == "2\n"
    assert not fake_planarian.registry.operations()


@pytest.mark.parametrize("fault", ["restore.begun", "restore.safe", "restore.half", "restore.written"])
def test_a_full_disk_gives_the_present_state_back(
    fake_planarian: Planarian, sandbox: Sandbox, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox.run("echo 1 > a; echo 1 > b; ln b c")
    fake_planarian.snapshot(sandbox, name="one")
    sandbox.run("echo 2 > a; rm b c; mkdir d")
    before = describe(_layer(sandbox))
    monkeypatch.setenv("PLANARIAN_FAULT", f"{fault}=fail")
    failing = {"restore.half": 1}
    if fault == "restore.half":  # it fails once, as long as the disk is full
        from planarian_core import tree_changes

        def reach(point: str) -> None:
            failing[point] = failing.get(point, 0) - 1
            if failing[point] == 0:
                raise OSError(errno.ENOSPC, "full")

        monkeypatch.delenv("PLANARIAN_FAULT")
        monkeypatch.setattr(tree_changes, "reach", reach)
    with pytest.raises((RestoreError, OSError)) as caught:
        fake_planarian.restore_paths(sandbox, "one", ["a", "b", "c", "d"])
    monkeypatch.undo()
    if isinstance(caught.value, RestoreError):
        assert "as they were before" in caught.value.state
        assert "space" in caught.value.remedy
    after = describe(_layer(sandbox))
    before.pop(b".")
    after.pop(b".")
    assert_same(after, before)
    assert not fake_planarian.registry.operations()


def test_devices_and_sockets_are_left_out_by_name() -> None:
    from planarian_core.writing import WRITABLE

    assert {FileKind.CHARACTER, FileKind.BLOCK, FileKind.SOCKET}.isdisjoint(WRITABLE)
