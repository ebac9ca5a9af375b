"""The shipped declarations on the real servers from npm: every promise of a service kind, and every tool of theirs.

The oracle reads the files past the servers: the folder, and the memory server's own file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from planarian_core.errors import CompensationConflict, CompensationError, RemoteError
from planarian_core.model import CallClass, EffectState, RemoteCall
from planarian_core.testing.remote import Driver, RemoteSubject, ServiceKindConformance
from planarian_core.testing.scripted_server import Trail
from planarian_remote.declared.kind import DeclaredKind

pytestmark = pytest.mark.needs("npm")


def tree(folder: Path) -> dict[str, tuple[int, bytes | None]]:
    """What lies in a folder, by relative path: permissions, and the bytes of files."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mode & 0o7777, None if path.is_dir() else path.read_bytes())
        for path in sorted(folder.rglob("*"))
    }


def graph(file: Path) -> list[str]:
    """The lines of the memory server's file, in any order."""
    return sorted(line for line in file.read_text().split("\n") if line) if file.exists() else []


def entity(name: str, *observations: str) -> dict[str, Any]:
    return {"name": name, "entityType": "thing", "observations": list(observations)}


def relation(source: str, target: str, kind: str = "knows") -> dict[str, str]:
    return {"from": source, "to": target, "relationType": kind}


class TestFilesystemConformance(ServiceKindConformance):
    @pytest.fixture
    def remote(self, filesystem: DeclaredKind, files: Path) -> RemoteSubject:
        report = str(files / "reports/2026/report.md")
        return RemoteSubject(
            filesystem,
            [
                RemoteCall("create_directory", {"path": str(files / "reports/2026")}),
                RemoteCall("write_file", {"path": str(files / "draft.md"), "content": "# Draft\n\none\n"}),
                RemoteCall("move_file", {"source": str(files / "draft.md"), "destination": report}),
                RemoteCall("edit_file", {"path": report, "edits": [{"oldText": "one", "newText": "two\nthree"}]}),
                RemoteCall("write_file", {"path": report, "content": "short"}),
            ],
            RemoteCall("directory_tree", {"path": str(files)}),
            RemoteCall("delete_everything", {"path": str(files)}),
            lambda: tree(files),
            lambda: os.truncate(report, 2),
        )

    def test_a_move_that_was_cut_off_before_it_was_recorded_is_not_repeated(
        self, remote: RemoteSubject, driver: Driver
    ) -> None:
        """One effect at a time, which is what a kill can leave unrecorded. That a file's content isn't what an effect
        left, because its folder isn't there any more, can't be told from another writer's change.
        """
        before = remote.state()
        effects = [driver.change(call) for call in remote.changes]
        for effect in reversed(effects):
            driver.kind.move([effect], [], driver.target, lambda effect, state: None)
            state = remote.state()
            driver.kind.move([effect], [], driver.target, lambda effect, state: None)
            assert remote.state() == state
        assert state == before


class TestMemoryConformance(ServiceKindConformance):
    @pytest.fixture
    def remote(self, memory: DeclaredKind, memory_file: Path) -> RemoteSubject:
        def meddle() -> None:
            memory_file.write_text(memory_file.read_text().replace("yellow", "green"))

        return RemoteSubject(
            memory,
            [
                RemoteCall("create_entities", {"entities": [entity("A", "red", "blue", "red"), entity("B")]}),
                RemoteCall("create_relations", {"relations": [relation("A", "B"), relation("B", "C")]}),
                RemoteCall("delete_entities", {"entityNames": ["B"]}),
                RemoteCall("delete_observations", {"deletions": [{"entityName": "A", "observations": ["blue"]}]}),
                RemoteCall("add_observations", {"observations": [{"entityName": "A", "contents": ["yellow", "red"]}]}),
            ],
            RemoteCall("read_graph"),
            RemoteCall("delete_everything"),
            lambda: graph(memory_file),
            meddle,
        )


@pytest.mark.parametrize("service", ["filesystem", "memory"])
def test_every_tool_of_the_server_is_classified(service: str, request: pytest.FixtureRequest) -> None:
    kind: DeclaredKind = request.getfixturevalue(service)
    target = kind.connect()
    try:
        tools = {str(tool["name"]): tool["annotations"] for tool in target.tools()}
    finally:
        target.close()
    assert tools.keys() == kind.tools.keys()
    for name, hints in tools.items():
        verdict = kind.describe(name, hints)
        assert verdict.reason
        reads = hints["readOnlyHint"]
        assert verdict.call_class is (CallClass.READ_ONLY if reads else CallClass.COMPENSABLE), name


# --- files ---


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\n", id="a line end"),
        pytest.param("\ufeffä€😀\u2028\x00\x7f".encode(), id="odd characters"),
        pytest.param(b"a\r\nb\rc\n\n", id="line ends"),
        pytest.param(b"x" * 10_000_000, id="10 MB", marks=pytest.mark.thorough),
    ],
)
def test_a_file_comes_back_byte_by_byte(file_trail: Trail, files: Path, content: bytes) -> None:
    path = files / "a b'\"ü.txt"
    path.write_bytes(content)
    path.chmod(0o640)
    before = tree(files)
    file_trail.call("write_file", path=str(path), content="something else entirely")
    after = tree(files)
    assert after != before
    file_trail.go(0)
    assert tree(files) == before
    file_trail.go(1)
    assert tree(files) == after


@pytest.mark.parametrize("tool", ["write_file", "edit_file"])
@pytest.mark.parametrize("content", [b"\xff\xfe", b"caf\xe9 one", "one \ufffd".encode()])
def test_a_file_that_the_server_could_not_write_back_is_refused(
    file_trail: Trail, files: Path, tool: str, content: bytes
) -> None:
    path = files / "binary"
    path.write_bytes(content)
    more = {"content": ""} if tool == "write_file" else {"edits": [{"oldText": "one", "newText": "two"}]}
    with pytest.raises(RemoteError, match="UTF-8") as caught:
        file_trail.call(tool, path=str(path), **more)
    assert caught.value.code == "call-refused"
    assert path.read_bytes() == content


def test_undo_data_over_the_limit_is_refused(filesystem: DeclaredKind, file_trail: Trail, files: Path) -> None:
    filesystem.undo_limit = 100_000
    (files / "big").write_text("x" * 100_001)
    with pytest.raises(RemoteError, match="undo_limit is 100000"):
        file_trail.call("write_file", path=str(files / "big"), content="")
    assert (files / "big").stat().st_size == 100_001


@pytest.mark.parametrize("path", ["/etc/planarian-test", "../outside"])
def test_what_the_server_denies_has_no_effect(file_trail: Trail, files: Path, path: str) -> None:
    before = tree(files.parent)
    with pytest.raises(RemoteError, match="Access denied") as caught:
        file_trail.call("write_file", path=path, content="x")
    assert (caught.value.code, file_trail.effects) == ("call-refused", [])
    assert tree(files.parent) == before


def test_edits_keep_what_they_do_not_name(file_trail: Trail, files: Path) -> None:
    path = files / "code.py"
    path.write_bytes(b"def f():\r\n\tx = 1\r\n\treturn x\r\n@@ -1 +1 @@\n\\ No newline at end of file")
    states = [tree(files)]
    for old, new in [("x = 1", "x = 2\n\ty = 3"), ("  return x", "return y"), ("@@ -1 +1 @@", ""), ("\n", "\n\n\n")]:
        result = file_trail.call("edit_file", path=str(path), edits=[{"oldText": old, "newText": new}])
        assert not result.get("isError"), result
        states.append(tree(files))
    assert all("else" not in effect.summary for effect in file_trail.effects), "what was expected is what came"
    for count in (3, 0, 4, 1, 2, 0):
        file_trail.go(count)
        assert tree(files) == states[count]


def test_a_dry_run_only_reads(filesystem: DeclaredKind) -> None:
    call = RemoteCall("edit_file", {"path": "a", "edits": [], "dryRun": True})
    assert filesystem.classify(call).call_class is CallClass.READ_ONLY
    assert filesystem.classify(RemoteCall("edit_file", {"path": "a", "edits": [], "dryRun": 1})).call_class is (
        CallClass.COMPENSABLE
    )


def test_a_call_without_an_effect_is_void(file_trail: Trail, files: Path) -> None:
    (files / "there").mkdir()
    (files / "a").write_text("a")
    file_trail.call("create_directory", path=str(files / "there"))
    file_trail.call("write_file", path=str(files / "a"), content="a")
    file_trail.call("edit_file", path=str(files / "a"), edits=[{"oldText": "nothing such", "newText": ""}])
    file_trail.call("move_file", source=str(files / "gone"), destination=str(files / "b"))
    file_trail.call("move_file", source=str(files / "a"), destination=str(files / "there"))
    file_trail.call("write_file", path=str(files / "gone/a"), content="a")
    assert file_trail.states == [EffectState.VOID] * 6


def test_names_of_one_file_may_differ(file_trail: Trail, files: Path) -> None:
    """Relative, with dots, through a link: the rehearsal doesn't take one's own later change for another writer's."""
    (files / "folder").mkdir()
    (files / "link").symlink_to("folder")
    states = [tree(files)]
    for name in ("folder/a", "./folder/../folder/a", str(files / "link/a"), "link/a"):
        file_trail.call("write_file", path=name, content=f"by {name}")
        states.append(tree(files))
    for count in (0, 4, 2, 0):
        file_trail.go(count)
        assert tree(files) == states[count]


@pytest.mark.parametrize("to", ["folder", "folder/file"])
def test_moving_a_link_moves_what_it_leads_to_and_back(file_trail: Trail, files: Path, to: str) -> None:
    (files / "folder").mkdir()
    (files / "folder/file").write_text("x")
    (files / "link").symlink_to(to)
    before = tree(files)
    file_trail.call("move_file", source="link", destination="moved")
    assert not (files / to).exists(), "that is what the server does"
    after = os.path.lexists(files / "link"), sorted(p.name for p in files.rglob("*"))
    file_trail.go(0)
    assert tree(files) == before
    file_trail.go(1)
    assert (os.path.lexists(files / "link"), sorted(p.name for p in files.rglob("*"))) == after
    file_trail.go(0)
    assert tree(files) == before


def test_a_new_folder_with_somebody_elses_file_is_left(file_trail: Trail, files: Path) -> None:
    file_trail.call("create_directory", path=str(files / "a/b"))
    (files / "a" / "theirs").write_text("theirs")
    with pytest.raises(CompensationConflict, match="what is in"):
        file_trail.go(0)
    assert (files / "a" / "theirs").read_text() == "theirs"
    (files / "a" / "theirs").unlink()
    file_trail.go(0)
    assert tree(files) == {}


def test_without_the_folder_for_undone_files_nothing_new_is_made(file_trail: Trail, files: Path) -> None:
    (files.parent / "undone").rmdir()
    for tool, more in (("write_file", {"content": ""}), ("create_directory", {})):
        with pytest.raises(RemoteError, match="isn't there"):
            file_trail.call(tool, path=str(files / "new"), **more)
    assert tree(files) == {}


def test_a_redo_that_lost_what_it_needs_is_stopped_before_anything_is_touched(file_trail: Trail, files: Path) -> None:
    (files / "a").write_text("old")
    file_trail.call("write_file", path=str(files / "a"), content="new")
    file_trail.call("write_file", path=str(files / "b"), content="b")
    file_trail.go(0)
    before = tree(files)
    (kept,) = (files.parent / "undone").iterdir()
    kept.unlink()
    with pytest.raises(CompensationError) as caught:
        file_trail.go(2)
    assert caught.value.code == "redo-impossible"
    assert tree(files) == before
    file_trail.go(1)
    assert (files / "a").read_text() == "new"


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("write_file", {"path": "new", "content": "x"}),
        ("write_file", {"path": "old", "content": "x"}),
        ("edit_file", {"path": "old", "edits": [{"oldText": "old", "newText": "x"}]}),
        ("create_directory", {"path": "d/e"}),
        ("move_file", {"source": "old", "destination": "moved"}),
    ],
)
def test_a_lost_file_call_is_settled(
    file_trail: Trail, files: Path, tool: str, arguments: dict[str, Any], made: bool
) -> None:
    (files / "old").write_text("old")
    before = tree(files)
    (file_trail.lose if made else file_trail.send)(tool, **arguments)
    assert file_trail.settle() is (EffectState.APPLIED if made else EffectState.VOID)
    file_trail.go(0)
    assert tree(files) == before


def test_a_lost_call_and_another_writer_is_for_people_to_decide(file_trail: Trail, files: Path) -> None:
    (files / "a").write_text("old")
    file_trail.send("write_file", path=str(files / "a"), content="new")
    (files / "a").write_text("theirs")
    with pytest.raises(CompensationError, match="neither as before") as caught:
        file_trail.settle()
    assert (caught.value.code, "--settle 1" in caught.value.remedy) == ("effect-undecided", True)


# --- the graph ---


def _fill(trail: Trail) -> None:
    trail.target.call(
        "create_entities", {"entities": [entity("A", "1", "2", "1"), entity("B"), entity("C", "x"), entity("D")]}
    )
    trail.target.call(
        "create_relations",
        {"relations": [relation("A", "B"), relation("B", "B"), relation("C", "A"), relation("E", "A")]},
    )


GRAPH_CALLS: Sequence[tuple[str, dict[str, Any]]] = [
    ("create_entities", {"entities": [entity("E", "new"), entity("A", "ignored"), entity("F")]}),
    ("delete_entities", {"entityNames": ["A", "nobody"]}),
    ("create_relations", {"relations": [relation("A", "B"), relation("B", "A"), relation("B", "A")]}),
    ("delete_relations", {"relations": [relation("B", "B"), relation("E", "A"), relation("A", "A")]}),
    ("add_observations", {"observations": [{"entityName": "A", "contents": ["2", "3", "3"]}]}),
    ("delete_observations", {"deletions": [{"entityName": "A", "observations": ["2"]}]}),
]


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize(("tool", "arguments"), GRAPH_CALLS)
def test_a_lost_graph_call_is_settled(
    memory_trail: Trail, memory_file: Path, tool: str, arguments: dict[str, Any], made: bool
) -> None:
    _fill(memory_trail)
    before = graph(memory_file)
    (memory_trail.lose if made else memory_trail.send)(tool, **arguments)
    assert (graph(memory_file) != before) is made
    assert memory_trail.settle() is (EffectState.APPLIED if made else EffectState.VOID)
    memory_trail.go(0)
    assert graph(memory_file) == before


@pytest.mark.parametrize(("tool", "arguments"), GRAPH_CALLS)
def test_others_may_write_elsewhere_in_the_graph(
    memory_trail: Trail, memory_file: Path, tool: str, arguments: dict[str, Any]
) -> None:
    _fill(memory_trail)
    before = graph(memory_file)
    memory_trail.call(tool, **arguments)
    theirs = {"entities": [entity("Z", "theirs")]}, {"relations": [relation("Z", "D"), relation("D", "Z")]}
    memory_trail.target.call("create_entities", theirs[0])
    memory_trail.target.call("create_relations", theirs[1])
    memory_trail.go(0)
    left = graph(memory_file)
    assert len(left) == len(before) + 3
    assert set(before) < set(left)


def test_somebody_elses_relation_to_a_new_entity_is_not_lost(memory_trail: Trail, memory_file: Path) -> None:
    _fill(memory_trail)
    memory_trail.call("create_entities", entities=[entity("N")])
    memory_trail.target.call("create_relations", {"relations": [relation("D", "N", "theirs")]})
    before = graph(memory_file)
    with pytest.raises(CompensationConflict, match="theirs"):
        memory_trail.go(0)
    assert graph(memory_file) == before


def test_an_entity_that_is_there_twice_is_refused(memory_trail: Trail, memory_file: Path) -> None:
    with pytest.raises(RemoteError, match="several of entity A"):
        memory_trail.call("create_entities", entities=[entity("A"), entity("A")])
    memory_trail.target.call("create_entities", {"entities": [entity("A", "1"), entity("A", "2")]})
    before = graph(memory_file)
    for tool, arguments in GRAPH_CALLS:
        if "relations" not in arguments:
            with pytest.raises(RemoteError, match="several of entity A"):
                memory_trail.call(tool, **arguments)
    with pytest.raises(RemoteError, match="twice"):
        memory_trail.call(
            "add_observations", observations=[{"entityName": "B", "contents": [text]} for text in ("x", "y")]
        )
    assert graph(memory_file) == before
