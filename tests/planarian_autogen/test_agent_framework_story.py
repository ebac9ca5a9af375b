"""The whole story with Agent Framework: a workflow acts, breaks something, is resumed from a checkpoint; files, memory
and rows agree; a fork goes another way, and the two are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agent_framework", reason="needs planarian[agentframework]")
pytest.importorskip("apsw", reason="needs planarian[sql]")

from agent_framework import (
    Agent,
    Executor,
    FileCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
)

from planarian_autogen import Environment
from planarian_autogen.agent_framework import StatepointCheckpointStorage, remote_tools, sandbox_tools
from planarian_core import Planarian
from planarian_core.testing import served_notes
from planarian_core.testing.served_notes import TOOL, ServedNotes
from planarian_core.testing.workloads import ASK_COUNTER, ask_counter, remove_all, start_counter
from tests.planarian_autogen.scripted_agents import Call, agent, bash, results

NAME = "tidy"
COUNT = f"python3 -c '{ASK_COUNTER}' counter add"


class Working(Executor):
    """A step in which an agent works."""

    def __init__(self, name: str, worker: Agent[Any]) -> None:
        super().__init__(id=name)
        self._worker = worker

    @handler
    async def work(self, text: str, context: WorkflowContext[str, list[str]]) -> None:
        found = results(await self._worker.run(text))
        await (context.send_message("go on") if self.id == "act" else context.yield_output(found))


def _sql(statement: str) -> Call:
    return TOOL, {"sql": statement}


def _workflow(environment: Environment, storage: Any, then: Sequence[Call]) -> Workflow:
    """Two steps; the output is what the calls of the second came to."""
    tools = [*sandbox_tools(environment), *remote_tools(environment, "notes")]
    good = [bash(f"echo -n good > f; {COUNT}"), _sql("INSERT INTO notes (id, text) VALUES (1, 'milk'), (2, 'bread')")]
    first = Working("act", agent(environment, tools, good, "done"))
    second = Working("then", agent(environment, tools, *[[call] for call in then], "done"))
    builder = WorkflowBuilder(start_executor=first, name=NAME, checkpoint_storage=storage, output_from=[second])
    return builder.add_edge(first, second).build()


@pytest.mark.needs("namespaces", "criu")
@pytest.mark.parametrize("kind", served_notes.KINDS)
def test_files_memory_and_rows_go_back_with_a_checkpoint(
    tmp_path: Path, run: Callable[[Any], Any], kind: str, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "project").mkdir()
    with served_notes.serve(kind, tmp_path, request) as notes, Planarian.open(notes.home) as planarian:
        try:
            run(_story(planarian, tmp_path, notes))
        finally:
            remove_all(planarian)


async def _story(planarian: Planarian, folder: Path, notes: ServedNotes) -> None:
    def entered(**settings: Any) -> tuple[Environment, StatepointCheckpointStorage]:
        made = Environment(planarian, folder / "project", **settings)
        return made, StatepointCheckpointStorage(FileCheckpointStorage(folder / "checkpoints"), made)

    def seen(environment: Environment) -> tuple[str, int, list[str]]:
        """File, memory and rows; the rows read past Planarian."""
        sandbox = environment.sandbox
        return sandbox.run("cat f").stdout, ask_counter(sandbox, "counter", "get"), notes.rows(sandbox)

    environment, storage = entered(sandbox="namespace", filesystem="copy", process="criu")
    start_counter(await environment.start(), "counter")
    breaking = [bash(f"echo -n bad > f; {COUNT}"), _sql("DELETE FROM notes WHERE id > 0")]
    await _workflow(environment, storage, breaking).run("go")
    assert seen(environment) == ("bad", 2, [])
    good = sorted(await storage.list_checkpoints(workflow_name=NAME), key=lambda found: found.timestamp)[-2]
    assert seen(environment) == ("bad", 2, []), "looking at checkpoints moves nothing"

    mending = [bash("cat f; echo -n better > f"), _sql("SELECT text FROM notes ORDER BY id")]
    [found] = (await _workflow(environment, storage, mending).run(checkpoint_id=good.checkpoint_id)).get_outputs()
    assert found[0].startswith("good"), "the file as it was"
    assert "Remote effects undone" in found[0], "the agent is told"
    assert "milk" in found[1]
    assert seen(environment) == ("better", 1, ["milk", "bread"])

    other, storage = entered(name="other", on_load="fork")
    trying = [bash(f"cat f; echo -n other > f; {COUNT}"), _sql("INSERT INTO notes (id, text) VALUES (3, 'tea')")]
    [found] = (await _workflow(other, storage, trying).run(checkpoint_id=good.checkpoint_id)).get_outputs()
    assert found[0].startswith("good2"), "the fork began with the file and the memory of that moment"
    assert (other.sandbox.run("cat f").stdout, ask_counter(other.sandbox, "counter", "get")) == ("other", 2)
    assert seen(environment) == ("better", 1, ["milk", "bread"]), "the other line of work is as it is"
    if notes.branches:
        assert notes.rows(other.sandbox) == ["milk", "bread", "tea"], "on a branch of its own"
    else:
        assert "fenced off" in found[1], "the model reads why it can't write there"
    marks = [await one.save("compared") for one in (environment, other)]
    compared = planarian.diff(marks[0]["statepoint"], marks[1]["statepoint"])
    assert "f" in [Path(change.path).name for change in compared.files]
