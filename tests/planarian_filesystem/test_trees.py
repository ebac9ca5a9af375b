"""Trees to look at: of a plain directory, of the copy store, of a btrfs snapshot. One suite, an oracle by lstat."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from planarian_core.directory_tree import DirectoryTree
from planarian_core.errors import RestoreError
from planarian_core.file_tree import FileEntry, FileKind, FileTree
from planarian_core.testing.filesystem import fill


def walk(tree: FileTree, path: str = "") -> Iterator[tuple[str, FileEntry]]:
    """All that a tree holds, by path."""
    for entry in tree.children(path):
        below = f"{path}/{entry.name}" if path else entry.name
        yield below, entry
        if entry.kind is FileKind.DIRECTORY:
            yield from walk(tree, below)


def assert_shows(tree: FileTree, root: Path) -> None:
    """The tree shows what lies in ``root``, by lstat: kind, mode, owner, times, size, target, device, attributes."""
    shown = dict(walk(tree))
    there = {os.path.relpath(os.path.join(at, n), root) for at, ds, fs in os.walk(root) for n in (*ds, *fs)}
    assert shown.keys() == there
    for path, entry in [("", tree.entry("")), *shown.items()]:
        assert entry is not None
        found = os.lstat(root / path)
        assert entry.name == os.path.basename(path)
        assert stat.S_IMODE(found.st_mode) == entry.mode
        assert (found.st_uid, found.st_gid, found.st_mtime_ns) == (entry.uid, entry.gid, entry.mtime_ns)
        assert entry.kind == kind_of(found)
        assert entry.size == (found.st_size if stat.S_ISREG(found.st_mode) else 0)
        assert entry.target == (os.readlink(root / path) if stat.S_ISLNK(found.st_mode) else "")
        names = os.listxattr(root / path, follow_symlinks=False)
        assert entry.xattrs == {name: os.getxattr(root / path, name, follow_symlinks=False) for name in names}
        if entry.kind in (FileKind.CHARACTER, FileKind.BLOCK):
            assert entry.device == found.st_rdev
        assert path == "" or tree.entry(path) == entry
        if entry.kind is FileKind.FILE and found.st_size < 1 << 30 and found.st_mode & 0o400:
            assert b"".join(tree.read(path)) == (root / path).read_bytes()
    assert link_groups(shown) == real_link_groups(root, shown)


def kind_of(found: os.stat_result) -> FileKind:
    kinds = ["file", "directory", "symlink", "fifo", "socket", "character", "block"]
    tests = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK, stat.S_ISFIFO, stat.S_ISSOCK, stat.S_ISCHR, stat.S_ISBLK)
    return FileKind(next(kind for kind, test in zip(kinds, tests, strict=True) if test(found.st_mode)))


def link_groups(shown: dict[str, FileEntry]) -> set[frozenset[str]]:
    groups: dict[str, set[str]] = {}
    for path, entry in shown.items():
        if entry.links and entry.kind is FileKind.FILE:
            groups.setdefault(entry.links, set()).add(path)
    return {frozenset(group) for group in groups.values()}


def real_link_groups(root: Path, paths: dict[str, FileEntry]) -> set[frozenset[str]]:
    groups: dict[int, set[str]] = {}
    for path in paths:
        found = os.lstat(root / path)
        if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
            groups.setdefault(found.st_ino, set()).add(path)
    return {frozenset(group) for group in groups.values()}


class TestDirectory:
    def test_shows_all_that_lies_there(self, tmp_path: Path) -> None:
        fill(tmp_path)
        with DirectoryTree(tmp_path) as tree:
            assert_shows(tree, tmp_path)

    def test_nothing_is_at_a_path_that_is_none(self, tmp_path: Path) -> None:
        (tmp_path / "folder").mkdir()
        (tmp_path / "file").write_text("x")
        (tmp_path / "link").symlink_to("folder")
        with DirectoryTree(tmp_path) as tree:
            for path in ("absent", "absent/below", "file/below", "link/below", "..", "folder/..", "folder/../file", "/",
                         "folder//file", "./file", "a\0b", "x" * 5000):  # fmt: skip
                assert tree.entry(path) is None
                assert tree.children(path) == ()

    def test_a_symlink_is_never_followed(self, tmp_path: Path) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "secret").write_text("secret")
        root = tmp_path / "root"
        root.mkdir()
        (root / "way out").symlink_to(outside)
        (root / "file").symlink_to(outside / "secret")
        with DirectoryTree(root) as tree:
            assert tree.entry("way out/secret") is None
            assert tree.children("way out") == ()
            for path in ("file", "way out/secret", "way out"):
                with pytest.raises(RestoreError):
                    list(tree.read(path))
        (tmp_path / "root link").symlink_to(root)
        with pytest.raises(RestoreError):
            DirectoryTree(tmp_path / "root link")

    def test_reading_what_is_no_file_neither_blocks_nor_connects(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(tmp_path / "socket"))
        server.close()
        with DirectoryTree(tmp_path) as tree:
            for path in ("fifo", "socket", ""):
                with pytest.raises(RestoreError) as caught:
                    list(tree.read(path))
                assert caught.value.code == "tree-no-file"

    def test_deeper_than_a_path_can_be_long(self, tmp_path: Path) -> None:
        fd = os.open(tmp_path, os.O_RDONLY)
        for _ in range(60):
            os.mkdir("d" * 100, dir_fd=fd)
            below = os.open("d" * 100, os.O_RDONLY, dir_fd=fd)
            os.close(fd)
            fd = below
        os.close(os.open("leaf", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        os.close(fd)
        with DirectoryTree(tmp_path) as tree:
            assert tree.entry("/".join(["d" * 100] * 60 + ["leaf"])) is not None

    def test_names_that_come_and_go_are_no_error(self, tmp_path: Path) -> None:
        stop = threading.Event()

        def churn() -> None:
            while not stop.is_set():
                for number in range(20):
                    (tmp_path / f"file{number}").write_text("x")
                for number in range(20):
                    (tmp_path / f"file{number}").unlink()

        (tmp_path / "stays").write_text("x")
        thread = threading.Thread(target=churn)
        thread.start()
        try:
            with DirectoryTree(tmp_path) as tree:
                for _ in range(200):
                    assert "stays" in [entry.name for entry in tree.children("")]
        finally:
            stop.set()
            thread.join()

    def test_no_descriptor_is_left(self, tmp_path: Path) -> None:
        fill(tmp_path)
        before = len(os.listdir("/proc/self/fd"))
        with DirectoryTree(tmp_path) as tree:
            for path, entry in walk(tree):
                tree.children(path)
                tree.entry(f"{path}/nothing")
                if entry.kind is not FileKind.FILE:
                    with pytest.raises(RestoreError):
                        list(tree.read(path))
        assert len(os.listdir("/proc/self/fd")) == before

    def test_a_missing_directory_is_said(self, tmp_path: Path) -> None:
        with pytest.raises(RestoreError):
            DirectoryTree(tmp_path / "absent")
