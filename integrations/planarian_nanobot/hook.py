"""A hook for nanobot's agent loop: statepoints after every tool's calls, and what the agent must be told meanwhile."""

from __future__ import annotations

import json
from typing import Any

from nanobot.agent.hook import AgentHook, AgentHookContext, AgentRunHookContext
from nanobot.agent.tools.context import current_request_session_key

from planarian_core.context import clip
from planarian_nanobot.environments import Environment, Environments
from planarian_nanobot.tool import SandboxTool


class StatepointHook(AgentHook):
    """For ``AgentLoop(hooks=[...])`` or ``Nanobot.run(hooks=[...])``.

    - Before a run: the session's environment is found or made, and picked up again if need be. When that fails the run
      fails, and says why (``reraise``: nanobot only logs what other hooks raise).
    - After a call of a tool that isn't ours (a remote service's by MCP, one of your own that uses the sandbox): a
      statepoint, if the policy says so. Our own tools leave theirs by themselves.
    - Before the model is asked: a restore by somebody else, or a statepoint that failed, as a message.
    - After a run: a statepoint, if the policy wants one at the end; and none is left half-taken.
    """

    def __init__(self, environments: Environments) -> None:
        super().__init__(reraise=True)
        self._environments = environments

    def _environment(self, context: AgentHookContext | None = None) -> Environment:
        key = context.session_key if context is not None else None
        return self._environments.of_session(current_request_session_key() or key)

    async def before_run(self, context: AgentRunHookContext) -> None:
        async with self._environment().turn():
            """It is there, and runs."""

    async def before_iteration(self, context: AgentHookContext) -> None:
        environment = self._environment(context)
        async with environment.turn():
            notes = environment.take_notes()
        if notes:
            context.messages.append({"role": "user", "content": f"[planarian]\n{notes}"})

    async def after_execute_tool(
        self, context: AgentHookContext, tool_call: Any, tool: Any, params: Any, result: Any
    ) -> None:
        await self._after(context, tool_call, tool)

    async def on_execute_tool_error(
        self, context: AgentHookContext, tool_call: Any, tool: Any, params: Any, error: Any
    ) -> None:
        await self._after(context, tool_call, tool)

    async def _after(self, context: AgentHookContext, tool_call: Any, tool: Any) -> None:
        ours = isinstance(getattr(tool, "_wrapped", tool), SandboxTool)
        if not ours and not getattr(tool, "read_only", False):
            arguments = clip(json.dumps(tool_call.arguments, default=str), 200)
            await self._environment(context).milestone("tool-call", f"after: {tool_call.name} {arguments}")

    async def after_run(self, context: AgentRunHookContext) -> None:
        environment = self._environment()
        await environment.milestone("submit", f"the end of a run: {context.final_content or ''}")
        await environment.settle()
