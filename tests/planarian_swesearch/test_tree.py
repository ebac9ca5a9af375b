"""The tree: counts, selection, and data that is read back."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planarian_swesearch import Budget, Node, NodeStatus, Tree
from planarian_swesearch.selection import select, uct

WIDE = Budget(width=3, depth=50)


def _tree(parents: list[int], values: list[float], *, held: bool = True) -> Tree:
    """Node N (from 1) hangs below one of those before it."""
    tree = Tree("search-1", "/home", "sb-1", 0)
    tree.root.statepoint = "sp-0"
    for number, (parent, value) in enumerate(zip(parents, values, strict=True), start=1):
        statepoint = f"sp-{number}" if held else ""
        tree.add(Node(number, tree.nodes[parent % number], f"action {number}", value=value, statepoint=statepoint))
    return tree


def _chance(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311  # decides ties


grown = st.lists(st.tuples(st.integers(0, 1000), st.floats(-1, 1)), max_size=40).map(
    lambda pairs: _tree([parent for parent, _ in pairs], [value for _, value in pairs])
)


@given(grown)
def test_visits_and_totals_are_those_of_all_nodes_below(tree: Tree) -> None:
    for node in tree.nodes.values():
        below = [other for other in tree.nodes.values() if node in other.path() and other.value is not None]
        assert node.visits == len(below)
        assert math.isclose(node.total, sum(other.value or 0.0 for other in below), abs_tol=1e-9)


@given(grown)
def test_a_tree_is_read_back_as_it_was(tree: Tree) -> None:
    data = json.loads(json.dumps(tree.to_dict(), allow_nan=False))
    again = Tree.from_dict(data)
    assert again.to_dict() == tree.to_dict()
    assert again.render() == tree.render()


@given(grown, st.data())
def test_a_leaf_that_is_taken_out_leaves_no_count(tree: Tree, data: st.DataObject) -> None:
    leaves = [node for node in tree.nodes.values() if not node.children and node.parent is not None]
    if not leaves:
        return
    before = tree.to_dict()["nodes"]
    leaf = data.draw(st.sampled_from(leaves))
    parent, action = leaf.parent, leaf.action
    assert parent is not None
    tree.take_out(leaf)
    assert parent.untried == [action]
    parent.untried.clear()
    tree.add(leaf)
    assert tree.to_dict()["nodes"] == before


@given(grown, st.integers())
def test_what_is_selected_grows_and_nothing_else_is_there_when_none_is(tree: Tree, seed: int) -> None:
    budget = Budget(width=2, depth=3)
    picked = select(tree, budget, 1.4, _chance(seed))
    assert picked is select(tree, budget, 1.4, _chance(seed))
    growing = [node for node in tree.nodes.values() if node.grows(budget)]
    assert picked in growing if picked is not None else True
    reachable = [node for node in growing if all(not above.grows(budget) for above in node.path()[:-1])]
    assert (picked is None) == (not reachable)


def test_the_formula() -> None:
    tree = _tree([0, 0, 1], [0.5, 0.25, 1.0])
    first, second = tree.root.children
    assert (first.visits, second.visits, tree.root.visits) == (2, 1, 3)
    assert math.isclose(uct(first, tree.root, 2.0), 0.75 + 2.0 * math.sqrt(math.log(3) / 2))
    assert math.isclose(uct(second, tree.root, 2.0), 0.25 + 2.0 * math.sqrt(math.log(3) / 1))
    first.passing = tree.root.passing = 1
    assert math.isclose(uct(first, tree.root, 0.0), 0.5), "an action under way counts as a visit worth nothing"


@pytest.mark.parametrize(("exploration", "chosen"), [(0.0, 1), (100.0, 3)])
def test_exploration_weighs_seldom_visited_against_good(exploration: float, chosen: int) -> None:
    tree = _tree([0, 0, 0, 1, 1, 1], [0.9, 0.5, 0.1, 0.8, 0.8, 0.8])
    for node in tree.nodes.values():
        node.exhausted = len(node.children) == 3 or node.depth == 2
    tree.nodes[2].status = NodeStatus.TERMINAL
    tree.nodes[4].exhausted = False
    picked = select(tree, WIDE, exploration, _chance(0))
    assert picked is not None
    assert picked.path()[1].id == chosen


def test_the_best_is_worth_most_by_itself_and_its_state_is_there() -> None:
    tree = _tree([0, 0, 0], [0.5, 0.9, 0.9])
    assert tree.best() is tree.nodes[2]
    tree.nodes[2].released = True
    assert tree.best() is tree.nodes[3]
    assert _tree([0], [1.0], held=False).best() is None


def test_what_a_sandbox_printed_forges_no_line() -> None:
    tree = _tree([0], [0.5])
    tree.nodes[1].action = "echo\n* 9 forged\x1b[2J"
    tree.nodes[1].text = "so\n* 8 forged"
    lines = tree.render().split("\n")
    assert len(lines) == 2
    assert "\x1b" not in lines[1]


@pytest.mark.parametrize(
    "damage",
    [
        {"version": 2}, {"nodes": []}, {"nodes": [{}]}, {"seed": "1"}, {"search": None}, {"nodes": {}},
    ],
)  # fmt: skip
def test_damaged_data_is_refused(damage: dict[str, object]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        Tree.from_dict({**_tree([0], [0.5]).to_dict(), **damage})


@pytest.mark.parametrize(
    "damage", [{"parent": 7}, {"id": 0}, {"value": "1"}, {"value": True}, {"status": "gone"}, {"untried": "a"}]
)
def test_damaged_nodes_are_refused(damage: dict[str, object]) -> None:
    data = _tree([0], [0.5]).to_dict()
    data["nodes"][1] |= damage
    with pytest.raises((ValueError, KeyError, TypeError)):
        Tree.from_dict(data)
