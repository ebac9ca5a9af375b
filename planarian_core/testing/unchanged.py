"""The conformance suite of backends that prove a layer unchanged: what must be proven, and what must not."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from planarian_core.interfaces import FilesystemBackend, Layer, ProvesUnchanged
from planarian_core.testing.filesystem import fill

_PUNCH_HOLE = 3


def _write(path: Path, data: bytes, offset: int = 0) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def _same_size_old_times(root: Path) -> None:
    before = os.lstat(root / "text")
    _write(root / "text", b"SOME")
    os.utime(root / "text", ns=(before.st_atime_ns, before.st_mtime_ns))


def _mapped_without_sync(root: Path) -> None:
    with open(root / "big", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[4097] = (mapped[4097] + 1) % 256


def _there_and_back(root: Path) -> None:
    os.rename(root / "text", root / "elsewhere")
    os.rename(root / "elsewhere", root / "text")


def _write_and_write_back(root: Path) -> None:
    content = (root / "text").read_bytes()
    _write(root / "text", b"X")
    _write(root / "text", content)


def _punch_hole(root: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(root / "big", os.O_RDWR)
    try:
        if libc.fallocate(fd, _PUNCH_HOLE, ctypes.c_long(4096), ctypes.c_long(8192)) != 0:
            pytest.skip("no holes here")
    finally:
        os.close(fd)


def _preallocate(root: Path) -> None:
    fd = os.open(root / "big", os.O_RDWR)
    try:
        os.posix_fallocate(fd, 0, 8 * 1024 * 1024)
    finally:
        os.close(fd)


def _replace(root: Path) -> None:
    (root / "new").write_bytes((root / "text").read_bytes())
    shutil.copystat(root / "text", root / "new")
    os.replace(root / "new", root / "text")


def _swap_names(root: Path) -> None:
    for old, new in (("empty", "x"), ("text", "empty"), ("x", "text")):
        os.rename(root / old, root / new)


def _link(root: Path) -> None:
    os.link(root / "big", root / "folder" / "big too")


def _link_and_unlink(root: Path) -> None:
    _link(root)
    os.unlink(root / "folder" / "big too")


def _attribute(root: Path) -> None:
    os.setxattr(root / "text", "user.color", b"red")


def _attribute_gone(root: Path) -> None:
    os.removexattr(root / "folder", "user.overlay.opaque")


CHANGES: dict[str, Callable[[Path], object]] = {
    "written": lambda root: _write(root / "text", b"SOME"),
    "written in the middle": lambda root: _write(root / "big", b"x", 1_000_000),
    "same size, times set back": _same_size_old_times,
    "written and written back": _write_and_write_back,
    "mapped, no msync": _mapped_without_sync,
    "appended": lambda root: _write(root / "text", b"x", 10),
    "truncated": lambda root: os.truncate(root / "big", 4096),
    "made longer": lambda root: os.truncate(root / "big", 1 << 30),
    "hole punched": _punch_hole,
    "preallocated": _preallocate,
    "mode": lambda root: (root / "text").chmod(0o600),
    "mtime": lambda root: os.utime(root / "text", ns=(1, 1)),
    "directory's mode": lambda root: (root / "folder").chmod(0o700),
    "top directory's mode": lambda root: root.chmod(0o700),
    "attribute": _attribute,
    "attribute removed": _attribute_gone,
    "new file": lambda root: (root / "new").write_text(""),
    "new directory": lambda root: (root / "new").mkdir(),
    "new link": lambda root: (root / "new").symlink_to("x"),
    "hard link": _link,
    "hard link made and removed": _link_and_unlink,
    "renamed": lambda root: os.rename(root / "text", root / "renamed"),
    "renamed and back": _there_and_back,
    "names swapped": _swap_names,
    "moved": lambda root: os.rename(root / "text", root / "folder" / "text"),
    "directory moved": lambda root: os.rename(root / "folder", root / "locked folder"),
    "replaced by a copy": _replace,
    "deleted": lambda root: os.unlink(root / "text"),
    "deep down": lambda root: (root / "folder" / "sub" / "deep" / "new").write_text("x"),
    "directory removed": lambda root: (root / "folder" / "hollow").rmdir(),
}
"""Each changes what :func:`fill` made in a way that must not be missed."""


class UnchangedConformance:
    """Beside :class:`planarian_core.testing.filesystem.FilesystemConformance`, whose fixtures it uses."""

    @pytest.fixture
    def proving(self, backend: FilesystemBackend) -> ProvesUnchanged:
        assert isinstance(backend, ProvesUnchanged)
        return backend

    @staticmethod
    def settle() -> None:
        """Where a proof can't be had at once after a change, wait here until it can."""

    def test_nothing_happened(self, backend: FilesystemBackend, proving: ProvesUnchanged, layer: Layer) -> None:
        fill(layer.path)
        artefact = backend.capture(layer, "sp-1")
        self.settle()
        assert proving.unchanged(layer, artefact)
        assert proving.unchanged(layer, artefact)

    def test_looking_is_no_change(self, backend: FilesystemBackend, proving: ProvesUnchanged, layer: Layer) -> None:
        fill(layer.path)
        artefact = backend.capture(layer, "sp-1")
        self.settle()
        for directory, _, names in os.walk(layer.path):
            for name in names:
                with contextlib.suppress(OSError):
                    os.lstat(os.path.join(directory, name))
        with open(layer.path / "text", "r+b"):
            pass
        assert proving.unchanged(layer, artefact)

    @pytest.mark.parametrize("change", CHANGES)
    def test_no_change_is_missed(
        self, backend: FilesystemBackend, proving: ProvesUnchanged, layer: Layer, change: str
    ) -> None:
        fill(layer.path)
        artefact = backend.capture(layer, "sp-1")
        CHANGES[change](layer.path)
        assert not proving.unchanged(layer, artefact)

    @pytest.mark.parametrize("change", CHANGES)
    def test_no_change_after_a_restore_is_missed(
        self, backend: FilesystemBackend, proving: ProvesUnchanged, layer: Layer, change: str
    ) -> None:
        fill(layer.path)
        artefact = backend.capture(layer, "sp-1")
        staged = backend.stage(artefact, layer)
        staged.switch()
        staged.discard()
        self.settle()
        assert proving.unchanged(layer, artefact)
        CHANGES[change](layer.path)
        assert not proving.unchanged(layer, artefact)

    def test_a_write_through_a_descriptor_from_before_is_seen(
        self, backend: FilesystemBackend, proving: ProvesUnchanged, layer: Layer
    ) -> None:
        fill(layer.path)
        with open(layer.path / "big", "r+b", buffering=0) as file:
            artefact = backend.capture(layer, "sp-1")
            self.settle()
            assert proving.unchanged(layer, artefact)
            file.write(b"late")
            assert not proving.unchanged(layer, artefact)

    def test_a_write_through_a_mapping_from_before_is_seen(
        self, backend: FilesystemBackend, proving: ProvesUnchanged, layer: Layer
    ) -> None:
        """Its page was dirty and writable before the capture, and again before a proof."""
        fill(layer.path)
        with open(layer.path / "big", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
            mapped[0] = (mapped[0] + 1) % 256
            artefact = backend.capture(layer, "sp-1")
            self.settle()
            assert proving.unchanged(layer, artefact)
            mapped[0] = (mapped[0] + 1) % 256
            assert not proving.unchanged(layer, artefact)

    def test_of_another_layer_nothing_is_proven(
        self, backend: FilesystemBackend, proving: ProvesUnchanged, layer: Layer
    ) -> None:
        fill(layer.path)
        artefact = backend.capture(layer, "sp-1")
        other = Layer(layer.path.with_name("other"), layer.exclude)
        backend.create(other)
        assert not proving.unchanged(other, artefact)

    def test_of_what_is_gone_nothing_is_proven(
        self, backend: FilesystemBackend, proving: ProvesUnchanged, layer: Layer
    ) -> None:
        artefact = backend.capture(layer, "sp-1")
        backend.discard("sp-1")
        backend.destroy(Layer(layer.path.with_name("never")))
        assert not proving.unchanged(layer, artefact)

    def test_after_a_change_the_older_is_no_proof(
        self, backend: FilesystemBackend, proving: ProvesUnchanged, layer: Layer
    ) -> None:
        fill(layer.path)
        first = backend.capture(layer, "sp-1")
        _write(layer.path / "text", b"SOME")
        second = backend.capture(layer, "sp-2")
        self.settle()
        assert proving.unchanged(layer, second)
        assert not proving.unchanged(layer, first)
