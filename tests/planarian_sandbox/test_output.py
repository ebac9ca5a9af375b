"""An output file is followed to its end, whatever becomes of it, and takes no room."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planarian_sandbox import output
from planarian_sandbox.collect import Collector
from planarian_sandbox.output import OutputFile

MIB = 1024**2


class Writer:
    """A file that grows by appending, and its reader."""

    def __init__(self, path: Path, limit: int, sink: bool = True) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        self.seen = bytearray()
        self.names: set[str] = set()
        self.reader = OutputFile(self.descriptor, "stdout", limit, self.take if sink else None)

    def take(self, name: str, piece: bytes) -> None:
        self.names.add(name)
        self.seen += piece

    def append(self, content: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(content)


@given(st.lists(st.binary(max_size=30)), st.integers(0, 60))
def test_everything_goes_to_the_sink_and_the_ends_are_kept(pieces: list[bytes], limit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        writer = Writer(Path(folder, "out"), limit)
        expected = Collector(limit)
        for piece in pieces:
            writer.append(piece)
            assert writer.reader.pump() is bool(piece)
            expected.feed(piece)
        writer.reader.finish()
        os.close(writer.descriptor)
    assert bytes(writer.seen) == b"".join(pieces)
    assert writer.reader.kept.text() == expected.text()
    assert writer.names <= {"stdout"}


@pytest.mark.parametrize("holes", [pytest.param(True, marks=pytest.mark.needs("linux")), False])
@pytest.mark.parametrize("sink", [True, False])
def test_what_was_read_takes_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holes: bool, sink: bool) -> None:
    if not holes:  # as on a system or file system without them
        monkeypatch.setattr(output, "_LIBC", None)
    writer = Writer(tmp_path / "out", 1000, sink)
    for number in range(20):
        writer.append(bytes([number]) * MIB)
        writer.reader.pump()
        assert writer.path.stat().st_blocks * 512 < 10 * MIB
    writer.append(b"the end")
    writer.reader.finish()
    os.close(writer.descriptor)
    assert writer.reader.kept.truncated
    assert writer.reader.kept.text().endswith("the end")
    if sink:
        assert len(writer.seen) == 20 * MIB + 7


def test_a_huge_hole_ends(tmp_path: Path) -> None:
    """Without a sink it is leapt over; with one the reader gives up after a while and says what is missing."""
    for sink in (False, True):
        writer = Writer(tmp_path / f"out-{sink}", 1000, sink)
        writer.reader._sink = (lambda *_: None) if sink else None
        os.truncate(writer.descriptor, 1 << 40)
        writer.reader.finish()
        os.close(writer.descriptor)
        assert writer.reader.kept.truncated
        assert len(writer.reader.kept.text()) < 2000


def test_a_file_that_shrinks_is_followed_on(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "out", 1000)
    writer.append(b"before")
    writer.reader.pump()
    os.truncate(writer.descriptor, 0)
    assert not writer.reader.pump()
    writer.append(b"after")
    writer.reader.finish()
    os.close(writer.descriptor)
    assert bytes(writer.seen) == b"beforeafter"
