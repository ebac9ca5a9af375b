"""A model that answers by a plan, and a value function that needs none: nothing here asks a network."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from moatless.actions.model import ActionArguments
from moatless.completion.completion import CompletionModel
from moatless.completion.model import Completion, Usage
from moatless.node import Node
from moatless.value_function.base import ValueFunction
from moatless.value_function.model import Reward
from pydantic import PrivateAttr

from planarian_core.testing.workloads import ASK_COUNTER
from planarian_swesearch.moatless import RunCommandArgs

Plan = Callable[[int, int], ActionArguments]
"""Takes the depth of the new node, from 1, and how often something was tried from its parent's state before."""


class PlannedModel(CompletionModel):
    """Knows depth and tries from what it is told, as a real model would."""

    _plan: Any = PrivateAttr()
    _asked: list[str] = PrivateAttr(default_factory=list)

    def __init__(self, plan: Plan) -> None:
        super().__init__(model="planned")
        self._plan = plan

    @property
    def asked(self) -> list[str]:
        """The last message of each question."""
        return self._asked

    def create_completion(
        self, messages: Sequence[Any], system_prompt: str, actions: Any = None
    ) -> tuple[ActionArguments, Completion]:
        depth = 1 + sum(message.role == "assistant" for message in messages)
        last = messages[-1].content or ""
        self._asked.append(last)
        tries = len(re.findall(r"^- (?:note|failed|succeeded): ", last, re.MULTILINE))
        return self._plan(depth, tries), Completion(model="planned", usage=Usage())


class Worth(ValueFunction):
    """What a node is worth is the last number that its action printed."""

    def __init__(self) -> None:
        super().__init__(completion=None)

    def get_reward(self, node: Node) -> tuple[Reward, Completion]:
        numbers = re.findall(r"-?\d+", node.observation.message)
        value = int(numbers[-1]) if numbers else 0
        reward = Reward(value=max(min(value, 100), -100), explanation=f"it printed {value}")
        return reward, Completion(model="planned", usage=Usage())


def step(depth: int, tries: int) -> RunCommandArgs:
    """Writes its name behind those of the nodes above, and adds ``tries`` + 1 to what the server ``counter`` counts."""
    # A server that is started anew in a fork takes its time.
    asks = f"until python3 -c '{ASK_COUNTER}' counter add >/dev/null 2>&1; do sleep 0.05; done; " * (tries + 1)
    writes = f"echo -n '{depth}.{tries} ' >> trail && cat trail && echo {10 * depth + tries}"
    return RunCommandArgs(command=asks + writes)


def expected(node: Node) -> tuple[str, int]:
    """What the environment of a node must hold: the file, and the server's count."""
    steps, added = "", 0
    for each in node.get_trajectory()[1:]:
        name = each.action.command.split("echo -n '")[1].split(" '")[0]
        steps += f"{name} "
        added += 1 + int(name.split(".")[1])
    return steps, added


def shape(tree: Any) -> list[Any]:
    """What two searches have in common that did the same."""
    nodes = tree.root.get_all_nodes()
    return [
        (n.node_id, n.parent and n.parent.node_id, n.action and n.action.command, n.visits, n.value, n.feedback)
        for n in nodes
    ]
