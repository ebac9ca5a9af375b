"""A search that goes on in a process of its own, for a test that kills it."""

from __future__ import annotations

import sys

from moatless.actions.finish import Finish
from moatless.agent.agent import ActionAgent
from moatless.repository.file import FileRepository
from planned import PlannedModel, Worth, step  # type: ignore[import-not-found]  # beside this script

from planarian_core import Planarian
from planarian_swesearch.moatless import NodeEnvironments, RunCommand, StatepointSearchTree


def main(home: str, sandbox: str, repository: str, path: str, forks: str) -> None:
    with Planarian.open(home) as planarian:
        environments = NodeEnvironments(planarian, planarian.sandbox(sandbox), forks=forks == "forks")
        actions = [RunCommand(runtime=environments), Finish()]
        agent = ActionAgent(completion=PlannedModel(step), system_prompt="Search.", actions=actions)
        files = FileRepository(repo_path=repository)
        tree = StatepointSearchTree.from_file(
            path, repository=files, runtime=environments, agent=agent, value_function=Worth()
        )
        tree.max_iterations += 4
        tree.run_search()


if __name__ == "__main__":
    main(*sys.argv[1:])
