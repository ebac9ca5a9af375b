"""Which node to go on from: UCT (Kocsis & Szepesvári 2006, "Bandit based Monte-Carlo Planning", section 2.3).

From the root down, while the node at hand doesn't grow any more, to the child with the highest

    mean(child) + exploration * sqrt(ln(visits(node)) / visits(child))

among those below which something grows. ``mean`` is over the child's own value and all values below it, as SWE-search
has it (arXiv 2410.20285): there is no random play-out, a state is judged when it is reached. An action that is being
tried in this round counts as a visit worth nothing on the way to it, so that a round's actions spread.
"""

from __future__ import annotations

import math
import random

from planarian_swesearch.tree import Node, Tree
from planarian_swesearch.values import Budget


def select(tree: Tree, budget: Budget, exploration: float, chance: random.Random) -> Node | None:
    """The node to try one more action from; None where nothing grows.

    Args:
        chance: decides between equals.
    """
    growing = _growing(tree, budget)
    node = tree.root
    if node.id not in growing:
        return None
    while not node.grows(budget):
        children = [child for child in node.children if child.id in growing]
        scores = [uct(child, node, exploration) for child in children]
        highest = max(scores)
        node = chance.choice([child for child, score in zip(children, scores, strict=True) if score == highest])
    return node


def uct(child: Node, parent: Node, exploration: float) -> float:
    """The formula above; visits of a child are never 0: each is judged when it comes to be, and a failure counts."""
    visits = child.visits + child.passing
    return child.total / visits + exploration * math.sqrt(math.log(parent.visits + parent.passing) / visits)


def _growing(tree: Tree, budget: Budget) -> set[int]:
    """The ids of nodes that grow, or below which one does."""
    found: set[int] = set()
    for _, node in reversed(list(tree.walk())):
        if node.id in found or node.grows(budget):
            found.add(node.id)
            if node.parent is not None:
                found.add(node.parent.id)
    return found
