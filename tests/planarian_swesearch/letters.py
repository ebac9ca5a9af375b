"""A small thing to search: letters are written to a file, until they are the word.

Run as a program, for a test to kill: HOME SANDBOX TREE FORKS ITERATIONS.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from planarian_core import Planarian, Sandbox
from planarian_core.testing.fakes import FakePlugin
from planarian_swesearch import Budget, Judgement, Node, Tree, TreeSearch

WORD = "abb"


def propose(node: Node) -> list[str]:
    """The same each time; ``exit`` fails as an action."""
    return ["a", "b", "!"]


def act(sandbox: Sandbox, action: str) -> object:
    if action == "!":
        raise ValueError("no such letter")
    return sandbox.run(["sh", "-c", f"printf {action} >>letters; cat letters"])


def value(node: Node, sandbox: Sandbox) -> Judgement:
    """How many letters are right; a wrong one ends it."""
    right = 0
    for seen, wanted in zip(node.observation, WORD, strict=False):
        if seen != wanted:
            break
        right += 1
    return Judgement(right / len(WORD), terminal=right == len(WORD), text=f"{right} right")


def search(planarian: Planarian, sandbox: Sandbox, path: Path, **settings: Any) -> TreeSearch:
    return TreeSearch(
        planarian, sandbox, **{"propose": propose, "act": act, "value": value, "path": path, "seed": 1, **settings}
    )


def shape(tree: Tree) -> list[dict[str, Any]]:
    """All that two searches of the same seed have alike."""
    nodes = tree.to_dict()["nodes"]
    return [{key: node[key] for key in node if key != "statepoint"} for node in nodes]


def main() -> None:
    home, name, path, forks, iterations = sys.argv[1:]
    with Planarian.open(home, plugins=[FakePlugin()]) as planarian:
        sandbox = planarian.sandbox(name)
        with search(planarian, sandbox, Path(path), forks=int(forks)) as found:
            found.run(Budget(iterations=int(iterations)))


if __name__ == "__main__":
    main()
