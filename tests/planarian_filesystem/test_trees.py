"""Trees to look at: of a plain directory, and what is special to those of the copy store. (The conformance suite has
more of artefacts.)
"""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from planarian_core.directory_tree import DirectoryTree
from planarian_core.errors import RestoreError
from planarian_core.file_tree import FileKind
from planarian_core.testing.filesystem import fill
from planarian_core.testing.trees import assert_shows, walk


def fill_readably(root: Path) -> None:
    """All kinds of files, but for an ordinary user nothing that its owner can't read."""
    fill(root)
    if os.geteuid():
        for path in root.iterdir():
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | stat.S_IRUSR | (stat.S_IXUSR if path.is_dir() else 0))


class TestDirectory:
    def test_shows_all_that_lies_there(self, tmp_path: Path) -> None:
        fill_readably(tmp_path)
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
        os.mknod(tmp_path / "socket", stat.S_IFSOCK | 0o600)  # bind() knows no path as long as this may be
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
        fill_readably(tmp_path)
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
