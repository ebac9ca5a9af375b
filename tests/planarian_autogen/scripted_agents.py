"""Agents of Agent Framework, whose model makes the calls of a script."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Sequence
from typing import Any

from agent_framework import Agent, BaseChatClient, ChatResponse, Content, FunctionTool, Message
from agent_framework._tools import FunctionInvocationLayer

from planarian_autogen import Environment
from planarian_autogen.agent_framework import StatepointMiddleware

Call = tuple[str, dict[str, Any]]


class Scripted(FunctionInvocationLayer[Any], BaseChatClient[Any]):
    """Makes the calls that the script says, then says its last words."""

    def __init__(self, *turns: str | Sequence[Call]) -> None:
        super().__init__()
        self._turns = iter(turns)

    def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **_: Any) -> Awaitable[ChatResponse]:
        async def answered() -> ChatResponse:
            turn = next(self._turns)
            if isinstance(turn, str):
                return ChatResponse(messages=[Message(role="assistant", contents=[turn])])
            calls = [
                Content.from_function_call(call_id=f"{name}-{index}", name=name, arguments=json.dumps(arguments))
                for index, (name, arguments) in enumerate(turn)
            ]
            return ChatResponse(messages=[Message(role="assistant", contents=calls)])

        return answered()


def agent(environment: Environment, tools: Sequence[FunctionTool], *turns: str | Sequence[Call]) -> Agent[Any]:
    """One that works in the environment."""
    return Agent(Scripted(*turns), tools=list(tools), middleware=[StatepointMiddleware(environment)])


def results(response: Any) -> list[str]:
    """What the calls of a run came to."""
    contents = [content for message in response.messages for content in message.contents]
    return [str(content.result) for content in contents if content.type == "function_result"]


def bash(command: str) -> Call:
    return "bash", {"command": command}
