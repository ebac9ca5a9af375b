"""nanobot as users run it, with a model behind HTTP that says what a script says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

pytest.importorskip("nanobot", reason="needs planarian[nanobot]")

from nanobot import Nanobot
from nanobot.agent.loop import AgentLoop
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.config.loader import load_config

from planarian_core import Planarian
from planarian_core.testing.sandbox import running, until
from planarian_core.testing.scripted_model import Call, Model, Seen, serving
from planarian_core.testing.workloads import remove_all
from planarian_nanobot import Environments, StatepointHook, remote_tools, sandbox_tools

T = TypeVar("T")
Step = tuple[str, dict[str, Any]] | str | Callable[[Seen], tuple[str, dict[str, Any]]]


class Bots:
    """Where nanobot's configuration is, and nanobots that use it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home, self.workspace = folder, folder / "planarian", folder / "project"
        self.workspace.mkdir()
        self.settings: dict[str, Any] = {
            "workspace": str(self.workspace),
            "home": str(self.home),
            "sandbox": "directory",
            "filesystem": "copy",
            "process": "respawn",
        }
        self.tools: dict[str, Any] = {"exec": {"enable": False}, "file": {"enable": False}, "web": {"enable": False}}

    def configure(self, model: Model, *, entry_points: bool = True) -> Path:
        """Write ``config.json``, and ``planarian.json`` unless the tools are registered by hand."""
        defaults = {"provider": "custom", "model": "scripted", "workspace": str(self.folder / "nanobot")}
        provider = {"apiKey": "none", "apiBase": f"{model.url}/v1"}
        config = {"agents": {"defaults": defaults}, "providers": {"custom": provider}, "tools": self.tools}
        file = self.folder / "config.json"
        file.write_text(json.dumps(config))
        if entry_points:
            (self.folder / "planarian.json").write_text(json.dumps(self.settings))
        return file

    def run(self, *steps: Step, session: str = "sdk:default", say: str = "go") -> tuple[str, Model]:
        """One run of a new nanobot whose tools come by entry point: its last word, and the model that it talked to."""
        with serving(script(steps)) as model:
            file = self.configure(model)

            async def story() -> str:
                async with Nanobot.from_config(file) as bot:
                    return str((await bot.run(say, session_key=session)).content)

            said = run(story())
        assert not model.problems, model.problems
        return said, model

    @contextmanager
    def looping(
        self, steps: Sequence[Step], environments: Environments, *services: str
    ) -> Iterator[tuple[AgentLoop, Model]]:
        """nanobot's loop with our tools and hook, registered by hand, and those of remote services."""
        with serving(script(steps)) as model:
            registry = ToolRegistry()
            remote = [tool for service in services for tool in remote_tools(environments, service)]
            for tool in [*sandbox_tools(environments), *remote]:
                registry.register(tool)
            config = load_config(self.configure(model, entry_points=False))
            hooks = [StatepointHook(environments)]
            yield AgentLoop.from_config(config, tool_registry=registry, hooks=hooks), model


def script(steps: Sequence[Step]) -> Callable[[Seen], Call | str]:
    """A step for each request: a call, a call that depends on what is seen, or the last word. The results of earlier
    runs, which are part of a session's history, don't count.
    """
    made: list[Call | str] = []
    before: list[int] = []

    def next_one(seen: Seen) -> Call | str:
        before.append(len(seen.results)) if not before else None
        at = len(seen.results) - before[0]
        if at < len(made):
            return made[at]
        step = steps[at] if at < len(steps) else "done"
        if callable(step):
            step = step(seen)
        made.append(step if isinstance(step, str) else Call(*step))
        return made[-1]

    return next_one


def run(story: Coroutine[Any, Any, T]) -> T:
    """An event loop for one story, which may not hang."""
    return asyncio.run(asyncio.wait_for(story, 120))


def bash(command: str, **more: Any) -> tuple[str, dict[str, Any]]:
    """A call of the tool ``exec``."""
    return "exec", {"command": command, **more}


def ended(marker: str) -> bool:
    """Whether no process of this host has ``marker`` among its arguments any more, within a while."""
    return until(lambda: not running(marker))


@pytest.fixture
def bots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bots]:
    monkeypatch.setenv("PLANARIAN_NANOBOT_CONFIG", str(tmp_path / "planarian.json"))
    monkeypatch.setenv("HOME", str(tmp_path))
    made = Bots(tmp_path)
    yield made
    with Planarian.open(made.home) as planarian:
        remove_all(planarian)


@pytest.fixture
def planarian(bots: Bots) -> Iterator[Planarian]:
    with Planarian.open(bots.home) as opened:
        yield opened


@pytest.fixture
def environments(bots: Bots, planarian: Planarian) -> Environments:
    chosen = {key: bots.settings[key] for key in ("sandbox", "filesystem", "process")}
    return Environments(planarian, bots.workspace, **chosen)
