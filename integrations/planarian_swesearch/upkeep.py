"""What a search owes its home: outcomes are recorded once, states that nobody needs are given up, nothing is left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from planarian_core import Planarian, Sandbox
from planarian_core.context import one_line
from planarian_core.errors import LineageError
from planarian_core.faults import reach
from planarian_core.model import Outcome
from planarian_swesearch.states import description_of, give_up, left_forks, left_statepoints, remove_fork, root_lost
from planarian_swesearch.tree import Node, NodeStatus, Tree
from planarian_swesearch.values import Budget

_GIVEN_UP_AT_ONCE = 8
"""Collecting what is left costs about the same for one statepoint as for many."""


class Upkeep:
    """The states and outcomes of one search.

    Args:
        tell: gets (kind, node, text) of what is done; see :class:`planarian_swesearch.Event`.
    """

    def __init__(
        self, planarian: Planarian, sandbox: Sandbox, tree: Tree, tell: Callable[[str, Node | None, str], None]
    ) -> None:
        self._planarian = planarian
        self._sandbox = sandbox
        self._tree = tree
        self._tell = tell
        self._refused: set[str] = set()

    def outcomes(self, node: Node, target: float | None = None) -> tuple[Outcome, ...]:
        """What was tried from a node and how it ended, oldest first: what is recorded, by anyone, and what is about to
        be, of actions whose states are still being captured.
        """
        recorded = self._planarian.registry.outcomes(node.statepoint) if node.statepoint else ()
        authors = {outcome.author for outcome in recorded}
        tried = (self._outcome(child, target) for child in node.children)
        return (*recorded, *(outcome for outcome in tried if outcome.author not in authors))

    def add_outcomes(self, nodes: Iterable[Node], target: float | None = None) -> None:
        """Say of the states that actions were tried from how these ended. Once: the author names the node.

        Args:
            target: what is worth this has succeeded.
        """
        for node in nodes:
            if node.parent is None or (parent := self._planarian.registry.find(node.parent.statepoint)) is None:
                continue
            made = self._outcome(node, target)
            if all(outcome.author != made.author for outcome in self._planarian.registry.outcomes(parent.id)):
                self._planarian.append_outcome(parent, made.text, status=made.status, author=made.author)

    def _outcome(self, node: Node, target: float | None) -> Outcome:
        assert node.parent is not None
        failed = node.status is NodeStatus.FAILED
        reached = target is not None and node.value is not None and node.value >= target
        how = "failed" if failed else f"is worth {node.value:.3g}"
        text = f"{node.label()} {how}: {one_line(node.text or node.observation, 500)}"
        status = "failed" if failed else "succeeded" if reached else "note"
        return Outcome("", node.parent.statepoint, text, status, f"{self._tree.id} node {node.id}")

    # --- giving states up ---

    def mark_spent(self, budget: Budget, at_least: int = _GIVEN_UP_AT_ONCE) -> list[Node]:
        """Mark the states that nobody needs any more, once they are that many, and those that are beyond ``keep``."""
        held = [node for node in self._tree.nodes.values() if node.held and node is not self._tree.root]
        best = self._tree.best()
        free = [node for node in held if node is not best and not node.reserved]
        spent = [node for node in free if not node.grows(budget)]
        growing = [node for node in free if node.grows(budget)]
        over = max(len(held) - len(spent) - budget.keep, 0)
        for node in sorted(growing, key=lambda node: (node.mean, -node.id))[:over]:
            node.status = NodeStatus.PRUNED
            spent.append(node)
        if len(spent) < at_least and not over and len(held) <= budget.keep:
            return []
        for node in spent:
            node.released = True
        return spent

    def release(self, nodes: Sequence[Node]) -> None:
        """Give marked states up, after the tree that says so was saved; what is needed this moment is tried again with
        the next ones.
        """
        if not nodes and not self._refused:
            return
        marked = self._refused | {node.statepoint for node in nodes}
        self._refused = give_up(self._planarian, self._sandbox, marked)
        reach("search.released")
        for node in nodes:
            self._tell("released", node, node.statepoint)

    # --- after a restart ---

    def take_stock(self) -> None:
        """Compare the tree with what is there: remove what a killed search left, do what it had no time for, name what
        is lost.

        Raises:
            LineageError: ``search-root-lost``.
        """
        self.sweep()
        for node in self._tree.nodes.values():
            node.reserved = node.passing = 0
            if node.held:
                self._hold(node)
        self.add_outcomes(self._tree.nodes.values())
        self._refused |= {node.statepoint for node in self._tree.nodes.values() if node.released}
        self.release([])

    def _hold(self, node: Node) -> None:
        note = description_of(self._tree.id, node.id, node.label())
        try:
            self._planarian.hold(node.statepoint, note, of=self._sandbox)
        except LineageError as error:
            if node is self._tree.root:
                raise root_lost(error) from error
            node.status, node.released = NodeStatus.LOST, True
            self._tell("lost", node, node.statepoint)

    def sweep(self) -> None:
        """Remove the search's forks, and its statepoints that the tree doesn't know. None may be in use."""
        for fork in left_forks(self._planarian, self._sandbox, self._tree.id):
            remove_fork(self._planarian, fork)
            self._tell("removed", None, fork.id)
        known = [node.statepoint for node in self._tree.nodes.values()]
        left = left_statepoints(self._planarian, self._sandbox, self._tree.id, known)
        self._refused |= give_up(self._planarian, self._sandbox, left)
        for statepoint in left:
            self._tell("removed", None, statepoint)
