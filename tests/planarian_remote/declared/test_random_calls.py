"""Random calls of the real servers, undo to random positions and redo: the state is always the one of that position.

The oracle is what lies on disk. Calls that have no effect, fail or are refused are part of it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from planarian_core.errors import RemoteError
from planarian_core.model import EffectState
from planarian_core.testing.scripted_server import Trail

pytestmark = pytest.mark.needs("npm")

Call = tuple[str, dict[str, Any], bool]
LOST = st.booleans()
SETTINGS = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def _walk(trail: Trail, steps: list[Call | int], state: Callable[[], Any]) -> None:
    """Make calls, recorded or lost and then settled; a number in between means: go to that position (of those there
    are), and go on from there.
    """
    trail.effects.clear()
    states: dict[int, Any] = {0: state()}
    line = [0]  # the positions of the present way
    for step in steps:
        if isinstance(step, int):
            chosen = line[step % len(line)]
            trail.go(chosen)
            assert state() == states[chosen], f"undone to {chosen}: {trail.effects}"
            trail.go(line[-1])
            assert state() == states[line[-1]], f"made again to {line[-1]}: {trail.effects}"
            trail.go(chosen)
            assert state() == states[chosen], f"undone again to {chosen}: {trail.effects}"
            trail.forget_after(chosen)
            line = [position for position in line if position <= chosen]
            continue
        before = state()
        tool, arguments, lost = step
        with suppress(RemoteError):
            if lost:
                trail.lose(tool, **arguments)
                trail.settle()
            else:
                trail.call(tool, **arguments)
            assert "(" not in trail.effects[-1].summary, "what was expected is what came"
            if trail.states[-1] is EffectState.APPLIED:
                line.append(len(trail.effects))
        if line[-1] not in states:
            states[line[-1]] = state()
        else:
            assert state() == before, f"{step} counts as without effect"
    trail.go(0)
    assert state() == states[0]


# --- files ---

NAMES = st.sampled_from(["a", "b", "d/a", "d/e/b", "d", "d/e", "./d/../a", "f/g/h"])
CONTENTS = st.sampled_from(["", "one\n", "one\r\ntwo", "three\ntwo\none\n", "\u2028é", "one\ufffd"])
EDITS = st.lists(
    st.fixed_dictionaries({"oldText": st.sampled_from(["one", "two\n", " three", "\n"]), "newText": CONTENTS}),
    min_size=1,
    max_size=2,
)
FILE_CALLS = st.one_of(
    st.tuples(st.just("write_file"), st.fixed_dictionaries({"path": NAMES, "content": CONTENTS}), LOST),
    st.tuples(st.just("edit_file"), st.fixed_dictionaries({"path": NAMES, "edits": EDITS}), LOST),
    st.tuples(st.just("create_directory"), st.fixed_dictionaries({"path": NAMES}), LOST),
    st.tuples(st.just("move_file"), st.fixed_dictionaries({"source": NAMES, "destination": NAMES}), LOST),
)


def _tree(folder: Path) -> dict[str, tuple[int, bytes | None]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mode, None if path.is_dir() else path.read_bytes())
        for path in sorted(folder.rglob("*"))
    }


def _write(path: str, content: str) -> Call:
    return "write_file", {"path": path, "content": content}, False


def _edit(*edits: tuple[str, str], lost: bool = False) -> Call:
    return "edit_file", {"path": "a", "edits": [{"oldText": old, "newText": new} for old, new in edits]}, lost


def _move(source: str, destination: str) -> Call:
    return "move_file", {"source": source, "destination": destination}, False


@SETTINGS
@given(steps=st.lists(FILE_CALLS | st.integers(0, 9), max_size=14))
@example([_write("a", "one\r\ntwo"), _edit(("one", ""), ("\n", "one\n"))])  # only the line ends are others
@example([_write("a", "one\r\ntwo"), _edit(("one", ""), lost=True)])
@example([_write("a", "one\n"), _move("a", "d/a"), _write("a", ""), ("create_directory", {"path": "a"}, False)])
@example([_move("a", "c"), _write("a", ""), _move("a", "d/a"), ("create_directory", {"path": "a"}, False)])
@example([_write("a", "one\r\ntwo"), _move("a", "d/e"), _move("b", "a")])  # what lies at a isn't what was written
def test_files(file_trail: Trail, files: Path, steps: list[Call | int]) -> None:
    for folder in (files, files.parent / "undone"):
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    (files / "a").write_bytes(b"one\ntwo\n")
    (files / "b").write_bytes(b"\xff")
    (files / "d").mkdir()
    (files / "a").chmod(0o600)
    _walk(file_trail, steps, lambda: _tree(files))


# --- the graph ---

ENTITIES = st.sampled_from(["A", "B", "C", "é"])
OBSERVATIONS = st.lists(st.sampled_from(["x", "y", "${call.x}", ""]), max_size=3)
RELATIONS = st.lists(
    st.fixed_dictionaries({"from": ENTITIES, "to": ENTITIES, "relationType": st.sampled_from(["knows", "is"])}),
    max_size=3,
)
GRAPH_CALLS = st.one_of(
    st.tuples(
        st.just("create_entities"),
        st.fixed_dictionaries(
            {
                "entities": st.lists(
                    st.fixed_dictionaries(
                        {"name": ENTITIES, "entityType": st.sampled_from("tu"), "observations": OBSERVATIONS}
                    ),
                    max_size=3,
                )
            }
        ),
        LOST,
    ),
    st.tuples(st.just("delete_entities"), st.fixed_dictionaries({"entityNames": st.lists(ENTITIES, max_size=3)}), LOST),
    st.tuples(st.just("create_relations"), st.fixed_dictionaries({"relations": RELATIONS}), LOST),
    st.tuples(st.just("delete_relations"), st.fixed_dictionaries({"relations": RELATIONS}), LOST),
    st.tuples(
        st.just("add_observations"),
        st.fixed_dictionaries(
            {
                "observations": st.lists(
                    st.fixed_dictionaries({"entityName": ENTITIES, "contents": OBSERVATIONS}), max_size=2
                )
            }
        ),
        LOST,
    ),
    st.tuples(
        st.just("delete_observations"),
        st.fixed_dictionaries(
            {
                "deletions": st.lists(
                    st.fixed_dictionaries({"entityName": ENTITIES, "observations": OBSERVATIONS}), max_size=2
                )
            }
        ),
        LOST,
    ),
)


@SETTINGS
@given(steps=st.lists(GRAPH_CALLS | st.integers(0, 9), max_size=14))
def test_the_graph(memory_trail: Trail, memory_file: Path, steps: list[Call | int]) -> None:
    def state() -> list[str]:
        return sorted(line for line in memory_file.read_text().split("\n") if line)

    memory_file.write_text(
        '{"type":"entity","name":"A","entityType":"t","observations":["x","x","y"]}\n'
        '{"type":"relation","from":"A","to":"B","relationType":"knows"}'
    )
    _walk(memory_trail, steps, state)
