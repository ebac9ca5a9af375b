"""What our tools for nanobot have in common: when they are offered, in which environment they work, what they say."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from loguru import logger
from nanobot.agent.tools.base import Tool, ToolResult
from nanobot.agent.tools.context import ToolContext, current_request_session_key

from planarian_core import Sandbox
from planarian_core.context import clip
from planarian_core.coroutines import in_thread
from planarian_core.errors import PlanarianError
from planarian_nanobot.environments import Environment, Environments
from planarian_nanobot.inside import chosen_sandbox
from planarian_nanobot.settings import configured

T = TypeVar("T")

_said: set[str] = set()


def string(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "description": description, **more}


PATH = string("Relative to the workspace, or absolute as the sandbox sees it.")
REFERENCE = string("A statepoint: its id, its name, @head, or @head~2 for two before it.")
SANDBOX = string("A fork's id, to work in that one; empty: your own sandbox.")


class SandboxTool(Tool):
    """A tool of the session's environment. nanobot makes one of each by itself if ``planarian.json`` is there."""

    _plugin_discoverable = True
    _scopes: ClassVar[set[str]] = {"core", "subagent"}
    title: ClassVar[str]
    teaching: ClassVar[str]
    properties: ClassVar[dict[str, Any]]
    required: ClassVar[tuple[str, ...]] = ()
    reads: ClassVar[bool] = False

    def __init__(self, environments: Environments) -> None:
        self._environments = environments

    @classmethod
    def enabled(cls, ctx: ToolContext) -> bool:
        """Whether the user wants it, and nanobot's own tools don't work beside it, outside of the sandbox."""
        try:
            if configured() is None:
                return False
        except PlanarianError as error:
            _say_once(f"planarian: no tools are offered: {error}")
            return False
        own = [name for name in ("exec", "file") if getattr(ctx.config, name).enable]
        if own:
            settings = ", ".join(f"tools.{name}.enable" for name in own)
            _say_once(
                f"planarian: no tools are offered, because nanobot's own would work outside of the sandbox. "
                f"Next: set {settings} to false in config.json"
            )
        return not own

    @classmethod
    def create(cls, ctx: ToolContext) -> Tool:
        settings = configured()
        assert settings is not None, "nanobot asks first whether it is enabled"
        return cls(Environments.of(settings, ctx.workspace))

    @property
    def name(self) -> str:
        return self.title

    @property
    def description(self) -> str:
        return self.teaching

    @property
    def parameters(self) -> dict[str, Any]:
        return {"type": "object", "properties": dict(self.properties), "required": list(self.required)}

    @property
    def read_only(self) -> bool:
        return self.reads

    @property
    def environment(self) -> Environment:
        """That of the session that calls."""
        return self._environments.of_session(current_request_session_key())

    async def execute(self, **arguments: Any) -> ToolResult:
        """Do it; a failure of the environment is a result that says what is true now and what to do."""
        sandbox = arguments.pop("sandbox", "")
        try:
            said = await self.work(sandbox, **arguments)
        except PlanarianError as error:
            return _told(self.environment, str(error), is_error=True)
        return _told(self.environment, said)

    @abstractmethod
    async def work(self, sandbox: str, **arguments: Any) -> str:
        """Do it in ``sandbox``, a fork's id, or in the session's own if that is empty."""

    async def _in(self, sandbox: str, work: Callable[[Sandbox], T], changed: str = "") -> T:
        """Blocking work in a turn. ``changed``: what it did, for the statepoint that follows."""
        turn = self.environment.call(changed) if changed and not sandbox else self.environment.turn()
        async with turn as own:

            def worked() -> T:
                chosen = chosen_sandbox(own, sandbox)
                done = work(chosen)
                if changed and sandbox:
                    own.planarian.snapshot_by_policy(chosen, description=clip(changed, 300))
                return done

            return await in_thread(worked)


def _say_once(problem: str) -> None:
    if problem not in _said:
        _said.add(problem)
        logger.error("{}", problem)


def _told(environment: Environment, said: str, *, is_error: bool = False) -> ToolResult:
    """A result, after what the agent was not told yet. Never a plain string: nanobot takes one that begins with
    ``Error:`` for a failure, and a command may well print that.
    """
    notes = environment.take_notes()
    return ToolResult("\n\n".join(part for part in (notes, said) if part) or "(nothing)", is_error=is_error)
