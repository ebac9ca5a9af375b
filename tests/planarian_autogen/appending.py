"""A workflow whose steps append letters to a file in the environment.

Run as a program, for a test to kill: HOME WORKSPACE CHECKPOINTS LETTER POINT; the fault point POINT is switched on when
the step LETTER has ended.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from agent_framework import Executor, FileCheckpointStorage, Workflow, WorkflowBuilder, WorkflowContext, handler

from planarian_autogen import Environment
from planarian_autogen.agent_framework import StatepointCheckpointStorage
from planarian_core import Planarian

NAME = "steps"


class Append(Executor):
    """Appends a letter to the file ``f``, and hands over."""

    def __init__(self, letter: str, environment: Environment, killed_after: str, point: str) -> None:
        super().__init__(id=letter)
        self._environment, self._killed_after, self._point = environment, killed_after, point

    @handler
    async def work(self, text: str, context: WorkflowContext[str, str]) -> None:
        done = await self._environment.run(f"echo -n {self.id} >> f; cat f")
        if self.id == self._killed_after:
            os.environ["PLANARIAN_FAULT"] = f"{self._point}=kill"
        await (context.yield_output(done.stdout) if self.id == "c" else context.send_message(text + self.id))


def workflow(environment: Environment, storage: Any, killed_after: str = "", point: str = "") -> Workflow:
    """Three steps: a, b, c; the output is what the file holds then."""
    a, b, c = (Append(letter, environment, killed_after, point) for letter in "abc")
    builder = WorkflowBuilder(start_executor=a, name=NAME, checkpoint_storage=storage, output_from=[c])
    return builder.add_edge(a, b).add_edge(b, c).build()


async def _run(home: str, workspace: str, checkpoints: str, killed_after: str, point: str) -> None:
    with Planarian.open(home) as planarian:
        environment = Environment(
            planarian, workspace, name="team", sandbox="directory", filesystem="copy", process="respawn"
        )
        storage = StatepointCheckpointStorage(FileCheckpointStorage(checkpoints), environment)
        await workflow(environment, storage, killed_after, point).run("go")


def main() -> None:
    home, workspace, checkpoints, killed_after, point = sys.argv[1:]
    asyncio.run(_run(home, workspace, checkpoints, killed_after, point))
