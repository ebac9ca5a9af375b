"""Checks of trees to look at (:class:`planarian_core.file_tree.FileTree`) against what lies on the disk, by lstat."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from planarian_core.file_tree import FileEntry, FileKind, FileTree


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
    directories = [path for path, entry in shown.items() if entry.kind is FileKind.DIRECTORY]
    sealed = [path for path in directories if not os.access(root / path, os.R_OK | os.X_OK)]
    there = {os.path.relpath(os.path.join(at, n), root) for at, ds, fs in os.walk(root) for n in (*ds, *fs)}
    # An ordinary user's oracle can't look into a directory that is closed to its owner.
    shown = {path: entry for path, entry in shown.items() if not any(path.startswith(f"{s}/") for s in sealed)}
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
