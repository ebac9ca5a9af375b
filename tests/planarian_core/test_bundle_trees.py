"""Trees of files go into a bundle and come out as they were; what isn't a tree of files never comes out."""

from __future__ import annotations

import io
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest

from planarian_core.bundle_extraction import Extraction
from planarian_core.bundle_format import BundleError, BundleReader, BundleWriter, Frame, Kind
from planarian_core.bundle_packing import DEEPEST, TreePacker
from planarian_core.bundle_records import PartSize
from planarian_core.bundle_unpacking import Nowhere, TreeReader, TreeSink
from planarian_core.directory_tree import DirectoryTree
from planarian_core.file_tree import FileEntry, FileKind
from planarian_core.testing.filesystem import fill
from planarian_core.testing.oracle import Description, assert_same, describe

ENOUGH = PartSize(10_000, 10**9)
ROOT: dict[str, Any] = {"n": "", "k": "directory", "m": 0o755, "u": 0, "g": 0, "t": 0}


def _fine(path: str, entry: FileEntry) -> str:
    return ""


def _accept(path: str, entry: FileEntry) -> None:
    return


def _done(size: int) -> None:
    return


def _packed(root: Path) -> tuple[bytes, PartSize]:
    buffer = io.BytesIO()
    with DirectoryTree(root) as tree:
        packer = TreePacker(tree, _fine)
        size = packer.measure()
        writer = BundleWriter(buffer, b"")
        writer.part("files")
        packer.pack(writer, _done)
        writer.finish()
    return buffer.getvalue(), size


def _unpack(data: bytes, size: PartSize, sink: TreeSink) -> TreeReader:
    reader = TreeReader(size, sink, _accept, _done)
    for frame in BundleReader(io.BytesIO(data)).frames():
        if frame.kind is not Kind.PART:
            reader.feed(frame)
    return reader


def _without_links_of_others(description: Description) -> Description:
    """Hard links of what is no regular file are not kept: their names become files of their own."""
    found = {}
    for path, facts in description.items():
        linked = isinstance(facts[-1], tuple) and facts[-1] and isinstance(facts[-1][0], bytes)
        found[path] = facts[:-1] if linked and not stat.S_ISREG(facts[0]) else facts
    return found


def test_a_tree_comes_out_exactly_as_it_went_in(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    fill(source)
    before = describe(source)
    data, size = _packed(source)
    with Extraction(target, (os.geteuid(), os.getegid())) as sink:
        assert _unpack(data, size, sink).done
    assert sink.lost == {}
    assert_same(_without_links_of_others(describe(target)), _without_links_of_others(before))
    assert size.entries == len(before)


def test_holes_stay_holes_and_zeros_stay_data(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    with open(source / "sparse", "wb") as file:
        file.seek(3 * 1024 * 1024)
        file.write(b"in the middle")
        file.truncate(64 * 1024**3)
    (source / "zeros").write_bytes(bytes(300_000))
    (source / "only a hole").touch()
    os.truncate(source / "only a hole", 10_000_000)
    data, size = _packed(source)
    assert len(data) < 10_000
    with Extraction(target, (os.geteuid(), os.getegid())) as sink:
        _unpack(data, size, sink)
    assert_same(describe(target), describe(source))
    assert os.stat(target / "zeros").st_blocks == os.stat(source / "zeros").st_blocks


def test_long_files_come_in_pieces_of_bounded_size(tmp_path: Path) -> None:
    content = os.urandom(5_000_000)
    (tmp_path / "long").write_bytes(content)
    data, size = _packed(tmp_path)
    pieces = [frame.piece() for frame in BundleReader(io.BytesIO(data)).frames() if frame.kind is Kind.DATA]
    assert max(len(piece) for _, piece in pieces) <= 1024 * 1024
    assert b"".join(piece for _, piece in pieces) == content
    assert size.bytes >= len(content)


@pytest.mark.needs("root")
def test_an_ordinary_user_s_files_belong_to_whoever_takes_them(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    (tmp_path / "other's").touch()
    os.chown(tmp_path / "mine", 1000, 1000)
    data, size = _packed(tmp_path)
    with tempfile.TemporaryDirectory() as name:
        target = Path(name)
        os.chown(target, 1234, 1234)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.setgroups([])
                os.setgid(1234)
                os.setuid(1234)
                with Extraction(target, (1000, 1000)) as sink:
                    _unpack(data, size, sink)
                code = 0 if sum(sink.lost.values()) == 2 else 2  # the top directory, and the other's file
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        assert {path.stat().st_uid for path in target.iterdir()} == {1234}


def test_a_tree_that_changes_while_it_is_packed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("1")
    with DirectoryTree(tmp_path) as tree:
        packer = TreePacker(tree, _fine)
        packer.measure()
        (tmp_path / "two").write_text("2")
        with pytest.raises(BundleError, match="while it was exported"):
            packer.pack(BundleWriter(io.BytesIO(), b""), _done)


def test_what_can_not_be_in_a_bundle_is_named_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "bad").touch()
    with DirectoryTree(tmp_path) as tree, pytest.raises(BundleError, match="folder/bad can't be in a bundle: because"):
        TreePacker(tree, lambda path, entry: "because" if entry.name == "bad" else "").measure()


# --- hostile ---


def _reader(size: PartSize = ENOUGH, sink: TreeSink | None = None) -> TreeReader:
    return TreeReader(size, sink or Nowhere(), _accept, _done)


def _entry(**changes: Any) -> Frame:
    data = {**ROOT, "n": "name", "k": "file", "s": 0, **changes}
    return Frame(Kind.ENTRY, json.dumps(data).encode(), "files")


def _root(**changes: Any) -> Frame:
    return _entry(**{"n": "", "k": "directory", **changes})


def _piece(offset: int, data: bytes) -> Frame:
    return Frame(Kind.DATA, offset.to_bytes(8, "big") + data, "files")


def _feed(reader: TreeReader, frames: list[Frame]) -> None:
    for frame in frames:
        reader.feed(frame)


UP = Frame(Kind.UP, b"", "files")


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param([_root(), _entry(n="../up")], id="traversal"),
        pytest.param([_root(), _entry(n="..")], id="parent"),
        pytest.param([_root(), _entry(n=".")], id="self"),
        pytest.param([_root(), _entry(n="/etc/passwd")], id="absolute"),
        pytest.param([_root(), _entry(n="a/b")], id="path"),
        pytest.param([_root(), _entry(n="")], id="nameless"),
        pytest.param([_root(), _entry(n="a\0b")], id="nul"),
        pytest.param([_root(), _entry(n="\ud800")], id="lone-surrogate"),
        pytest.param([_root(), _entry(n="\udcc3\udca4")], id="second-spelling-of-a-name"),
        pytest.param([_root(), _entry(n="a" * 256)], id="long-name"),
        pytest.param([_root(), _entry(n="ä" * 128)], id="long-name-in-bytes"),
        pytest.param([_root(), _entry(n=7)], id="number-as-name"),
        pytest.param([_root(), _entry(n="a"), _entry(n="a")], id="twice"),
        pytest.param([_root(), _entry(n="link", k="symlink", l="/etc"), _entry(n="link", k="directory")], id="twice-2"),
        pytest.param([_root(), _entry(n="b"), _entry(n="a")], id="order"),
        pytest.param([_root(), _entry(n="link", k="symlink", l="/etc"), _piece(0, b"x")], id="data-of-a-symlink"),
        pytest.param([_root(), _entry(k="symlink", l="")], id="symlink-to-nothing"),
        pytest.param([_root(), _entry(k="symlink")], id="symlink-without-target"),
        pytest.param([_root(), _entry(k="symlink", l="a" * 4096)], id="long-target"),
        pytest.param([_root(), _entry(k="nonsense")], id="kind"),
        pytest.param([_root(), _entry(k=["file"])], id="kind-of-wrong-type"),
        pytest.param([_root(), _entry(m=0o10000)], id="mode"),
        pytest.param([_root(), _entry(m=True)], id="bool-as-mode"),
        pytest.param([_root(), _entry(m=1.0)], id="float-as-mode"),
        pytest.param([_root(), _entry(u=-1)], id="uid"),
        pytest.param([_root(), _entry(g=2**32 - 1)], id="gid-that-means-none"),
        pytest.param([_root(), _entry(s=-1)], id="size"),
        pytest.param([_root(), _entry(s=2**63)], id="huge-size"),
        pytest.param([_root(), _entry(t=2**63)], id="time"),
        pytest.param([_root(), _entry(d=5)], id="device-number-of-a-file"),
        pytest.param([_root(), _entry(x={"user.x": 1})], id="attribute-type"),
        pytest.param([_root(), _entry(x={"user.x": "!"})], id="attribute-encoding"),
        pytest.param([_root(), _entry(x={"user.\0": "AA=="})], id="attribute-name"),
        pytest.param([_root(), _entry(x={"user.x": "A" * 200_000})], id="attribute-size"),
        pytest.param([_root(), _entry(x=[1])], id="attributes-type"),
        pytest.param([_root(), _entry(s=4), _piece(0, b"12345")], id="more-than-its-size"),
        pytest.param([_root(), _entry(s=9), _piece(4, b"12345"), _piece(0, b"1")], id="backwards"),
        pytest.param([_root(), _entry(s=9), _piece(0, b"12345"), _piece(4, b"1")], id="overlap"),
        pytest.param([_root(), _entry(s=9), _piece(2**64 - 1, b"1")], id="far-out"),
        pytest.param([_root(), _entry(s=9), _piece(0, b"")], id="empty-piece"),
        pytest.param([_root(), _piece(0, b"1")], id="data-of-a-directory"),
        pytest.param([_piece(0, b"1")], id="data-of-nothing"),
        pytest.param([UP], id="up-from-nothing"),
        pytest.param([_root(), UP, UP], id="up-from-the-top"),
        pytest.param([_root(), UP, _entry()], id="after-the-end"),
        pytest.param([_root(k="file", s=1)], id="a-file-as-tree"),
        pytest.param([_root(n="x")], id="a-top-with-a-name"),
        pytest.param([_root(), _entry(n="a", h=1, s=1), _entry(n="b", h=1, k="fifo")], id="links-of-two-kinds"),
        pytest.param([_root(), _entry(n="a", h=-1)], id="group"),
        pytest.param([_root(), Frame(Kind.HEAD, b"{}", "files")], id="a-head-inside"),
        pytest.param([_root(), Frame(Kind.ENTRY, b"{", "files")], id="no-json"),
        pytest.param([_root(), Frame(Kind.ENTRY, b"[]", "files")], id="a-list"),
        pytest.param([_root(), Frame(Kind.ENTRY, b"[" * 100_000, "files")], id="nested-without-end"),
        pytest.param([_root(), Frame(Kind.ENTRY, b'{"k":"file","n":"a","m":' + b"9" * 5000 + b"}", "f")], id="digits"),
        pytest.param([_root(), *[_entry(n="d", k="directory")] * (DEEPEST + 1)], id="too-deep"),
    ],
)
def test_what_is_no_tree_is_refused(frames: list[Frame], tmp_path: Path) -> None:
    """By the checking walk, and by the one that writes, which leaves nothing outside of its directory."""
    root = tmp_path / "root"
    root.mkdir()
    before = describe(tmp_path)
    before.pop(b"root")
    with Extraction(root, (0, 0)) as sink:
        for target in (Nowhere(), sink):
            reader = _reader(sink=target)
            with pytest.raises(BundleError) as caught:
                _feed(reader, frames)
            assert caught.value.code == "bundle-damaged"
    after = {path: facts for path, facts in describe(tmp_path).items() if not path.startswith(b"root")}
    assert after.keys() == before.keys()


def test_a_tree_holds_no_more_than_was_said() -> None:
    for size, frames in (
        (PartSize(2, 10), [_root(), _entry(n="a"), _entry(n="b")]),
        (PartSize(2, 10), [_root(), _entry(n="a", s=100), _piece(0, bytes(11))]),
    ):
        reader = _reader(size)
        with pytest.raises(BundleError, match="more"):
            _feed(reader, frames)


def test_a_symlink_is_never_followed(tmp_path: Path) -> None:
    """The order of names rules it out; were it not for that, the descriptors would."""
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    root.mkdir()
    with Extraction(root, (0, 0)) as sink:
        reader = _reader(sink=sink)
        _feed(reader, [_root(), _entry(n="link", k="symlink", l=str(outside))])
        entry = FileEntry("link", FileKind.DIRECTORY, 0o755, 0, 0)
        with pytest.raises(OSError, match="exists"):
            sink.enter(entry)
        with pytest.raises(OSError, match="exists"):
            sink.begin(FileEntry("link", FileKind.FILE, 0o755, 0, 0))
        with pytest.raises(OSError, match=r"directory|links"):
            sink.link(FileEntry("hard", FileKind.FILE, 0o644, 0, 0), ("link", "file"))
    assert list(outside.iterdir()) == []
