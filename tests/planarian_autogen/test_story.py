"""The whole story: a team acts, breaks something, is loaded; files, memory and rows agree; a fork goes another way."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("autogen_agentchat", reason="needs planarian[autogen]")
pytest.importorskip("apsw", reason="needs planarian[sql]")

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.tools import FunctionTool, StaticWorkbench

from planarian_autogen import Environment, SandboxWorkbench, StatepointWorkbench, load_state, save_state
from planarian_core import Planarian
from planarian_core.testing.workloads import ask_counter, remove_all, start_counter

Call = tuple[str, dict[str, Any]]
SERVICE = '[services.notes]\nkind = "sql"\ndialect = "sqlite"\npath = {path}\n'


def _sql(statement: str) -> Call:
    return "execute_sql", {"sql": statement}


def _database(planarian: Planarian, environment: Environment) -> StatepointWorkbench:
    """A workbench with a tool that sends statements through Planarian's session of the service."""

    def execute_sql(sql: str) -> str:
        session = planarian.remote_session(environment.sandbox, "notes")
        with closing(session.kind.connect()) as server:
            return json.dumps(session.call("execute_sql", {"sql": sql}, server)["content"])

    return StatepointWorkbench(StaticWorkbench([FunctionTool(execute_sql, description="Run SQL")]), environment)


@pytest.mark.needs("namespaces", "criu")
def test_files_memory_and_rows_go_back_with_the_messages(
    tmp_path: Path, run: Callable[[Any], Any], script: Callable[..., Any], bash: Callable[[str], Call]
) -> None:
    home, project, file = tmp_path / "home", tmp_path / "project", tmp_path / "notes.db"
    home.mkdir()
    project.mkdir()
    (home / "planarian.toml").write_text(SERVICE.format(path=json.dumps(str(file))))
    with closing(sqlite3.connect(file)) as owner, owner:
        owner.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, note TEXT)")

    def seen(environment: Environment) -> tuple[str, int, list[str]]:
        """File, memory and rows; the rows read past Planarian."""
        with closing(sqlite3.connect(file)) as reader:
            rows = [note for (note,) in reader.execute("SELECT note FROM notes ORDER BY id")]
        return environment.sandbox.run("cat f").stdout, ask_counter(environment.sandbox, "counter", "get"), rows

    def team(environment: Environment, *turns: Any) -> RoundRobinGroupChat:
        workbenches = [SandboxWorkbench(environment), _database(planarian, environment)]
        agent = AssistantAgent(
            "coder", model_client=script(*turns, "done"), workbench=workbenches, max_tool_iterations=len(turns) + 1
        )
        return RoundRobinGroupChat([agent], max_turns=1)

    async def story() -> None:
        environment = Environment(planarian, project, sandbox="namespace", filesystem="copy", process="criu")
        start_counter(await environment.start(), "counter")
        acting = team(
            environment, bash("echo -n good > f"), _sql("INSERT INTO notes (note) VALUES ('milk'), ('bread')")
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
        trying = team(other, bash("echo -n other > f"), _sql("SELECT 1"))
        await load_state(trying, other, saved)
        await again.run(task="go on")
        result = await trying.run(task="try otherwise")
        assert seen(environment)[:2] == ("better", 1)
        assert other.sandbox.run("cat f").stdout == "other"
        assert ask_counter(other.sandbox, "counter", "get") == 1
        assert "fenced" in str(result.messages), "a fork may not write where its source's rows are"
        marks = [await one.save("compared") for one in (environment, other)]
        compared = planarian.diff(marks[0]["statepoint"], marks[1]["statepoint"])
        assert "f" in [Path(change.path).name for change in compared.files]

    with Planarian.open(home) as planarian:
        try:
            run(story())
        finally:
            remove_all(planarian)
