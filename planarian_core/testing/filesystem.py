"""The conformance suite of filesystem backends: subclass :class:`FilesystemConformance` and give it your backend."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from planarian_core.errors import RestoreError
from planarian_core.file_tree import FileKind
from planarian_core.interfaces import (
    FilesystemBackend,
    Layer,
    OpensTrees,
    PlacesLayers,
    Prehashing,
)
from planarian_core.model import Artefact, Domain
from planarian_core.testing.oracle import assert_same, describe
from planarian_core.testing.trees import assert_shows, walk

BackendFactory = Callable[[Path], FilesystemBackend]
OLD = 1_000_000_000_123_456_789


class FilesystemConformance:
    """What every filesystem backend promises. A subclass supplies the fixture ``backend_factory`` (home -> backend)
    and, where the backend needs a special place, its own ``home``. Layers are made where the backend places them, else
    in ``home/layers``.
    """

    @pytest.fixture
    def backend_factory(self) -> BackendFactory:
        raise NotImplementedError("a subclass supplies this fixture")

    @pytest.fixture
    def home(self, tmp_path: Path) -> Path:
        """The Planarian home of one test."""
        home = tmp_path / "home"
        home.mkdir()
        return home

    @pytest.fixture
    def backend(self, backend_factory: BackendFactory, home: Path) -> FilesystemBackend:
        (home / "layers").mkdir(exist_ok=True)
        backend = backend_factory(home)
        assert backend.probe().available, backend.probe().reason
        return backend

    @pytest.fixture
    def layer(self, backend: FilesystemBackend, home: Path) -> Layer:
        """An empty layer."""
        layer = self.layer_at(backend, home, "one")
        backend.create(layer)
        return layer

    @staticmethod
    def layer_at(backend: FilesystemBackend, home: Path, name: str, exclude: tuple[str, ...] = ()) -> Layer:
        """The layer of the sandbox ``name``, which needn't be there."""
        path = backend.place(name) if isinstance(backend, PlacesLayers) else home / "layers" / name
        return Layer(path, exclude)

    @staticmethod
    def restore(backend: FilesystemBackend, artefact: object, layer: Layer) -> int:
        """Stage and switch; returns the number of changes."""
        staged = backend.stage(artefact, layer)  # type: ignore[arg-type]  # an Artefact, told as object to subclasses
        staged.switch()
        count = staged.changed_count
        staged.discard()
        return count

    # --- life cycle

    def test_create_makes_an_empty_directory_once(self, backend: FilesystemBackend, layer: Layer) -> None:
        assert list(layer.path.iterdir()) == []
        with pytest.raises(FileExistsError):
            backend.create(layer)

    def test_destroy_removes_the_layer_and_may_be_repeated(self, backend: FilesystemBackend, layer: Layer) -> None:
        fill(layer.path)
        backend.capture(layer, "sp-1")
        backend.destroy(layer)
        backend.destroy(layer)
        assert not os.path.lexists(layer.path)

    def test_destroy_leaves_artefacts(self, backend: FilesystemBackend, layer: Layer, home: Path) -> None:
        fill(layer.path)
        before = describe(layer.path)
        artefact = backend.capture(layer, "sp-1")
        backend.destroy(layer)
        other = self.layer_at(backend, home, "two")
        self.restore(backend, artefact, other)
        assert_same(describe(other.path), before)

    # --- captures

    def test_artefact_names_its_backend(self, backend: FilesystemBackend, layer: Layer) -> None:
        artefact = backend.capture(layer, "sp-1")
        assert artefact.domain is Domain.FILES
        assert artefact.backend == backend.name
        assert artefact.reference

    def test_capture_leaves_the_layer_alone(self, backend: FilesystemBackend, layer: Layer) -> None:
        fill(layer.path)
        before = describe(layer.path)
        backend.capture(layer, "sp-1")
        assert_same(describe(layer.path), before)

    def test_prepare_may_come_first(self, backend: FilesystemBackend, layer: Layer) -> None:
        if not isinstance(backend, Prehashing):
            pytest.skip("does nothing ahead")
        fill(layer.path)
        backend.prepare(layer)
        (layer.path / "late").write_text("written after prepare")
        before = describe(layer.path)
        artefact = backend.capture(layer, "sp-1")
        wreck(layer.path)
        self.restore(backend, artefact, layer)
        assert_same(describe(layer.path), before)

    # --- exactness

    def test_restore_is_exact(self, backend: FilesystemBackend, layer: Layer) -> None:
        fill(layer.path)
        before = describe(layer.path)
        artefact = backend.capture(layer, "sp-1")
        wreck(layer.path)
        self.restore(backend, artefact, layer)
        assert_same(describe(layer.path), before)

    def test_restore_of_an_emptied_layer_is_exact(self, backend: FilesystemBackend, layer: Layer) -> None:
        fill(layer.path)
        before = describe(layer.path)
        artefact = backend.capture(layer, "sp-1")
        for child in list(layer.path.iterdir()):
            if child.is_dir() and not child.is_symlink():
                child.chmod(0o700)
                shutil.rmtree(child)
            else:
                child.unlink()
        self.restore(backend, artefact, layer)
        assert_same(describe(layer.path), before)

    def test_any_version_can_be_restored_in_any_order(self, backend: FilesystemBackend, layer: Layer) -> None:
        versions = []
        for number in range(4):
            (layer.path / "kept").write_text("always the same")
            (layer.path / f"file{number}").write_text("x" * number)
            (layer.path / "file0").write_text(f"version {number}")
            versions.append((describe(layer.path), backend.capture(layer, f"sp-{number}")))
        for number in (2, 0, 3, 1, 0, 3):
            description, artefact = versions[number]
            self.restore(backend, artefact, layer)
            assert_same(describe(layer.path), description)

    def test_a_captured_restore_is_the_same_again(self, backend: FilesystemBackend, layer: Layer) -> None:
        fill(layer.path)
        before = describe(layer.path)
        artefact = backend.capture(layer, "sp-1")
        wreck(layer.path)
        self.restore(backend, artefact, layer)
        again = backend.capture(layer, "sp-2")
        wreck(layer.path)
        self.restore(backend, again, layer)
        assert_same(describe(layer.path), before)

    def test_a_file_set_back_in_time_is_noticed(self, backend: FilesystemBackend, layer: Layer) -> None:
        path = layer.path / "file"
        path.write_text("one")
        os.utime(path, ns=(OLD, OLD))
        backend.capture(layer, "sp-1")
        path.write_text("two")
        os.utime(path, ns=(OLD, OLD))
        artefact = backend.capture(layer, "sp-2")
        path.write_text("three")
        self.restore(backend, artefact, layer)
        assert path.read_text() == "two"

    # --- staging

    def test_staging_changes_nothing_yet(self, backend: FilesystemBackend, layer: Layer) -> None:
        fill(layer.path)
        artefact = backend.capture(layer, "sp-1")
        wreck(layer.path)
        before = describe(layer.path)
        staged = backend.stage(artefact, layer)
        assert_same(describe(layer.path), before)
        staged.discard()
        assert_same(describe(layer.path), before)

    def test_nothing_to_change_is_said(self, backend: FilesystemBackend, layer: Layer) -> None:
        fill(layer.path)
        artefact = backend.capture(layer, "sp-1")
        staged = backend.stage(artefact, layer)
        assert staged.changed == ()
        assert staged.changed_count == 0
        staged.switch()

    def test_changes_are_named(self, backend: FilesystemBackend, layer: Layer) -> None:
        (layer.path / "folder").mkdir()
        (layer.path / "folder" / "changed").write_text("a")
        (layer.path / "folder" / "same").write_text("a")
        artefact = backend.capture(layer, "sp-1")
        (layer.path / "folder" / "changed").write_text("b")
        (layer.path / "new").write_text("c")
        staged = backend.stage(artefact, layer)
        assert {"folder/changed", "new"} <= set(staged.changed)
        assert "folder/same" not in staged.changed
        assert staged.changed_count == len(staged.changed)
        staged.discard()

    def test_what_changes_after_staging_is_undone_too(self, backend: FilesystemBackend, layer: Layer) -> None:
        fill(layer.path)
        before = describe(layer.path)
        artefact = backend.capture(layer, "sp-1")
        staged = backend.stage(artefact, layer)
        wreck(layer.path)
        staged.switch()
        assert_same(describe(layer.path), before)

    def test_switching_again_after_staging_again_is_harmless(self, backend: FilesystemBackend, layer: Layer) -> None:
        fill(layer.path)
        before = describe(layer.path)
        artefact = backend.capture(layer, "sp-1")
        wreck(layer.path)
        self.restore(backend, artefact, layer)
        self.restore(backend, artefact, layer)
        assert_same(describe(layer.path), before)

    def test_unchanged_files_keep_their_inodes(self, backend: FilesystemBackend, layer: Layer) -> None:
        if not backend.capabilities.in_place:
            pytest.skip("not in place")
        fill(layer.path)
        artefact = backend.capture(layer, "sp-1")
        inode = os.lstat(layer.path / "text").st_ino
        folder = os.lstat(layer.path / "folder").st_ino
        (layer.path / "folder" / "inner").write_text("changed")
        (layer.path / "new").write_text("new")
        self.restore(backend, artefact, layer)
        assert os.lstat(layer.path / "text").st_ino == inode
        assert os.lstat(layer.path / "folder").st_ino == folder

    # --- forks

    def test_a_fork_is_equal_and_shares_nothing_writable(
        self, backend: FilesystemBackend, layer: Layer, home: Path
    ) -> None:
        fill(layer.path)
        before = describe(layer.path)
        artefact = backend.capture(layer, "sp-1")
        fork = self.layer_at(backend, home, "fork")
        self.restore(backend, artefact, fork)
        assert_same(describe(fork.path), before)
        with open(fork.path / "text", "r+b") as file:
            file.write(b"FORK")
        assert_same(describe(layer.path), before)
        with open(layer.path / "big", "r+b") as file:
            file.write(b"SOURCE")
        self.restore(backend, artefact, fork)
        assert_same(describe(fork.path), before)

    def test_a_fork_is_captured_by_itself(self, backend: FilesystemBackend, layer: Layer, home: Path) -> None:
        fill(layer.path)
        artefact = backend.capture(layer, "sp-1")
        fork = self.layer_at(backend, home, "fork")
        self.restore(backend, artefact, fork)
        wreck(fork.path)
        wrecked = describe(fork.path)
        second = backend.capture(fork, "sp-2")
        self.restore(backend, artefact, fork)
        self.restore(backend, second, fork)
        assert_same(describe(fork.path), wrecked)

    # --- looking into artefacts

    def test_a_tree_shows_what_was_captured(self, backend: FilesystemBackend, layer: Layer) -> None:
        trees = self.opening(backend)
        fill(layer.path)
        artefact = backend.capture(layer, "sp-1")
        with trees.open_tree(artefact) as tree:
            assert_shows(tree, layer.path)
        before = describe(layer.path)
        wreck(layer.path)
        with trees.open_tree(artefact) as tree:
            self.restore(backend, artefact, layer)
            assert_same(describe(layer.path), before)
            assert_shows(tree, layer.path)

    def test_a_tree_of_what_is_gone_is_refused(self, backend: FilesystemBackend, layer: Layer) -> None:
        trees = self.opening(backend)
        artefact = backend.capture(layer, "sp-1")
        lost = type(artefact)(artefact.domain, artefact.backend, "0" * 64)
        with pytest.raises(RestoreError), trees.open_tree(lost):
            pass

    def test_nothing_is_at_a_path_that_leads_nowhere(self, backend: FilesystemBackend, layer: Layer) -> None:
        trees = self.opening(backend)
        fill(layer.path)
        with trees.open_tree(backend.capture(layer, "sp-1")) as tree:
            for path in ("absent", "absent/below", "text/below", "link/below", "up/home", "..", "folder/../text", "/"):
                assert tree.entry(path) is None
                assert not tree.children(path)
                with pytest.raises(RestoreError):
                    list(tree.read(path))
            for path in ("fifo", "folder", "link", "socket"):
                with pytest.raises(RestoreError):
                    list(tree.read(path))

    def test_equal_identities_promise_equal_entries(self, backend: FilesystemBackend, layer: Layer, home: Path) -> None:
        """Of a layer that is wrecked, of one that went back to it, and of two forks that do the same in a row."""
        trees = self.opening(backend)
        fill(layer.path)
        artefacts = [backend.capture(layer, "sp-0")]
        wreck(layer.path)
        artefacts.append(backend.capture(layer, "sp-1"))
        self.restore(backend, artefacts[0], layer)
        (layer.path / "text").write_text("other text\n")
        artefacts.append(backend.capture(layer, "sp-2"))
        forks = [self.layer_at(backend, home, f"fork{number}") for number in range(2)]
        for fork in forks:
            self.restore(backend, artefacts[0], fork)
        for number, fork in enumerate(forks):
            (fork.path / "program").write_bytes(b"#!/bin/sh%d\n" % number)
            (fork.path / "new").write_text(f"new{number}")
            (fork.path / "folder" / "inner").chmod(0o600 + number * 0o40)
            for name in ("program", "new"):
                os.utime(fork.path / name, ns=(OLD, OLD))
        artefacts += [backend.capture(fork, f"sp-fork{number}") for number, fork in enumerate(forks)]
        with contextlib.ExitStack() as stack:
            shown = [dict(walk(stack.enter_context(trees.open_tree(artefact)))) for artefact in artefacts]
            contents = [self._contents(trees, artefact) for artefact in artefacts]
        for one, other in itertools.combinations(range(len(artefacts)), 2):
            for path, entry in shown[one].items():
                if not entry.identity or path not in shown[other] or entry.identity != shown[other][path].identity:
                    continue
                below = [p for p in contents[one].keys() | contents[other].keys() if f"{p}/".startswith(f"{path}/")]
                assert [contents[one].get(p) for p in below] == [contents[other].get(p) for p in below], path

    def test_what_stays_keeps_its_identity(self, backend: FilesystemBackend, layer: Layer) -> None:
        trees = self.opening(backend)
        (layer.path / "same").write_text("a")
        (layer.path / "changes").write_text("a")
        first = backend.capture(layer, "sp-1")
        (layer.path / "changes").write_text("b")
        second = backend.capture(layer, "sp-2")
        self.restore(backend, first, layer)
        third = backend.capture(layer, "sp-3")
        with trees.open_tree(first) as a, trees.open_tree(second) as b, trees.open_tree(third) as c:
            same = [tree.entry("same") for tree in (a, b, c)]
            changes = [tree.entry("changes") for tree in (a, b, c)]
        identities = {entry.identity for entry in same if entry}
        assert len(identities) == 1
        if identities != {""}:
            first_identity, second_identity, third_identity = (entry.identity for entry in changes if entry)
            assert first_identity == third_identity != second_identity

    @staticmethod
    def opening(backend: FilesystemBackend) -> OpensTrees:
        if not isinstance(backend, OpensTrees):
            pytest.skip("its artefacts can't be looked into")
        return backend

    @staticmethod
    def _contents(trees: OpensTrees, artefact: Artefact) -> dict[str, object]:
        """By path all but the identity: attributes, and what files hold."""
        with trees.open_tree(artefact) as tree:
            found: dict[str, object] = {}
            for path, entry in walk(tree):
                whole = entry.kind is FileKind.FILE and entry.size < 1 << 30 and entry.mode & 0o400
                found[path] = (replace(entry, identity="", links=""), b"".join(tree.read(path)) if whole else b"")
            return found

    # --- giving up

    def test_discard_leaves_other_artefacts(self, backend: FilesystemBackend, layer: Layer) -> None:
        fill(layer.path)
        before = describe(layer.path)
        kept = backend.capture(layer, "sp-1")
        wreck(layer.path)
        backend.capture(layer, "sp-2")
        backend.discard("sp-2")
        backend.discard("sp-2")
        backend.discard("sp-never-seen")
        backend.verify(kept)
        self.restore(backend, kept, layer)
        assert_same(describe(layer.path), before)

    def test_verify_accepts_what_is_whole(self, backend: FilesystemBackend, layer: Layer) -> None:
        fill(layer.path)
        artefact = backend.capture(layer, "sp-1")
        backend.verify(artefact)

    def test_verify_refuses_what_is_gone(self, backend: FilesystemBackend, layer: Layer) -> None:
        artefact = backend.capture(layer, "sp-1")
        lost = type(artefact)(artefact.domain, artefact.backend, "0" * 64)
        with pytest.raises(RestoreError):
            backend.verify(lost)

    # --- exclusion

    def test_excluded_files_are_no_state(self, backend: FilesystemBackend, home: Path) -> None:
        if backend.capabilities.constant_time:
            pytest.skip("takes the whole layer")
        layer = self.layer_at(backend, home, "excluding", ("cache", "*/cache", "*.log"))
        backend.create(layer)
        (layer.path / "cache").mkdir()
        (layer.path / "cache" / "file").write_text("one")
        (layer.path / "folder").mkdir()
        (layer.path / "folder" / "file").write_text("one")
        artefact = backend.capture(layer, "sp-1")
        (layer.path / "cache" / "file").write_text("two")
        (layer.path / "folder" / "file").write_text("two")
        (layer.path / "folder" / "run.log").write_text("two")
        (layer.path / "later" / "cache").mkdir(parents=True)
        (layer.path / "later" / "gone").write_text("two")
        self.restore(backend, artefact, layer)
        assert (layer.path / "folder" / "file").read_text() == "one"
        assert (layer.path / "cache" / "file").read_text() == "two"
        assert (layer.path / "folder" / "run.log").read_text() == "two"
        assert list((layer.path / "later").iterdir()) == [layer.path / "later" / "cache"]


def fill(root: Path) -> None:
    """One of everything that this user can make, with old and odd times."""
    (root / "text").write_text("some text\n")
    (root / "empty").write_bytes(b"")
    (root / "big").write_bytes(os.urandom(3 * 1024 * 1024 + 17))
    (root / "program").write_bytes(b"#!/bin/sh\n")
    (root / "program").chmod(0o4755)
    (root / "read-only").write_text("mine")
    (root / "read-only").chmod(0o444)
    (root / "sealed").write_text("nobody reads this")
    (root / "sealed").chmod(0)
    with open(root / "sparse", "wb") as file:
        file.write(b"head")
        file.seek(8 * 1024 * 1024)
        file.write(b"tail")
        file.truncate(1 << 40)
    _fill_folders(root)
    _fill_names(root)
    _fill_special(root)
    _fill_owned(root)
    for path in (root / "text", root / "folder" / "inner", root / "folder"):
        os.utime(path, ns=(OLD, OLD))
    os.utime(root / "link", ns=(OLD, OLD + 1), follow_symlinks=False)
    os.utime(root / "ancient", ns=(-1_000_000_001, -1_000_000_001))
    os.utime(root, ns=(OLD + 7, OLD + 7))


def _fill_folders(root: Path) -> None:
    (root / "folder" / "sub" / "deep").mkdir(parents=True)
    (root / "folder" / "inner").write_text("inner")
    (root / "folder" / "hollow").mkdir()
    (root / "sticky").mkdir()
    (root / "sticky").chmod(0o1777)
    (root / "locked").mkdir()
    (root / "locked" / "inside").write_text("x")
    (root / "locked").chmod(0o555)
    (root / "sealed folder").mkdir()
    (root / "sealed folder" / "inside").write_text("x")
    (root / "sealed folder").chmod(0)
    (root / "ancient").write_text("before 1970")
    (root / ".git" / "objects").mkdir(parents=True)
    (root / ".git" / "objects" / "pack").write_bytes(b"\0\1\2")
    (root / "module").mkdir()
    (root / "module" / ".git").write_text("gitdir: ../.git/modules/module\n")
    os.link(root / "text", root / "folder" / "sub" / "same text")
    os.link(root / "text", root / "sticky" / "same text")


def _fill_names(root: Path) -> None:
    (root / "link").symlink_to("folder/inner")
    (root / "dangling").symlink_to("/nowhere/at all")
    (root / "loop").symlink_to("loop")
    (root / "up").symlink_to("..")
    (root / "new\nline and 'quotes' \"double\" \\ \t").write_text("odd name")
    (root / "\N{SNOWMAN}").write_text("unicode")
    with contextlib.suppress(OSError):  # some systems insist on UTF-8
        (root / os.fsdecode(b"\xff\xfe not utf-8")).write_text("bytes")


def _fill_special(root: Path) -> None:
    os.mkfifo(root / "fifo", 0o640)
    server = socket.socket(socket.AF_UNIX)
    here = Path.cwd()
    os.chdir(root)  # a socket's path is short
    try:
        server.bind("socket")
    finally:
        os.chdir(here)
        server.close()
    if hasattr(os, "setxattr"):
        with contextlib.suppress(OSError):
            os.setxattr(root / "text", "user.color", b"blue\0green")
            os.setxattr(root / "folder", "user.overlay.opaque", b"y")


def _fill_owned(root: Path) -> None:
    if os.geteuid() != 0:
        return
    os.chown(root / "folder" / "inner", 1234, 4321)
    os.chown(root / "link", 1234, 4321, follow_symlinks=False)
    with contextlib.suppress(PermissionError):
        os.mknod(root / "whiteout", stat.S_IFCHR, os.makedev(0, 0))
        os.link(root / "whiteout", root / "folder" / "whiteout")
        os.mknod(root / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        os.mknod(root / "block", stat.S_IFBLK | 0o600, os.makedev(7, 99))
    with contextlib.suppress(OSError):
        os.setxattr(root / "folder", "trusted.overlay.opaque", b"y")
        os.setxattr(root / "link", "trusted.note", b"on a link", follow_symlinks=False)
        os.setxattr(root / "program", "security.capability", bytes.fromhex("0100000200040000000000000000000000000000"))


def wreck(root: Path) -> None:
    """Change, in every way, what :func:`fill` made."""
    (root / "text").write_text("changed in place")
    (root / "big").write_bytes(b"small now")
    (root / "empty").write_text("no longer")
    (root / "program").chmod(0o600)
    (root / "sealed").chmod(0o600)
    (root / "sparse").unlink()
    (root / "sparse").write_text("dense")
    (root / "locked").chmod(0o755)
    (root / "locked" / "inside").unlink()
    (root / "folder" / "inner").unlink()
    (root / "folder" / "inner").mkdir()
    (root / "folder" / "inner" / "file").write_text("a file became a directory")
    shutil.rmtree(root / "module")
    (root / "module").write_text("a directory became a file")
    shutil.rmtree(root / ".git")
    (root / "sticky" / "same text").unlink()
    (root / "sticky" / "same text").write_text("some text\n")
    (root / "link").unlink()
    (root / "link").mkdir()
    (root / "dangling").unlink()
    (root / "dangling").symlink_to("elsewhere")
    (root / "fifo").unlink()
    (root / "fifo").write_text("now a file")
    (root / "folder" / "hollow").rmdir()
    (root / "folder" / "sub").rename(root / "moved")
    (root / "extra" / "more").mkdir(parents=True)
    (root / "extra" / "more" / "file").write_text("extra")
    (root / "extra" / "link").symlink_to("/etc")
    os.link(root / "read-only", root / "extra" / "linked")
    if hasattr(os, "setxattr"):
        with contextlib.suppress(OSError):
            os.setxattr(root / "read-only", "user.new", b"1")
            os.removexattr(root / "folder", "user.overlay.opaque")
    os.utime(root / "ancient")
