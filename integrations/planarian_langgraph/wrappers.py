"""Around tool calls and around plain node functions: the environment first, then the call, then the mark."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from typing import Any, TypeVar, cast

from langchain_core.messages import HumanMessage, ToolMessage
from langgraph.config import get_config
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.runtime import get_runtime
from langgraph.types import Command

from planarian_core.context import one_line
from planarian_core.coroutines import in_thread
from planarian_langgraph.bringing import Entered, Step
from planarian_langgraph.environments import Environments
from planarian_langgraph.marks import CHANNEL, Mark, mark_of

ToolResult = ToolMessage | Command[Any]
Node = TypeVar("Node", bound=Callable[..., Any])


def current_step(call: str = "", *, looks: bool = False) -> Step:
    """The superstep in which the caller runs, in a node of a graph. ``call`` tells its calls apart; else the task."""
    info = get_runtime().execution_info
    thread_id = get_config().get("configurable", {}).get("thread_id") or ""
    path = info.checkpoint_ns.rpartition("|")[0] if info else ""
    checkpoint, task = (info.checkpoint_id, info.task_id) if info else ("", "")
    return Step(str(thread_id), f"{path}@{checkpoint}", call or task, nested=bool(path), looks=looks)


def wrap_tool_calls(environments: Environments) -> dict[str, Any]:
    """For a graph with a ``ToolNode`` of its own: ``ToolNode(tools, **wrap_tool_calls(environments))``.

    The graph's state needs the channel of :class:`planarian_langgraph.marks.StatepointState`.
    """
    calls = ToolCalls(environments)
    return {"wrap_tool_call": calls.wrap, "awrap_tool_call": calls.awrap}


class ToolCalls:
    """Runs tool calls in the environment of their thread."""

    def __init__(self, environments: Environments) -> None:
        self._environments = environments

    def wrap(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolResult]) -> ToolResult:
        step = current_step(str(request.tool_call["id"]))
        with self._environments.call(step, mark_of(request.state)) as entered:
            result = handler(request)
            mark = self._environments.leave(step, description=_described(request))
        return _marked(result, mark, entered)

    async def awrap(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolResult]]
    ) -> ToolResult:
        step = current_step(str(request.tool_call["id"]))
        async with self._environments.acall(step, mark_of(request.state)) as entered:
            result = await handler(request)
            mark = await in_thread(partial(self._environments.leave, step, description=_described(request)))
        return _marked(result, mark, entered)


def environment_node(environments: Environments, *, messages: str = "messages") -> Callable[[Node], Node]:
    """A decorator for node functions that work in the environment: ``environments.sandbox()`` is theirs inside.

    The node returns an update of the state as a mapping, or nothing; the mark is added to it, and the restore context
    as a message where the state has a list of them.

    Args:
        messages: the state's key for messages; empty for none.
    """

    def decorate(node: Node) -> Node:
        def finished(update: Any, mark: Mark, entered: Entered, state: Any) -> Any:
            if update is not None and not isinstance(update, dict):
                raise TypeError(f"a node in an environment returns a mapping or None, not {type(update).__name__}")
            told = [HumanMessage(entered.context)] if entered.context and messages and messages in state else []
            added = {messages: [*_listed((update or {}).get(messages)), *told]} if told else {}
            return {**(update or {}), **added, CHANNEL: mark}

        @wraps(node)
        def wrapped(state: Any, *arguments: Any, **named: Any) -> Any:
            step = current_step()
            with environments.call(step, mark_of(state)) as entered:
                update = node(state, *arguments, **named)
                mark = environments.leave(step, description=f"after {node.__name__}")
            return finished(update, mark, entered, state)

        @wraps(node)
        async def awrapped(state: Any, *arguments: Any, **named: Any) -> Any:
            step = current_step()
            async with environments.acall(step, mark_of(state)) as entered:
                update = await node(state, *arguments, **named)
                mark = await in_thread(partial(environments.leave, step, description=f"after {node.__name__}"))
            return finished(update, mark, entered, state)

        return cast(Node, awrapped if inspect.iscoroutinefunction(node) else wrapped)

    return decorate


def _listed(found: Any) -> list[Any]:
    return [] if found is None else list(found) if isinstance(found, list | tuple) else [found]


def _described(request: ToolCallRequest) -> str:
    call = request.tool_call
    return one_line(f"after {call['name']}({', '.join(f'{k}={v!r}' for k, v in call['args'].items())})", 300)


def _marked(result: ToolResult, mark: Mark, entered: Entered) -> ToolResult:
    """A tool's result as an update of the state that holds the mark. What a restore has to tell waits in the mark for
    the next model call, since nothing may stand between a tool call's messages.
    """
    if entered.context:
        mark = {**mark, "context": entered.context}
    if isinstance(result, ToolMessage):
        return Command(update={"messages": [result], CHANNEL: mark})
    update = result.update
    if update is None:
        update = {}
    if isinstance(update, dict):
        return Command(graph=result.graph, update={**update, CHANNEL: mark}, resume=result.resume, goto=result.goto)
    return Command(graph=result.graph, update=[*update, (CHANNEL, mark)], resume=result.resume, goto=result.goto)
