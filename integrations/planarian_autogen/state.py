"""A team's state with its environment: AgentChat's own ``save_state`` and ``load_state`` know only the messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from planarian_autogen.environment import Environment
from planarian_autogen.marks import KEY, mark_of
from planarian_core.model import RestoreContext


class HasState(Protocol):
    """A team or an agent of AgentChat; a workbench."""

    async def save_state(self) -> Mapping[str, Any]: ...

    async def load_state(self, state: Mapping[str, Any]) -> None: ...


async def save_state(team: HasState, environment: Environment, *, files_only: bool = False) -> dict[str, Any]:
    """The state of a team or an agent, and a statepoint of its environment for it.

    Returns:
        The state of AgentChat with one key more, plain data; AgentChat can load it by itself, without the environment.

    Raises:
        CaptureError: there is no statepoint, and so no state; with ``files_only`` processes that can't be captured are
            left out.
    """
    async with environment.turn():
        state = await team.save_state()
        return {**state, KEY: dict(await environment.save("AutoGen saved a state", files_only=files_only))}


async def load_state(team: HasState, environment: Environment, state: Mapping[str, Any]) -> RestoreContext | None:
    """Bring the environment to a state's statepoint (or fork it: the environment's ``on_load``), then load the state.

    What that has changed is added to each agent's model context as a message, unless that ends with tool calls that
    have no result yet. If no agent could be told, the next result of a :class:`StatepointWorkbench` tells it.

    Raises:
        ConfigurationError, LineageError: the state names no statepoint, or one that is gone or another sandbox's.
            Nothing was changed.
        RestoreError, CompensationError: the error's ``state`` says where the environment is; the team is as it was.
    """
    mark = mark_of(state.get(KEY))
    async with environment.alone():
        restored = await environment.restore(mark)
        loaded, agents = {key: value for key, value in state.items() if key != KEY}, 0
        if restored is not None:
            loaded, agents = _told(loaded, restored.to_markdown())
        await team.load_state(loaded)
        if agents:
            environment.take_context()
    return restored


def _told(state: Mapping[str, Any], text: str) -> tuple[dict[str, Any], int]:
    """A copy of a state, of nested teams too, with a message at the end of each model context; how many got it."""
    copy, count = dict(state), 0
    for key, value in state.items():
        if key == "llm_context" and isinstance(value, Mapping):
            messages = list(value.get("messages") or ())
            if messages and not _waits_for_results(messages[-1]):
                told = {"type": "UserMessage", "source": KEY, "content": text}
                copy[key], count = {**value, "messages": [*messages, told]}, count + 1
        elif isinstance(value, Mapping):
            copy[key], more = _told(value, text)
            count += more
    return copy, count


def _waits_for_results(message: Mapping[str, Any]) -> bool:
    return message.get("type") == "AssistantMessage" and not isinstance(message.get("content"), str)
