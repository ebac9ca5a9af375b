"""The tree of a search: nodes with their states and values, and what both look like on a terminal and in a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from planarian_core.context import one_line
from planarian_core.model import Outcome
from planarian_swesearch.values import Action, Budget

TREE_VERSION = 1


class NodeStatus(StrEnum):
    """``OPEN``: can be gone on from, as the budget allows. ``TERMINAL``: its judgement says that nothing follows.
    ``FAILED``: the action did, there is no state. ``PRUNED``: given up for space. ``LOST``: somebody removed its state.
    """

    OPEN = "open"
    TERMINAL = "terminal"
    FAILED = "failed"
    PRUNED = "pruned"
    LOST = "lost"


@dataclass(eq=False, repr=False)
class Node:
    """A state of the environment, and how it was reached. Callables get it to read.

    ``action`` led here from ``parent`` and showed ``observation`` (both None and empty for the root). ``value`` and
    ``text`` are its own judgement; ``visits`` and ``total`` count it and all below it. ``statepoint`` is the id of its
    state, in the searched sandbox; still empty while it is being captured. ``released``: the state was given up.
    ``missing`` names what the statepoint did not capture. ``outcomes``: what was tried from this state and how it
    ended, by anyone, newest last; read again before each proposal.
    """

    id: int
    parent: Node | None = None
    action: Action = None
    observation: str = ""
    value: float | None = None
    text: str = ""
    status: NodeStatus = NodeStatus.OPEN
    statepoint: str = ""
    released: bool = False
    missing: tuple[str, ...] = ()
    untried: list[Action] = field(default_factory=list)
    exhausted: bool = False
    children: list[Node] = field(default_factory=list)
    outcomes: tuple[Outcome, ...] = ()
    visits: int = 0
    total: float = 0.0
    capturing: bool = False
    reserved: int = 0
    """Actions from here that are being tried in this round."""
    passing: int = 0
    """Actions of this round that are tried here or below: each counts as a visit that was worth nothing."""

    def __repr__(self) -> str:
        return f"Node({self.id}, {self.label()!r}, value={self.value})"

    @property
    def depth(self) -> int:
        return 0 if self.parent is None else len(self.path()) - 1

    @property
    def mean(self) -> float:
        return self.total / self.visits if self.visits else 0.0

    @property
    def held(self) -> bool:
        """Whether its state can be gone back to."""
        return bool(self.statepoint) and not self.released

    def path(self) -> list[Node]:
        """From the root to this node."""
        way: list[Node] = []
        node: Node | None = self
        while node is not None:
            way.append(node)
            node = node.parent
        return way[::-1]

    def actions(self) -> list[Action]:
        """What led from the root to here."""
        return [node.action for node in self.path()[1:]]

    def grows(self, budget: Budget) -> bool:
        """Whether one more action can be tried from here, besides those under way."""
        if self.status is not NodeStatus.OPEN or not (self.held or self.capturing) or self.depth >= budget.depth:
            return False
        if len(self.children) + self.reserved >= budget.width:
            return False
        return len(self.untried) > self.reserved or (not self.exhausted and not self.reserved)

    def label(self) -> str:
        """Its action on one line."""
        text = self.action if isinstance(self.action, str) else str(self.action)
        return "root" if self.parent is None else one_line(text, 200)


class Tree:
    """All nodes of a search, by id. ``id`` is the search's: its forks and statepoints carry it."""

    def __init__(self, search_id: str, home: str, sandbox: str, seed: int) -> None:
        self.id = search_id
        self.home = home
        self.sandbox = sandbox
        self.seed = seed
        self.root = Node(0)
        self.nodes = {0: self.root}

    def add(self, node: Node) -> None:
        """Let a node that was tried count, in the order of ids."""
        assert node.parent is not None
        node.parent.children.append(node)
        node.parent.children.sort(key=lambda child: child.id)
        self.nodes[node.id] = node
        _count(node)

    def take_out(self, node: Node) -> None:
        """Forget a leaf: its action goes back to what is to be tried."""
        assert node.parent is not None
        assert not node.children
        node.parent.children.remove(node)
        node.parent.untried.insert(0, node.action)
        del self.nodes[node.id]
        _count(node.parent)

    def next_id(self) -> int:
        return max(self.nodes) + 1

    def best(self) -> Node | None:
        """The node whose own value is the highest, of those whose state is there; the first one of equals."""
        found = [node for node in self.nodes.values() if node.value is not None and node.held]
        return max(found, key=lambda node: (node.value or 0.0, -node.id), default=None)

    def walk(self) -> Iterator[tuple[int, Node]]:
        """(depth, node) from the root, each before its children."""
        waiting = [(0, self.root)]
        while waiting:
            depth, node = waiting.pop()
            yield depth, node
            waiting += [(depth + 1, child) for child in reversed(node.children)]

    def render(self) -> str:
        """One line a node, for people; what a sandbox printed can't forge another line."""
        best = self.best()
        return "\n".join("  " * depth + _line(node, node is best) for depth, node in self.walk())

    # --- as data ---

    def to_dict(self) -> dict[str, Any]:
        """Plain data: ``nodes`` in the order of their ids, each with its ``parent``'s id, visits, total and values."""
        nodes = [_node_data(node) for _, node in sorted(self.nodes.items())]
        return {
            "version": TREE_VERSION, "search": self.id, "home": self.home, "sandbox": self.sandbox, "seed": self.seed,
            "nodes": nodes,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Tree:
        """The tree that :meth:`to_dict` made; visits and totals are counted anew.

        Raises:
            ValueError, KeyError, TypeError: it is no such data.
        """
        if data["version"] != TREE_VERSION:
            raise ValueError(f"version {data['version']!r} is not {TREE_VERSION}")
        search_id, home, sandbox = (_typed(data, key, str) for key in ("search", "home", "sandbox"))
        tree = cls(search_id, home, sandbox, _typed(data, "seed", int))
        for number, entry in enumerate(_typed(data, "nodes", list)):
            node = _node_of(entry)
            if number == 0:
                tree.root, tree.nodes = node, {node.id: node}
                continue
            parent = tree.nodes[_typed(entry, "parent", int)]
            if node.id in tree.nodes:
                raise ValueError(f"node {node.id} is there twice")
            node.parent = parent
            tree.add(node)
        if tree.root.id != 0 or not data["nodes"]:
            raise ValueError("there is no root")
        return tree


def _count(node: Node) -> None:
    """Backpropagation: visits and totals from here up. From the children's sums each time, so that they don't depend on
    the order in which nodes came.
    """
    for each in reversed(node.path()):
        own = each.value is not None
        each.visits = own + sum(child.visits for child in each.children)
        each.total = (each.value or 0.0) + sum(child.total for child in each.children)


def _line(node: Node, best: bool) -> str:
    parts = [f"{node.id} {node.label()}"]
    if node.value is not None:
        parts.append(f"value {node.value:.3g}")
    parts.append(f"visits {node.visits}, mean {node.mean:.3g}")
    if node.status is not NodeStatus.OPEN:
        parts.append(node.status)
    parts.append("released" if node.released else node.statepoint or "no state")
    if node.text:
        parts.append(one_line(node.text, 80))
    return ("* " if best else "- ") + " | ".join(parts)


_PLAIN: dict[str, type] = {
    "id": int, "observation": str, "text": str, "statepoint": str, "released": bool, "untried": list, "exhausted": bool,
}  # fmt: skip


def _node_data(node: Node) -> dict[str, Any]:
    data = {name: getattr(node, name) for name in (*_PLAIN, "action", "value", "status", "missing", "visits", "total")}
    parent = node.parent.id if node.parent else None
    return {**data, "parent": parent, "status": node.status.value, "missing": list(node.missing)}


def _node_of(data: Mapping[str, Any]) -> Node:
    value = data["value"]
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise TypeError(f"value {value!r}")
    return Node(
        **{name: _typed(data, name, kind) for name, kind in _PLAIN.items()},
        action=data["action"],
        value=None if value is None else float(value),
        status=NodeStatus(data["status"]),
        missing=tuple(map(str, _typed(data, "missing", list))),
    )


def _typed(data: Mapping[str, Any], key: str, kind: type) -> Any:
    value = data[key]
    if type(value) is not kind:
        raise TypeError(f"{key} is {type(value).__name__}, not {kind.__name__}")
    return value
