"""The whole story: a team acts, breaks something, is loaded; files, memory and rows agree; a fork goes another way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("autogen_agentchat", reason="needs planarian[autogen]")
pytest.importorskip("apsw", reason="needs planarian[sql]")

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat

from planarian_autogen import Environment, RemoteWorkbench, SandboxWorkbench, load_state, save_state
from planarian_core import Planarian
from planarian_core.testing import served_notes
from planarian_core.testing.workloads import ask_counter, remove_all, start_counter

Call = tuple[str, dict[str, Any]]


def _sql(statement: str) -> Call:
    return "execute_sql", {"sql": statement}


@pytest.mark.needs("namespaces", "criu")
@pytest.mark.parametrize("kind", served_notes.KINDS)
def test_files_memory_and_rows_go_back_with_the_messages(
    tmp_path: Path,
    run: Callable[[Any], Any],
    script: Callable[..., Any],
    bash: Callable[[str], Call],
    kind: str,
    request: pytest.FixtureRequest,
) -> None:
    project = tmp_path / "project"
    project.mkdir()

    def seen(environment: Environment) -> tuple[str, int, list[str]]:
        """File, memory and rows; the rows read past Planarian."""
        sandbox = environment.sandbox
        return sandbox.run("cat f").stdout, ask_counter(sandbox, "counter", "get"), notes.rows(sandbox)

    def team(environment: Environment, *turns: Any) -> RoundRobinGroupChat:
        workbenches = [SandboxWorkbench(environment), RemoteWorkbench(environment, "notes")]
        agent = AssistantAgent(
            "coder", model_client=script(*turns, "done"), workbench=workbenches, max_tool_iterations=len(turns) + 1
        )
        return RoundRobinGroupChat([agent], max_turns=1)

    async def story() -> None:
        environment = Environment(planarian, project, sandbox="namespace", filesystem="copy", process="criu")
        start_counter(await environment.start(), "counter")
        acting = team(
            environment, bash("echo -n good > f"), _sql("INSERT INTO notes (id, text) VALUES (1, 'milk'), (2, 'bread')")
        )
        await acting.run(task="act")
        ask_counter(environment.sandbox, "counter", "add")
        good = seen(environment)
        assert good == ("good", 1, ["milk", "bread"])
        saved = json.loads(json.dumps(await save_state(acting, environment)))

        breaking = team(environment, [bash("echo -n bad > f"), _sql("DELETE FROM notes")])
        await breaking.load_state({key: value for key, value in saved.items() if key != "planarian"})
        await breaking.run(task="break")
        ask_counter(environment.sandbox, "counter", "add")
        assert seen(environment) == ("bad", 2, [])

        again = team(environment, bash("echo -n better > f"))
        restored = await load_state(again, environment, saved)
        assert seen(environment) == good
        assert restored is not None
        assert [effect.summary for effect in restored.remote_undone], "the context names what was undone"

        other = Environment(planarian, project, name="other", on_load="fork")
        trying = team(other, bash("echo -n other > f"), _sql("INSERT INTO notes (id, text) VALUES (3, 'tea')"))
        await load_state(trying, other, saved)
        await again.run(task="go on")
        result = await trying.run(task="try otherwise")
        assert seen(environment)[:2] == ("better", 1)
        assert other.sandbox.run("cat f").stdout == "other"
        assert ask_counter(other.sandbox, "counter", "get") == 1
        assert notes.rows(environment.sandbox) == ["milk", "bread"]
        if notes.branches:
            assert notes.rows(other.sandbox) == ["milk", "bread", "tea"], "on a branch of its own"
        else:
            assert "fenced" in str(result.messages), "a fork may not write where its source's rows are"
        marks = [await one.save("compared") for one in (environment, other)]
        compared = planarian.diff(marks[0]["statepoint"], marks[1]["statepoint"])
        assert "f" in [Path(change.path).name for change in compared.files]

    with served_notes.serve(kind, tmp_path, request) as notes, Planarian.open(notes.home) as planarian:
        try:
            run(story())
        finally:
            remove_all(planarian)
