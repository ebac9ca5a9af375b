"""Trees compared, renames found, texts bounded; and what a diff of statepoints says, on fakes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planarian_core import Planarian
from planarian_core.comparison import Aspect, Links, Subtree, compare
from planarian_core.content import BLOCK, content_digest, same_blocks
from planarian_core.diff import ChangeKind
from planarian_core.directory_tree import DirectoryTree
from planarian_core.errors import ConfigurationError, LineageError
from planarian_core.file_tree import FileEntry
from planarian_core.renames import with_renames
from planarian_core.sandbox import Sandbox
from planarian_core.testing.fakes import FakeService
from planarian_core.text_diff import BINARY, LARGEST, TOO_LARGE, content_of, unified

# --- trees ---


@pytest.fixture
def one(tmp_path: Path) -> Path:
    (tmp_path / "one").mkdir()
    return tmp_path / "one"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    (tmp_path / "other").mkdir()
    return tmp_path / "other"


def _compared(one: Path, other: Path, path: str = "", *, times: bool = False) -> dict[str, frozenset[Aspect]]:
    with DirectoryTree(one) as mine, DirectoryTree(other) as theirs:
        return {d.path: d.aspects for d in compare(mine, theirs, path, times=times)}


def test_equal_trees_have_no_differences(one: Path, other: Path) -> None:
    for root in (one, other):
        (root / "d").mkdir()
        (root / "d" / "f").write_text("x")
        (root / "l").symlink_to("d")
    assert _compared(one, other) == {}


def test_each_aspect_is_told(one: Path, other: Path) -> None:
    for root in (one, other):
        for name in ("content", "mode", "kind", "attributes", "same-size"):
            (root / name).write_text("12")
        (root / "target").symlink_to("a")
    (other / "content").write_text("123")
    (other / "same-size").write_text("34")
    (other / "mode").chmod(0o600)
    (other / "kind").unlink()
    (other / "kind").mkdir()
    (other / "target").unlink()
    (other / "target").symlink_to("b")
    os.setxattr(other / "attributes", "user.x", b"1")
    assert _compared(one, other) == {
        "content": {Aspect.CONTENT},
        "same-size": {Aspect.CONTENT},
        "mode": {Aspect.MODE},
        "kind": {Aspect.KIND},
        "target": {Aspect.TARGET},
        "attributes": {Aspect.ATTRIBUTES},
    }


def test_a_time_counts_only_when_asked_for(one: Path, other: Path) -> None:
    for root in (one, other):
        (root / "f").write_text("x")
        os.utime(root / "f", (1, 1))
        os.utime(root, (1, 1))
    os.utime(other / "f", (2, 2))
    assert _compared(one, other) == {}
    assert _compared(one, other, times=True) == {"f": {Aspect.TIME}}


def test_a_time_set_back_hides_no_change(one: Path, other: Path) -> None:
    for root, text in ((one, "aa"), (other, "bb")):
        (root / "f").write_text(text)
        os.utime(root / "f", (1, 1))
    assert _compared(one, other) == {"f": {Aspect.CONTENT}}


def test_hard_links_made_and_broken(one: Path, other: Path) -> None:
    for root in (one, other):
        for name in ("a", "b", "c"):
            (root / name).write_text("same")
    for linked, root in (("b", one), ("c", other)):
        (root / linked).unlink()
        os.link(root / "a", root / linked)
    assert _compared(one, other) == {name: {Aspect.LINKS} for name in ("a", "b", "c")}


def test_links_of_the_other_tree_are_collected(one: Path, other: Path) -> None:
    (other / "a").write_text("x")
    os.link(other / "a", other / "b")
    linked = Links()
    with DirectoryTree(one) as mine, DirectoryTree(other) as theirs:
        list(compare(mine, theirs, linked=linked))
    assert linked.group("a") == {"a", "b"}
    assert linked.group("never seen") == {"never seen"}


def test_below_one_path_only(one: Path, other: Path) -> None:
    for name in ("in", "out"):
        (other / name).mkdir()
        (other / name / "f").write_text("x")
    assert _compared(one, other, "in").keys() == {"in", "in/f"}


def test_a_symlink_is_not_followed(one: Path, other: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "f").write_text("x")
    (one / "d").mkdir()
    (other / "d").symlink_to(tmp_path / "secret")
    assert _compared(one, other) == {"d": {Aspect.KIND}}


def test_a_subtree_without_a_part(one: Path) -> None:
    (one / "a" / "b").mkdir(parents=True)
    (one / "a" / "f").write_text("x")
    with DirectoryTree(one) as tree:
        below = Subtree(tree, "a")
        assert [entry.name for entry in below.children("")] == ["b", "f"]
        assert b"".join(below.read("f")) == b"x"
        without = Subtree(tree, "", without="a/b")
        assert [entry.name for entry in without.children("a")] == ["f"]
        assert without.entry("a/b/c") is None


# --- content ---


def test_holes_make_no_difference_and_cost_nothing(one: Path, other: Path) -> None:
    """A terabyte of nothing with a few bytes in it, and the same with blocks of zeros written out."""
    for root in (one, other):
        with open(root / "f", "wb") as file:
            file.seek(1 << 40)
            file.write(b"end")
    with open(other / "f", "r+b") as file:
        file.write(bytes(3 * BLOCK))
    with DirectoryTree(one) as mine, DirectoryTree(other) as theirs:
        assert same_blocks(mine, theirs, "f")
        assert content_digest(mine, "f", 1 << 40) == content_digest(theirs, "f", 1 << 40)
        assert content_digest(mine, "f", 1) != content_digest(mine, "f", 2)
    with open(other / "f", "r+b") as file:
        file.seek(5 * BLOCK + 1)
        file.write(b"x")
    assert _compared(one, other) == {"f": {Aspect.CONTENT}}


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=3), st.integers(0, 3 * BLOCK), st.lists(st.integers(1, BLOCK + 1), max_size=6))
def test_content_is_the_same_in_whatever_pieces_it_comes(data: bytes, at: int, cuts: list[int]) -> None:
    whole = bytes(at) + data + bytes(BLOCK)

    class Pieces:
        """A tree that gives a file in odd pieces, or whole."""

        def __init__(self, cuts: list[int]) -> None:
            self._cuts = cuts

        def entry(self, path: str) -> FileEntry | None:
            return None

        def children(self, path: str) -> list[FileEntry]:
            return []

        def read(self, path: str) -> Iterator[bytes]:
            rest = whole
            for cut in self._cuts:
                yield rest[:cut]
                rest = rest[cut:]
            yield rest

    assert same_blocks(Pieces(cuts), Pieces([]), "f")
    assert content_digest(Pieces(cuts), "f", 1) == content_digest(Pieces([]), "f", 1)


# --- renames ---


def _renamed(one: Path, other: Path) -> list[tuple[str, str]]:
    with DirectoryTree(one) as mine, DirectoryTree(other) as theirs:
        found = with_renames(mine, theirs, list(compare(mine, theirs)))
    return [(d.source, d.path) for d in found]


def test_a_renamed_file_is_one_change(one: Path, other: Path) -> None:
    (one / "old").write_text("content")
    (other / "new").write_text("content")
    assert _renamed(one, other) == [("old", "new")]


def test_a_renamed_symlink_is_one_change(one: Path, other: Path) -> None:
    (one / "old").symlink_to("x")
    (other / "new").symlink_to("x")
    assert _renamed(one, other) == [("old", "new")]


def test_a_renamed_directory_is_one_change(one: Path, other: Path) -> None:
    for top in (one / "old", other / "new"):
        (top / "sub").mkdir(parents=True)
        (top / "a").write_text("aaa")
        (top / "sub" / "b").write_text("bbb")
    assert _renamed(one, other) == [("old", "new")]


def test_a_directory_that_was_changed_beside_being_renamed(one: Path, other: Path) -> None:
    for top in (one / "old", other / "new"):
        top.mkdir()
        (top / "a").write_text("aaa")
    (other / "new" / "more").write_text("mmm")
    assert sorted(_renamed(one, other)) == [("", "new"), ("", "new/more"), ("", "old"), ("old/a", "new/a")]


def test_of_several_alike_the_one_of_the_same_name_is_taken(one: Path, other: Path) -> None:
    for path in (one / "a" / "x", one / "b" / "y", other / "c" / "y", other / "d" / "x"):
        path.parent.mkdir()
        path.write_text("alike")
    assert set(_renamed(one, other)) == {("a", "d"), ("b", "c")}


def test_empty_files_are_never_taken_for_each_other(one: Path, other: Path) -> None:
    (one / "old").touch()
    (other / "new").touch()
    assert sorted(_renamed(one, other)) == [("", "new"), ("", "old")]


def test_copies_are_no_renames(one: Path, other: Path) -> None:
    (one / "a").write_text("x")
    (other / "a").write_text("x")
    (other / "b").write_text("x")
    assert _renamed(one, other) == [("", "b")]


# --- texts ---


def test_texts_are_bounded(one: Path) -> None:
    (one / "large").write_bytes(b"x" * (LARGEST + 1))
    (one / "binary").write_bytes(b"a\0b")
    with DirectoryTree(one) as tree:
        large, binary = (content_of(tree, name, tree.entry(name)) for name in ("large", "binary"))
    assert large is None
    assert unified(large, b"", ("a", "b")) == ("", TOO_LARGE)
    assert unified(b"", binary, ("a", "b")) == ("", BINARY)
    assert unified(b"", b"\n" * 6000, ("a", "b")) == ("", TOO_LARGE)
    text, why = unified(b"", b"a long line of text here\n" * 4000, ("a", "b"))
    assert not why
    assert len(text) < 30_000
    assert text.endswith("… and more\n")


def test_lines_end_only_where_lines_end() -> None:
    text, _ = unified(b"a\x0cb\rc\n", b"a\x0cb\rd", ("x", "y"))
    assert text.splitlines(keepends=False)[-1] == "\\ No newline at end of file"
    assert "-a\x0cb\rc\n+a\x0cb\rd\n" in text


# --- statepoints, on fakes ---


@pytest.fixture
def sandbox(fake_planarian: Planarian, workspace: Path) -> Sandbox:
    return fake_planarian.create_sandbox(workspace)


def _changes(planarian: Planarian, *ends: str, **options: object) -> dict[str, ChangeKind]:
    found = planarian.diff(*ends, **options)  # type: ignore[arg-type]  # a test's shorthand
    return {change.path: change.change for change in found.files}


def test_between_statepoints_and_up_to_now(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    sandbox.run("echo 1 > a; echo 1 > b; echo 11 > c")
    one = fake_planarian.snapshot(sandbox, name="one")
    sandbox.run("echo 2 > a; rm b; mv c d; mkdir e")
    two = fake_planarian.snapshot(sandbox, name="two")
    sandbox.run("rm -r e")
    changed, deleted, renamed, added = ChangeKind.CHANGED, ChangeKind.DELETED, ChangeKind.RENAMED, ChangeKind.ADDED
    assert _changes(fake_planarian, "one", "two") == {"a": changed, "b": deleted, "d": renamed, "e": added}
    assert _changes(fake_planarian, "two", "one") == {"a": changed, "b": added, "c": renamed, "e": deleted}
    assert _changes(fake_planarian, "two") == {"e": deleted}
    found = fake_planarian.diff(one, two)
    assert (found.before, found.after) == (one.id, two.id)
    assert "-1\n+2\n" in next(change.text for change in found.files if change.path == "a")
    assert next(change.source for change in found.files if change.path == "d") == "c"
    assert fake_planarian.diff(two, two).empty


def test_only_some_paths_and_without_texts(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    fake_planarian.snapshot(sandbox, name="one")
    sandbox.run("mkdir in out; echo x > in/f; echo y > out/f")
    assert _changes(fake_planarian, "one", paths=["in"]).keys() == {"in", "in/f"}
    assert all(not change.text for change in fake_planarian.diff("one", text=False).files)
    with pytest.raises(ConfigurationError, match="no nowhere"):
        fake_planarian.diff("one", paths=["nowhere"])
    with pytest.raises(ConfigurationError, match="outside"):
        fake_planarian.diff("one", paths=["../.."])


def test_with_a_fork(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    sandbox.run("echo 1 > a")
    one = fake_planarian.snapshot(sandbox, name="one")
    fork = fake_planarian.fork(one)
    fork.run("echo 2 > b")
    there = fake_planarian.snapshot(fork)
    assert _changes(fake_planarian, "one", there.id, of=sandbox) == {"b": ChangeKind.ADDED}
    with pytest.raises(LineageError):
        fake_planarian.diff("one", "never", of=sandbox)


def test_remote_effects_between(fake_planarian: Planarian, sandbox: Sandbox, service: FakeService) -> None:
    service.put("row", "0")
    one = fake_planarian.snapshot(sandbox)
    service.put("row", "1")
    two = fake_planarian.snapshot(sandbox)
    service.put("mail", "sent", pivot=True)
    between = fake_planarian.diff(one, two).remote
    assert [(change.before, change.after) for change in between] == [("1", "2")]
    assert [effect.summary for effect in between[0].effects] == ["row: 0 -> 1"]
    since = fake_planarian.diff(one).remote[0]
    assert [effect.pivot for effect in since.effects] == [True, False]
    assert fake_planarian.diff(two, two).remote == ()


def test_more_changes_than_can_be_listed(
    fake_planarian: Planarian, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planarian_core.diff._MOST_CHANGES", 5)
    fake_planarian.snapshot(sandbox, name="one")
    sandbox.run("for i in $(seq 20); do echo $i > f$i; done")
    found = fake_planarian.diff("one")
    assert len(found.files) == 5
    assert found.omitted == -1
    assert "more that were not counted" in found.to_markdown()


def test_the_markdown_is_bounded_and_safe(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    fake_planarian.snapshot(sandbox, name="one")
    sandbox.run(
        "printf '```\\n# forged\\n' > text; for i in $(seq 300); do echo $i > a-file-$i; done; touch $'x\\n# y'"
    )
    found = fake_planarian.diff("one")
    text = found.to_markdown(3000)
    assert len(text) <= 3000
    assert "\n# y" not in text
    assert text.endswith(" more\n")
    sandbox.run("rm a-file-*")
    whole = fake_planarian.diff("one").to_markdown()
    assert whole.count("```") == 2, "the file's own fence doesn't end ours"
    assert replace(found, files=()).to_markdown().startswith("# From ")
