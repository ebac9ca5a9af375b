"""An agent of LangChain whose environment travels with LangGraph's checkpoints; its model says what a script says.

``pip install 'planarian[langgraph,sql]'``, then ``python langgraph_agent.py``. The agent fills a table and writes a
report, then tidies up too much. LangGraph's time travel goes back to the checkpoint before: report and rows are as they
were, the model is told, and the agent goes on from there.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver

from planarian_core import Planarian
from planarian_langgraph import Environments, StatepointMiddleware, StatepointSaver, remote_tools, sandbox_tools

THREAD: Any = {"configurable": {"thread_id": "1"}}
SERVICE = '[services.orders]\nkind = "sql"\ndialect = "sqlite"\npath = {path}\n'


class Scripted(GenericFakeChatModel):
    """Says one message after the other, and is shown what it was told."""

    def bind_tools(self, tools: Any, **_: Any) -> Scripted:
        return self


def call(tool: str, **arguments: str) -> Any:
    return {"name": tool, "args": arguments, "id": f"{tool} {arguments}"}


SCRIPT = [
    AIMessage("", tool_calls=[call("execute_sql", sql="INSERT INTO orders VALUES (1, 'bread'), (2, 'milk')")]),
    AIMessage("", tool_calls=[call("bash", command="echo two orders >report; cat report")]),
    AIMessage("", tool_calls=[call("execute_sql", sql="DELETE FROM orders"), call("bash", command="rm report")]),
    AIMessage("Everything is tidy."),
    AIMessage("", tool_calls=[call("execute_sql", sql="SELECT count(*) AS orders FROM orders")]),
    AIMessage("", tool_calls=[call("bash", command="cat report")]),
    AIMessage("Both orders and the report are there."),
]


def story(planarian: Planarian, project: Path) -> list[str]:
    environments = Environments(planarian, workspace=project)
    agent: Any = create_agent(
        Scripted(messages=iter(SCRIPT)),
        tools=[*sandbox_tools(environments), *remote_tools(environments, "orders")],
        middleware=[StatepointMiddleware(environments)],
        checkpointer=StatepointSaver(InMemorySaver(), environments),
    )
    agent.invoke({"messages": [HumanMessage("Enter the orders, write a report, tidy up.")]}, THREAD)

    reported = next(s for s in agent.get_state_history(THREAD) if last(s) == "two orders" and s.next == ("model",))
    print(f"(back to a checkpoint, and with it to {reported.metadata['planarian_statepoint']})")
    state = agent.invoke(None, reported.config)
    for message in state["messages"]:
        print(f"{message.name or message.type}: {message.text.strip() or [c['args'] for c in message.tool_calls]}")
    return [str(message.content) for message in state["messages"] if isinstance(message, ToolMessage)][-2:]


def last(snapshot: Any) -> str:
    messages = snapshot.values.get("messages") or [AIMessage("")]
    return str(messages[-1].text).strip()


def main(folder: Path) -> bool:
    home, project, orders = folder / "home", folder / "project", folder / "orders.db"
    home.mkdir()
    project.mkdir()
    (home / "planarian.toml").write_text(SERVICE.format(path=json.dumps(str(orders))))
    with closing(sqlite3.connect(orders)) as owner, owner:
        owner.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, what TEXT)")
    with Planarian.open(home) as planarian:
        try:
            rows, report = story(planarian, project)
        finally:
            for record in planarian.registry.sandboxes():
                planarian.remove_sandbox(planarian.sandbox(record.id))
    return '"rows": [[2]]' in rows and report.strip() == "two orders"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        sys.exit(not main(Path(place)))
