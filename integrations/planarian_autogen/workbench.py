"""Workbenches whose tool calls work in an environment and leave statepoints behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

from autogen_core import CancellationToken, ComponentModel
from autogen_core.tools import (
    StaticStreamWorkbench,
    StaticWorkbench,
    TextResultContent,
    ToolResult,
    ToolSchema,
    Workbench,
)
from pydantic import BaseModel

from planarian_autogen.environment import Environment
from planarian_autogen.settings import EnvironmentSettings
from planarian_autogen.state import load_state, save_state
from planarian_autogen.tools import primitive_tools, sandbox_tools
from planarian_core.context import one_line
from planarian_core.coroutines import being_cancelled
from planarian_core.errors import ConfigurationError, PlanarianError

_CANCELLED = "The call was cancelled."


class StatepointWorkbenchConfig(BaseModel):
    """The workbench inside, and the environment."""

    inner: ComponentModel
    environment: EnvironmentSettings
    primitives: bool = False


@runtime_checkable
class Streams(Protocol):
    """A workbench that streams: AutoGen has a base class for it, but doesn't export it."""

    def call_tool_stream(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: CancellationToken | None = None,
        call_id: str | None = None,
    ) -> AsyncGenerator[Any | ToolResult, None]: ...


@dataclass(frozen=True)
class _Ended:
    """The end of a stream; ``error`` is what ended it."""

    error: BaseException | None


class StatepointWorkbench(StaticStreamWorkbench):
    """Any workbench, with an environment around its calls: they take turns (agents make several at once), and after
    each a statepoint is taken if the policy says so.

    It streams what the workbench inside streams. It is a ``StaticStreamWorkbench`` because that is what AutoGen's
    agents look for before they stream; nothing of that class is used. A failure of the environment, and a call that a
    token cancels, is a result with ``is_error``: an exception from a workbench lets AutoGen's ``AssistantAgent`` wait
    for ever.

    Args:
        inner: its tools work in the environment (``environment.sandbox``), or on remote services of it.
        primitives: offer ``snapshot``, ``rollback``, ``ledger`` and ``outcome`` as tools beside the inner ones.
    """

    component_provider_override = "planarian_autogen.StatepointWorkbench"
    component_config_schema = StatepointWorkbenchConfig  # type: ignore[assignment]  # not StaticWorkbench's

    def __init__(self, inner: Workbench, environment: Environment, *, primitives: bool = False) -> None:
        super().__init__(tools=[])
        self.inner = inner
        self.environment = environment
        self._primitives = StaticWorkbench(list(primitive_tools(environment))) if primitives else StaticWorkbench([])

    async def list_tools(self) -> list[ToolSchema]:
        """The inner tools as they are, and the primitives.

        Raises:
            ConfigurationError: two have the same name.
        """
        inner, own = await self.inner.list_tools(), await self._primitives.list_tools()
        both = {tool["name"] for tool in inner} & {tool["name"] for tool in own}
        if both:
            raise ConfigurationError(
                f"the workbench has tools of its own that are called {', '.join(sorted(both))}",
                code="tool-names",
                remedy="primitives=False, or other names for those",
            )
        return [*inner, *own]

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: CancellationToken | None = None,
        call_id: str | None = None,
    ) -> ToolResult:
        if await self._is_primitive(name):
            return await self._primitives.call_tool(name, arguments, cancellation_token, call_id)
        try:
            async with self.environment.call(_described(name, arguments)) as notes:
                result = await self.inner.call_tool(name, arguments, cancellation_token, call_id)
        except PlanarianError as error:
            return _failed(name, str(error))
        except asyncio.CancelledError:
            if not _by_token(cancellation_token):
                raise
            return _failed(name, _CANCELLED)
        return _noted(result, notes)

    async def call_tool_stream(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: CancellationToken | None = None,
        call_id: str | None = None,
    ) -> AsyncGenerator[Any | ToolResult, None]:
        if not isinstance(self.inner, Streams) or await self._is_primitive(name):
            yield await self.call_tool(name, arguments, cancellation_token, call_id)
            return
        items: asyncio.Queue[Any] = asyncio.Queue()
        # A task of its own: a generator's turn would be held in the contexts of those who read from it.
        task = asyncio.create_task(self._stream_to(items, self.inner, name, arguments, cancellation_token, call_id))
        try:
            while not isinstance(item := await items.get(), _Ended):
                yield item
            if item.error is not None:
                raise item.error
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _stream_to(
        self,
        items: asyncio.Queue[Any],
        inner: Streams,
        name: str,
        arguments: Mapping[str, Any] | None,
        token: CancellationToken | None,
        call_id: str | None,
    ) -> None:
        """Put what the inner workbench streams into a queue; the last result when the call's turn is over."""
        last: ToolResult | None = None
        error: BaseException | None = None
        try:
            async with self.environment.call(_described(name, arguments)) as notes:
                async for item in inner.call_tool_stream(name, arguments, token, call_id):
                    if last is not None:
                        items.put_nowait(last)
                    last = item if isinstance(item, ToolResult) else None
                    if last is None:
                        items.put_nowait(item)
            if last is not None:
                items.put_nowait(_noted(last, notes))
        except PlanarianError as failure:
            items.put_nowait(_failed(name, str(failure)))
        except BaseException as failure:  # a cancellation too: whoever reads is to see it
            if isinstance(failure, asyncio.CancelledError) and _by_token(token):
                items.put_nowait(_failed(name, _CANCELLED))
            else:
                error = failure
        items.put_nowait(_Ended(error))

    async def _is_primitive(self, name: str) -> bool:
        return any(tool["name"] == name for tool in await self._primitives.list_tools())

    async def start(self) -> None:
        """Find or make the sandbox, and start the workbench inside."""
        await self.environment.start()
        await self.inner.start()

    async def stop(self) -> None:
        """Stop the workbench inside. The sandbox stays, with what runs in it.

        Raises:
            CaptureError: the statepoint after the last call could not be taken.
        """
        await self.inner.stop()
        await self.environment.settle()

    async def reset(self) -> None:
        """Reset the workbench inside, and bring the environment back to how it was found."""
        await self.inner.reset()
        await self.environment.reset()

    async def save_state(self) -> Mapping[str, Any]:
        """The state of the workbench inside, with one key more for a statepoint. Plain data."""
        return await save_state(self.inner, self.environment)

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Bring the environment and the workbench inside back. The next result says what that has changed."""
        await load_state(self.inner, self.environment, state)

    def _to_config(self) -> StatepointWorkbenchConfig:  # type: ignore[override]  # not StaticWorkbench's
        inner, primitives = self.inner.dump_component(), bool(self._primitives._tools)
        return StatepointWorkbenchConfig(inner=inner, environment=self.environment.settings, primitives=primitives)

    @classmethod
    def _from_config(cls, config: StatepointWorkbenchConfig) -> Self:  # type: ignore[override]  # likewise
        inner = Workbench.load_component(config.inner)
        return cls(inner, Environment.of(config.environment), primitives=config.primitives)


class SandboxWorkbenchConfig(BaseModel):
    """The environment, and which of its tools."""

    environment: EnvironmentSettings
    primitives: bool = True
    timeout: float = 600.0


class SandboxWorkbench(StatepointWorkbench):
    """``bash`` and file tools in an environment, and the primitives.

    Args:
        primitives: offer ``snapshot``, ``rollback``, ``ledger`` and ``outcome`` too.
        timeout: seconds that a command may take.
    """

    component_provider_override = "planarian_autogen.SandboxWorkbench"
    component_config_schema = SandboxWorkbenchConfig  # type: ignore[assignment]  # not StaticWorkbench's

    def __init__(self, environment: Environment, *, primitives: bool = True, timeout: float = 600.0) -> None:
        tools = StaticStreamWorkbench(list(sandbox_tools(environment, timeout=timeout)))
        super().__init__(tools, environment, primitives=primitives)
        self._config = SandboxWorkbenchConfig(environment=environment.settings, primitives=primitives, timeout=timeout)

    def _to_config(self) -> SandboxWorkbenchConfig:  # type: ignore[override]  # not StaticWorkbench's
        return self._config

    @classmethod
    def _from_config(cls, config: SandboxWorkbenchConfig) -> Self:  # type: ignore[override]  # likewise
        return cls(Environment.of(config.environment), primitives=config.primitives, timeout=config.timeout)


def _described(name: str, arguments: Mapping[str, Any] | None) -> str:
    given = ", ".join(f"{key}={value!r}" for key, value in (arguments or {}).items())
    return one_line(f"after {name}({given})", 300)


def _failed(name: str, why: str) -> ToolResult:
    return ToolResult(name=name, result=[TextResultContent(content=why)], is_error=True)


def _by_token(token: CancellationToken | None) -> bool:
    """Whether a cancellation comes from the token, and the caller itself goes on."""
    return token is not None and token.is_cancelled() and not being_cancelled()


def _noted(result: ToolResult, notes: list[str]) -> ToolResult:
    told = [TextResultContent(content=note) for note in notes]
    return result.model_copy(update={"result": [*result.result, *told]}) if told else result
