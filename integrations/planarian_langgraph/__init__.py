"""Planarian for LangGraph and LangChain: the environment travels with the thread (``docs/langgraph.md``).

::

    environments = Environments(planarian, workspace="repo")
    agent = create_agent(
        model,
        tools=sandbox_tools(environments),
        middleware=[StatepointMiddleware(environments)],
        checkpointer=StatepointSaver(InMemorySaver(), environments),
    )
"""

from __future__ import annotations

from planarian_langgraph.environments import Environments
from planarian_langgraph.marks import CHANNEL, Mark, StatepointState
from planarian_langgraph.middleware import StatepointMiddleware
from planarian_langgraph.saver import StatepointSaver
from planarian_langgraph.tools import primitive_tools, sandbox_tools
from planarian_langgraph.wrappers import environment_node, wrap_tool_calls

__all__ = [
    "CHANNEL",
    "Environments",
    "Mark",
    "StatepointMiddleware",
    "StatepointSaver",
    "StatepointState",
    "environment_node",
    "primitive_tools",
    "sandbox_tools",
    "wrap_tool_calls",
]
