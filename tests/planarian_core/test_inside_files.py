"""Text files inside a sandbox, read and changed by commands there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from planarian_core import Planarian
from planarian_core.errors import SandboxError
from planarian_core.inside_files import read_lines, replace_text, write_text
from planarian_core.sandbox import Sandbox
from planarian_core.testing.workloads import remove_all


@pytest.fixture
def box(tmp_path: Path, workspace: Path) -> Iterator[Sandbox]:
    with Planarian.open(tmp_path / "home") as planarian:
        yield planarian.create_sandbox(workspace, sandbox="directory", filesystem="copy", process="respawn")
        remove_all(planarian)


@pytest.mark.parametrize("path", ["f", "sub/deep/f", "-n", "with space", "*", "$(id)"])
def test_what_is_written_is_read_again(box: Sandbox, workspace: Path, path: str) -> None:
    text = "one\n-two\n\tthree é\n"
    write_text(box, path, text)
    assert (workspace / path).read_text() == text
    assert read_lines(box, path).numbered() == "1\tone\n2\t-two\n3\t\tthree é"
    assert read_lines(box, path, 2, 1).lines == ("-two",)
    assert read_lines(box, path, 9).lines == ()


def test_a_text_is_replaced_where_it_occurs_once(box: Sandbox, workspace: Path) -> None:
    write_text(box, "f", "a b a\r\nno newline at the end")
    replace_text(box, "f", "b a\r\n", "c\r\n")
    assert (workspace / "f").read_bytes() == b"a c\r\nno newline at the end"
    for old, count in (("x", 0), ("n", 4), ("", 0)):
        with pytest.raises(SandboxError, match=f"occurs {count} times") as caught:
            replace_text(box, "f", old, "y")
        assert caught.value.code == "text-not-unique"
    assert (workspace / "f").read_bytes() == b"a c\r\nno newline at the end"


def test_what_is_not_there_is_said(box: Sandbox) -> None:
    for act in (
        lambda: read_lines(box, "none"),
        lambda: replace_text(box, "none", "a", "b"),
        lambda: read_lines(box, ""),
    ):
        with pytest.raises(SandboxError) as caught:
            act()
        assert caught.value.code == "file-unreadable"
    with pytest.raises(SandboxError) as caught:
        write_text(box, "hello.txt/f", "x")
    assert caught.value.code == "file-unwritable"


def test_a_huge_file_is_not_changed(box: Sandbox, workspace: Path) -> None:
    (workspace / "huge").write_bytes(b"x" * (9 * 1024 * 1024))
    with pytest.raises(SandboxError, match="larger than"):
        replace_text(box, "huge", "y", "z")


def test_what_is_no_text_is_not_changed(box: Sandbox, workspace: Path) -> None:
    (workspace / "binary").write_bytes(b"a\xff b")
    with pytest.raises(SandboxError, match="UTF-8"):
        replace_text(box, "binary", "b", "c")
    assert (workspace / "binary").read_bytes() == b"a\xff b"
