"""Planarian for AutoGen (``docs/autogen.md``); for Microsoft Agent Framework see
:mod:`planarian_autogen.agent_framework`.

::

    environment = Environment(planarian, workspace="repo")
    agent = AssistantAgent("coder", model_client=model, workbench=SandboxWorkbench(environment))
    team = RoundRobinGroupChat([agent], max_turns=5)
    state = await save_state(team, environment)
    ...
    await load_state(team, environment, state)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from planarian_autogen.environment import Environment
from planarian_autogen.settings import EnvironmentSettings
from planarian_core.requirements import require

if TYPE_CHECKING:
    from planarian_autogen.code_executor import SandboxCodeExecutor
    from planarian_autogen.remote_tools import RemoteWorkbench
    from planarian_autogen.state import load_state, save_state
    from planarian_autogen.tools import EnvironmentTool, primitive_tools, sandbox_tools
    from planarian_autogen.workbench import SandboxWorkbench, StatepointWorkbench

__all__ = [
    "Environment",
    "EnvironmentSettings",
    "EnvironmentTool",
    "RemoteWorkbench",
    "SandboxCodeExecutor",
    "SandboxWorkbench",
    "StatepointWorkbench",
    "load_state",
    "primitive_tools",
    "sandbox_tools",
    "save_state",
]

_PLACES = {
    "EnvironmentTool": "tools",
    "RemoteWorkbench": "remote_tools",
    "SandboxCodeExecutor": "code_executor",
    "SandboxWorkbench": "workbench",
    "StatepointWorkbench": "workbench",
    "load_state": "state",
    "primitive_tools": "tools",
    "sandbox_tools": "tools",
    "save_state": "state",
}


def __getattr__(name: str) -> Any:
    """What needs AutoGen is loaded when it is asked for: Agent Framework's users may not have it."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require("autogen-core", "autogen", at_least=(0, 7, 5), below=(0, 8))
    return getattr(importlib.import_module(f"planarian_autogen.{_PLACES[name]}"), name)
