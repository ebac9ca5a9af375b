"""Planarian for moatless-tree-search (SWE-search; ``docs/swesearch.md``).

::

    environments = NodeEnvironments(planarian, sandbox, forks=True)
    agent = ActionAgent(completion=model, system_prompt=..., actions=[RunCommand(runtime=environments), Finish()])
    tree = StatepointSearchTree.create(
        message=..., repository=FileRepository(repo_path="repo"), agent=agent, value_function=...,
        runtime=environments, persist_path="tree.json", max_expansions=3, max_iterations=30,
    )
    best = tree.run_search()
    if best is not None:
        tree.take(best)
"""

from __future__ import annotations

from planarian_core.requirements import require

require("moatless-tree-search", "moatless", at_least=(0, 0, 4), below=(0, 0, 5))

from planarian_swesearch.moatless_actions import RunCommand, RunCommandArgs  # noqa: E402  # needs moatless
from planarian_swesearch.moatless_environments import NodeEnvironments  # noqa: E402
from planarian_swesearch.moatless_tree import StatepointSearchTree  # noqa: E402

__all__ = ["NodeEnvironments", "RunCommand", "RunCommandArgs", "StatepointSearchTree"]
