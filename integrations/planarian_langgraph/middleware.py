"""The middleware for ``langchain.agents.create_agent``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, NotRequired

from langchain.agents.middleware import AgentMiddleware, AgentState, ExtendedModelResponse, ModelRequest, ModelResponse
from langchain_core.messages import HumanMessage
from langchain_core.tools import BaseTool
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command

from planarian_core.coroutines import in_thread
from planarian_langgraph.bringing import Entered, Step
from planarian_langgraph.environments import Environments
from planarian_langgraph.marks import CHANNEL, Mark, mark_of, newer
from planarian_langgraph.wrappers import ToolCalls, ToolResult, current_step


class EnvironmentAgentState(AgentState[Any]):
    """An agent's state with the mark of its environment."""

    planarian: NotRequired[Annotated[Mark | None, newer]]


class StatepointMiddleware(AgentMiddleware[EnvironmentAgentState, Any, Any]):
    """Runs an agent's tool calls in the environment of its thread and takes statepoints by policy.

    Before each model call the environment is compared with the state: after time travel it is brought back (or forked),
    and the model is told so in a message.

    Args:
        tools: further tools for the agent, such as :func:`planarian_langgraph.tools.primitive_tools`.
    """

    state_schema = EnvironmentAgentState

    def __init__(self, environments: Environments, *, tools: Sequence[BaseTool] = ()) -> None:
        super().__init__()
        self.tools = list(tools)
        self._environments = environments
        self._calls = ToolCalls(environments)

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        step, mark = current_step(looks=True), mark_of(request.state)
        with self._environments.call(step, mark) as entered:
            told = _told(mark, entered, self._environments, step)
        return _answered(handler(_telling(request, told)), told)

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        step, mark = current_step(looks=True), mark_of(request.state)
        async with self._environments.acall(step, mark) as entered:
            told = await in_thread(partial(_told, mark, entered, self._environments, step))
        return _answered(await handler(_telling(request, told)), told)

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolResult]) -> ToolResult:
        return self._calls.wrap(request, handler)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolResult]]
    ) -> ToolResult:
        return await self._calls.awrap(request, handler)


@dataclass(frozen=True)
class _Told:
    """What a model call is told, and the mark that goes into the state with its answer."""

    mark: Mark | None = None
    messages: tuple[HumanMessage, ...] = ()


def _told(mark: Mark | None, entered: Entered, environments: Environments, step: Step) -> _Told:
    """What has to be said of a restore, now or by an earlier call; a first mark where the state has none."""
    waiting = mark.get("context") if mark is not None else None
    contexts = dict.fromkeys(context for context in (waiting, entered.context) if context)
    if mark is not None and not contexts:
        return _Told()
    messages = (HumanMessage("\n\n".join(contexts), name="planarian"),) if contexts else ()
    return _Told({**environments.pass_by(step), "told": True}, messages)


def _telling(request: ModelRequest[Any], told: _Told) -> ModelRequest[Any]:
    return request.override(messages=[*request.messages, *told.messages]) if told.messages else request


def _answered(response: ModelResponse[Any], told: _Told) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
    """The answer, after what the model was told: messages of the state in the order in which it saw them."""
    if told.mark is None:
        return response
    response = replace(response, result=[*told.messages, *response.result])
    return ExtendedModelResponse(response, Command(update={CHANNEL: told.mark}))
