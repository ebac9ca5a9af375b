"""Layers that come by a bundle: what may be in them, and that a hostile one shows nothing of the host."""

from __future__ import annotations

import base64
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from planarian_core import Planarian
from planarian_core.bundle_format import BundleReader, BundleWriter, Frame, Kind
from planarian_core.errors import PlanarianError
from planarian_core.file_tree import FileEntry, FileKind
from planarian_core.sandbox import Sandbox
from planarian_core.testing.workloads import remove_all
from planarian_sandbox.foreign_layer import objection

as_root = pytest.mark.needs("root")
NULL = os.makedev(1, 3)


def _entry(kind: FileKind = FileKind.FILE, *, device: int = 0, size: int = 0, **xattrs: bytes) -> FileEntry:
    marks = {name.replace("__", "."): value for name, value in xattrs.items()}
    return FileEntry("x", kind, 0o4755, 0, 0, device=device, size=size, xattrs=marks)


DIRECTORY = FileKind.DIRECTORY


@as_root
@pytest.mark.parametrize(
    ("path", "entry"),
    [
        ("", _entry(DIRECTORY)),
        ("upper", _entry(DIRECTORY)),
        ("upper/usr/bin/su", _entry(security__capability=b"x")),
        ("upper/etc/gone", _entry(FileKind.CHARACTER)),
        ("upper/dev/null", _entry(FileKind.CHARACTER, device=NULL)),
        ("upper/tmp", _entry(DIRECTORY, trusted__overlay__opaque=b"y")),
        ("upper/tmp/s", _entry(FileKind.SOCKET)),
        ("upper/x", _entry(user__overlay__metacopy=b"harmless: no mark of a root's overlay")),
        ("upper/x", _entry(trusted__overlay__overlay__opaque=b"y")),
        ("workspace/upper/b", _entry(DIRECTORY, trusted__overlay__redirect=b"a")),
        ("work/index/00fb", _entry(DIRECTORY, trusted__overlay__upper=b"x")),
        ("layout.json", _entry(size=60)),
    ],
)
def test_what_sandboxes_leave_in_a_layer_may_come(path: str, entry: FileEntry) -> None:
    assert objection(path, entry, trusted=False) == ""


@as_root
@pytest.mark.parametrize(
    ("path", "entry"),
    [
        ("more", _entry()),
        ("upper", _entry(FileKind.SYMLINK)),
        ("work", _entry()),
        ("layout.json", _entry(FileKind.SYMLINK)),
        ("layout.json", _entry(FileKind.FIFO)),
        ("layout.json", _entry(size=10**6)),
        ("upper/dev/sda", _entry(FileKind.BLOCK, device=os.makedev(8, 0))),
        ("upper/dev/mem", _entry(FileKind.CHARACTER, device=os.makedev(1, 1))),
        ("upper/dev/kmsg", _entry(FileKind.CHARACTER, device=os.makedev(1, 11))),
        ("upper/dev/fuse", _entry(FileKind.CHARACTER, device=os.makedev(10, 229))),
        ("upper/null", _entry(FileKind.CHARACTER, device=NULL)),
        ("workspace/upper/dev/null", _entry(FileKind.CHARACTER, device=NULL)),
        ("upper/etc/shown", _entry(trusted__overlay__metacopy=b"")),
        ("upper/etc/shown", _entry(trusted__overlay__data=b"")),
    ],
)
def test_what_no_sandbox_leaves_may_not_come(path: str, entry: FileEntry) -> None:
    assert objection(path, entry, trusted=True)
    assert objection(path, entry, trusted=False)


@as_root
def test_a_renamed_directory_of_the_host_s_comes_only_from_who_is_trusted() -> None:
    entry = _entry(DIRECTORY, trusted__overlay__redirect=b"/root")
    assert objection("upper/innocent", entry, trusted=True) == ""
    assert objection("upper/innocent", entry, trusted=False)


# --- whole bundles ---

real = pytest.mark.needs("root", "namespaces")
Change = Callable[[list[Frame]], list[Frame]]


@pytest.fixture
def homes(tmp_path: Path) -> Iterator[tuple[Planarian, Planarian]]:
    with Planarian.open(tmp_path / "source") as source, Planarian.open(tmp_path / "target") as target:
        yield source, target
        remove_all(target)
        remove_all(source)


def _box(planarian: Planarian, workspace: Path, hidden: tuple[str, ...] = ()) -> Sandbox:
    return planarian.create_sandbox(workspace, sandbox="namespace", filesystem="copy", process="none", hidden=hidden)


def _forge(bundle: Path, change: Change) -> Path:
    """The bundle with other frames, and hashes that fit them."""
    with open(bundle, "rb") as file:
        frames = change(list(BundleReader(file).frames()))
    path = bundle.with_name("forged")
    with open(path, "wb") as file:
        writer = BundleWriter(file, b"")
        for frame in frames:
            if frame.kind is Kind.PART:
                writer.part(frame.record()["part"])
            else:
                writer.write(frame.kind, frame.payload)
        writer.finish()
    return path


def _entry_named(frames: list[Frame], name: str, below: str = "") -> int:
    """The index of a name's entry; ``below``: after the entry of that name."""
    start = _entry_named(frames, below) + 1 if below else 0
    for index in range(start, len(frames)):
        if frames[index].kind is Kind.ENTRY and frames[index].record()["n"] == name:
            return index
    raise AssertionError(name)


def _layout(**changes: object) -> Change:
    def change(frames: list[Frame]) -> list[Frame]:
        index = _entry_named(frames, "layout.json")
        content = {**json.loads(frames[index + 1].piece()[1]), **changes}
        data = json.dumps(content).encode()
        entry = {**frames[index].record(), "s": len(data)}
        frames[index] = Frame(Kind.ENTRY, json.dumps(entry).encode(), "files")
        frames[index + 1] = Frame(Kind.DATA, bytes(8) + data, "files")
        head = frames[0].record()
        head["parts"]["files"]["bytes"] += 1000
        frames[0] = Frame(Kind.HEAD, json.dumps(head).encode(), "head")
        return frames

    return change


@real
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(_layout(workspace="/etc"), id="another-workspace"),
        pytest.param(_layout(workspace="/x/../../etc"), id="traversal"),
        pytest.param(_layout(rootless=True), id="another-user"),
        pytest.param(_layout(workspace=None), id="no-workspace"),
    ],
)
def test_a_layer_that_is_laid_out_otherwise_is_refused(
    homes: tuple[Planarian, Planarian], workspace: Path, tmp_path: Path, change: Change
) -> None:
    source, target = homes
    box = _box(source, workspace)
    bundle = source.export(source.snapshot(box), tmp_path / "bundle")
    with pytest.raises(PlanarianError):
        target.import_(_forge(bundle, change))
    assert target.registry.sandboxes() == []
    assert target.registry.operations() == []
    assert list((target.home / "sandboxes").iterdir()) == []


@real
def test_a_workspace_in_what_is_hidden_here_is_refused(
    homes: tuple[Planarian, Planarian], workspace: Path, tmp_path: Path
) -> None:
    source, target = homes
    bundle = source.export(source.snapshot(_box(source, workspace)), tmp_path / "bundle")
    target.with_config(hidden=(str(tmp_path / "workspace"),))
    with pytest.raises(PlanarianError) as caught:
        target.import_(bundle)
    assert caught.value.code == "workspace-hidden"
    assert target.registry.sandboxes() == []


@real
def test_a_layer_without_its_whiteouts_shows_no_secret(
    homes: tuple[Planarian, Planarian], workspace: Path, tmp_path: Path
) -> None:
    """What is hidden is hidden anew, by what this host says, whatever the layer had there."""
    source, target = homes
    box = _box(source, workspace)
    bundle = source.export(source.snapshot(box), tmp_path / "bundle")

    def change(frames: list[Frame]) -> list[Frame]:
        index = _entry_named(frames, "shadow", below="etc")
        assert frames[index].record()["k"] == "character"
        return [*frames[:index], *frames[index + 1 :]]

    imported = target.import_(_forge(bundle, change))
    target.rollback(imported, "@head")
    assert imported.run("cat /etc/shadow").exit_code != 0
    assert imported.run(f"ls {target.home}").exit_code != 0


@real
@pytest.mark.parametrize("mark", ["", "n", "x"])
def test_a_directory_in_a_hidden_one_s_place_shows_no_secret(
    homes: tuple[Planarian, Planarian], workspace: Path, tmp_path: Path, mark: str
) -> None:
    """overlayfs would merge it with the hidden one of the host."""
    secrets = Path(tempfile.mkdtemp(dir="/var/lib"))  # /tmp is the sandbox's own
    (secrets / "key").write_text("secret")
    source, target = homes
    box = _box(source, workspace, hidden=(str(secrets),))
    box.run(f"mkdir {secrets} && echo mine > {secrets}/own")
    bundle = source.export(source.snapshot(box), tmp_path / "bundle")

    def change(frames: list[Frame]) -> list[Frame]:
        index = _entry_named(frames, secrets.name)
        entry = frames[index].record()
        assert entry["k"] == "directory"
        assert entry.pop("x")["trusted.overlay.opaque"]
        if mark:
            entry["x"] = {"trusted.overlay.opaque": base64.b64encode(mark.encode()).decode()}
        frames[index] = Frame(Kind.ENTRY, json.dumps(entry).encode(), "files")
        return frames

    target.with_config(hidden=(str(secrets),))
    try:
        imported = target.import_(_forge(bundle, change))
        target.rollback(imported, "@head")
        assert imported.run(f"ls {secrets}").stdout == "own\n"
    finally:
        shutil.rmtree(secrets)


@real
def test_a_directory_of_the_host_s_under_another_name_is_refused(
    homes: tuple[Planarian, Planarian], workspace: Path, tmp_path: Path
) -> None:
    """By overlayfs's redirect a layer could show a directory of the host's without the whiteouts in it."""
    source, target = homes
    box = _box(source, workspace)
    box.run("mkdir /innocent")
    bundle = source.export(source.snapshot(box), tmp_path / "bundle")

    def change(frames: list[Frame]) -> list[Frame]:
        index = _entry_named(frames, "innocent")
        entry = frames[index].record()
        entry["x"] = {"trusted.overlay.redirect": base64.b64encode(b"/etc").decode()}
        frames[index] = Frame(Kind.ENTRY, json.dumps(entry).encode(), "files")
        return frames

    with pytest.raises(PlanarianError) as caught:
        target.import_(_forge(bundle, change))
    assert caught.value.code == "bundle-untrusted"
    assert target.registry.sandboxes() == []


@real
def test_what_overlayfs_knew_by_handles_is_found_by_paths(
    homes: tuple[Planarian, Planarian], workspace: Path, tmp_path: Path
) -> None:
    (workspace / "a").mkdir()
    (workspace / "a" / "one").write_text("below")
    os.link(workspace / "a" / "one", workspace / "a" / "two")
    (workspace / "b" / "c").mkdir(parents=True)
    os.link(workspace / "a" / "one", workspace / "b" / "c" / "three")
    os.link(workspace / "a" / "one", workspace / "four")
    os.link(workspace / "a" / "one", workspace / "replaced")
    source, target = homes
    box = _box(source, workspace)
    box.run("echo changed >> a/one; mv a renamed; rm four; rm replaced; echo own > replaced; mkdir b/new")
    look = f"cd /; find {workspace} -type f -o -type d | sort; find {workspace} -type f -exec cat '{{}}' +"
    seen = box.run(look).stdout
    assert "changed" in box.run("cat b/c/three").stdout
    imported = target.import_(source.export(source.snapshot(box), tmp_path / "bundle"))
    target.rollback(imported, "@head")
    assert imported.run(look).stdout == seen
    same = imported.run("stat -c %i renamed/one renamed/two b/c/three | sort -u | wc -l").stdout
    assert same == "1\n", "they are one file still"
    imported.run("echo more >> renamed/two")
    assert imported.run("tail -n1 b/c/three").stdout == "more\n"
    assert imported.run("cat replaced; ls four").stdout == "own\n"
