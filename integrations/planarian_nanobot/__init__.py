"""Planarian for nanobot: tools by the entry point ``nanobot.tools``, and a hook (``docs/nanobot.md``).

::

    environments = Environments(planarian, workspace="repo")
    registry = ToolRegistry()
    for tool in [*sandbox_tools(environments), *remote_tools(environments, "orders")]:
        registry.register(tool)
    loop = AgentLoop.from_config(config, tool_registry=registry, hooks=[StatepointHook(environments)])
"""

from __future__ import annotations

from planarian_core.requirements import require

require("nanobot-ai", "nanobot", at_least=(0, 3, 5), below=(0, 4))

from planarian_nanobot.environments import Environments  # noqa: E402  # after the check
from planarian_nanobot.hook import StatepointHook  # noqa: E402
from planarian_nanobot.remote_tools import remote_tools  # noqa: E402
from planarian_nanobot.settings import Settings  # noqa: E402
from planarian_nanobot.tools import sandbox_tools  # noqa: E402

__all__ = ["Environments", "Settings", "StatepointHook", "remote_tools", "sandbox_tools"]
