"""An agent with a scripted model, whose environment is a directory sandbox."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from planarian_core import Planarian
from planarian_core.testing.workloads import remove_all

pytest.importorskip("langgraph", reason="needs planarian[langgraph]")

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage
from pydantic import Field

from planarian_langgraph import Environments


class Scripted(GenericFakeChatModel):
    """Says what the script says, whatever it is asked; remembers what it was given."""

    seen: list[list[BaseMessage]] = Field(default_factory=list)

    def bind_tools(self, tools: Any, **_: Any) -> Scripted:
        return self

    def _generate(self, messages: list[BaseMessage], *arguments: Any, **named: Any) -> Any:
        self.seen.append(list(messages))
        return super()._generate(messages, *arguments, **named)


def _script(*turns: str | Sequence[str]) -> Scripted:
    """A model that calls ``bash`` with each command (several in parallel for a list), or says ``!words``."""
    messages = []
    for number, turn in enumerate(turns):
        if isinstance(turn, str) and turn.startswith("!"):
            messages.append(AIMessage(turn[1:]))
            continue
        commands = [turn] if isinstance(turn, str) else turn
        calls = [
            {"name": "bash", "args": {"command": command}, "id": f"call-{number}-{index}"}
            for index, command in enumerate(commands)
        ]
        messages.append(AIMessage("", tool_calls=calls))
    return Scripted(messages=iter(messages))


@pytest.fixture
def planarian(tmp_path: Path) -> Iterator[Planarian]:
    with Planarian.open(tmp_path / "home") as opened:
        yield opened
        remove_all(opened)


@pytest.fixture
def make(planarian: Planarian, tmp_path: Path) -> Callable[..., Environments]:
    """Environments on workspaces of their own."""

    def made(**options: Any) -> Environments:
        def sandbox(thread_id: str) -> Any:
            folder = Path(tempfile.mkdtemp(dir=tmp_path))
            return planarian.create_sandbox(folder, sandbox="directory", filesystem="copy", process="respawn")

        return Environments(planarian, make=sandbox, **options)

    return made


@pytest.fixture
def script() -> Callable[..., Scripted]:
    return _script
