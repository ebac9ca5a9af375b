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

from planarian_core.requirements import require

require("langgraph", "langgraph", at_least=(1, 2), below=(2,))
require("langchain", "langgraph", at_least=(1, 5), below=(2,))

from planarian_langgraph.environments import Environments  # noqa: E402  # after the check
from planarian_langgraph.marks import CHANNEL, Mark, StatepointState  # noqa: E402
from planarian_langgraph.middleware import StatepointMiddleware  # noqa: E402
from planarian_langgraph.remote_tools import remote_tools  # noqa: E402
from planarian_langgraph.saver import StatepointSaver  # noqa: E402
from planarian_langgraph.tools import primitive_tools, sandbox_tools  # noqa: E402
from planarian_langgraph.wrappers import environment_node, wrap_tool_calls  # noqa: E402

__all__ = [
    "CHANNEL",
    "Environments",
    "Mark",
    "StatepointMiddleware",
    "StatepointSaver",
    "StatepointState",
    "environment_node",
    "primitive_tools",
    "remote_tools",
    "sandbox_tools",
    "wrap_tool_calls",
]
