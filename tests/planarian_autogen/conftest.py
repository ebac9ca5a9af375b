"""Environments on directory sandboxes, and agents whose model says what a script says."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

pytest.importorskip("autogen_ext", reason="needs planarian[autogen] and autogen-ext")

from autogen_core import FunctionCall
from autogen_core.models import CreateResult, ModelFamily, ModelInfo, RequestUsage
from autogen_ext.models.replay import ReplayChatCompletionClient

from planarian_autogen import Environment
from planarian_core import Planarian
from planarian_core.testing.sandbox import running, until
from planarian_core.testing.workloads import remove_all

T = TypeVar("T")
Call = tuple[str, dict[str, Any]]
INFO = ModelInfo(
    vision=False, function_calling=True, json_output=True, structured_output=True, family=ModelFamily.UNKNOWN
)


def _script(*turns: str | Call | Sequence[Call]) -> ReplayChatCompletionClient:
    """A model that says words, or makes a call, or several at once."""
    said: list[str | CreateResult] = []
    for number, turn in enumerate(turns):
        if isinstance(turn, str):
            said.append(turn)
            continue
        calls = [turn] if isinstance(turn, tuple) else list(turn)
        content = [
            FunctionCall(id=f"call-{number}-{index}", name=name, arguments=json.dumps(arguments))
            for index, (name, arguments) in enumerate(calls)
        ]
        usage = RequestUsage(prompt_tokens=0, completion_tokens=0)
        said.append(CreateResult(finish_reason="function_calls", content=content, usage=usage, cached=False))
    return ReplayChatCompletionClient(said, model_info=INFO)


def _bash(command: str) -> Call:
    return "bash", {"command": command}


def _run(story: Coroutine[Any, Any, T]) -> T:
    """An event loop for one story, which may not hang."""
    return asyncio.run(asyncio.wait_for(story, 120))


def _ended(marker: str) -> bool:
    """Whether no process of this host has ``marker`` among its arguments any more, within a while."""
    return until(lambda: not running(marker))


@pytest.fixture
def planarian(tmp_path: Path) -> Iterator[Planarian]:
    with Planarian.open(tmp_path / "home") as opened:
        yield opened
        remove_all(opened)


@pytest.fixture
def make(planarian: Planarian, tmp_path: Path) -> Callable[..., Environment]:
    """Environments on workspaces of their own."""

    def made(**settings: Any) -> Environment:
        chosen = {"sandbox": "directory", "filesystem": "copy", "process": "respawn", **settings}
        workspace = chosen.pop("workspace", None) or tempfile.mkdtemp(dir=tmp_path)
        return Environment(planarian, workspace, **chosen)

    return made


@pytest.fixture
def environment(make: Callable[..., Environment]) -> Environment:
    return make()


@pytest.fixture
def script() -> Callable[..., ReplayChatCompletionClient]:
    return _script


@pytest.fixture
def bash() -> Callable[[str], Call]:
    return _bash


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    return _run


@pytest.fixture
def ended() -> Callable[[str], bool]:
    return _ended
