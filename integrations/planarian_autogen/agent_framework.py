"""Planarian for Microsoft Agent Framework, AutoGen's successor (``docs/autogen.md``).

::

    environment = Environment(planarian, workspace="repo")
    agent = Agent(client, tools=sandbox_tools(environment), middleware=[StatepointMiddleware(environment)])
    workflow = WorkflowBuilder(
        start_executor=agent,
        checkpoint_storage=StatepointCheckpointStorage(FileCheckpointStorage("checkpoints"), environment),
    ).build()
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial, wraps
from typing import Any

from planarian_autogen.environment import Environment
from planarian_autogen.inside import CommandFailed, Inside, Primitives
from planarian_autogen.marks import KEY, mark_of
from planarian_core.context import one_line
from planarian_core.coroutines import in_thread
from planarian_core.errors import PlanarianError
from planarian_core.faults import reach
from planarian_core.requirements import require
from planarian_core.service_tools import description_of, parameters_of, text_of

require("agent-framework-core", "agentframework", at_least=(1, 23), below=(2,))

from agent_framework import (  # noqa: E402  # after the check
    CheckpointID,
    CheckpointStorage,
    Content,
    FunctionInvocationContext,
    FunctionMiddleware,
    FunctionTool,
    WorkflowCheckpoint,
    tool,
)


class StatepointMiddleware(FunctionMiddleware):
    """Tool calls work in the environment: they take turns, and after each a statepoint is taken if the policy says so.

    What must be told (a restore, a statepoint that failed) is added to the result; a failure of the environment is the
    result, for the model to read.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    async def process(self, context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]]) -> None:
        try:
            async with self._environment.call(_described(context)) as notes:
                await call_next()
        except PlanarianError as error:
            context.result = str(error)
            return
        if notes:
            context.result = _with_notes(context.result, notes)


class StatepointCheckpointStorage:
    """A ``CheckpointStorage`` around any other: each checkpoint has a statepoint, which its metadata names.

    A workflow that resumes from a checkpoint finds the environment as it was then: it is brought there (or forked, the
    environment's ``on_load``) before the next call works in it. Reading moves nothing by itself; Agent Framework reads
    the newest checkpoint to look at it, so that one leaves the environment where it is.

    A statepoint that fails means that the framework logs it and has no checkpoint.
    """

    def __init__(self, inner: CheckpointStorage, environment: Environment) -> None:
        self._inner = inner
        self._environment = environment
        self._newest: CheckpointID | None = None
        self._loaded: CheckpointID | None = None

    async def save(self, checkpoint: WorkflowCheckpoint) -> CheckpointID:
        if self._loaded is not None and self._loaded != checkpoint.previous_checkpoint_id:
            self._environment.expect(None)  # it was only looked at
        mark = await self._environment.save(f"checkpoint {checkpoint.checkpoint_id}")
        marked = replace(checkpoint, metadata={**checkpoint.metadata, KEY: dict(mark)})
        reach("checkpoint.taken")
        self._newest, self._loaded = await self._inner.save(marked), None
        reach("checkpoint.saved")
        return self._newest

    async def load(self, checkpoint_id: CheckpointID) -> WorkflowCheckpoint:
        checkpoint = await self._inner.load(checkpoint_id)
        if KEY in checkpoint.metadata and checkpoint_id != self._newest:
            self._environment.expect(mark_of(checkpoint.metadata[KEY]))
            self._loaded = checkpoint_id
        return checkpoint

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        return await self._inner.list_checkpoints(workflow_name=workflow_name)

    async def delete(self, checkpoint_id: CheckpointID) -> bool:
        """The statepoint stays; ``planarian prune`` gives statepoints up."""
        return await self._inner.delete(checkpoint_id)

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        return await self._inner.get_latest(workflow_name=workflow_name)

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[CheckpointID]:
        return await self._inner.list_checkpoint_ids(workflow_name=workflow_name)


def sandbox_tools(environment: Environment, *, timeout: float = 600.0) -> list[FunctionTool]:
    """``bash``, ``read_file``, ``write_file`` and ``edit_file`` in the sandbox.

    Args:
        timeout: seconds that a command may take.
    """
    return [_tool(getattr(Inside(environment, timeout), name)) for name in Inside.names]


def primitive_tools(environment: Environment) -> list[FunctionTool]:
    """``snapshot``, ``rollback``, ``ledger`` and ``outcome``, for an agent that is to decide itself."""
    return [_tool(getattr(Primitives(environment), name)) for name in Primitives.names]


def remote_tools(environment: Environment, service: str) -> list[FunctionTool]:
    """The tools of a service of ``planarian.toml``, as it describes them. Each call is made on behalf of the
    environment's sandbox, so that it can be undone with it; what is refused, or fenced off in a fork, the model reads.

    Raises:
        ConfigurationError: there is no such service.
        RemoteError: it can't be reached.
    """
    return [_remote_tool(environment, service, tool) for tool in environment.planarian.service_tools.listed(service)]


def _remote_tool(environment: Environment, service: str, described: Mapping[str, Any]) -> FunctionTool:
    name = str(described["name"])

    async def called(**arguments: Any) -> str:
        try:
            async with environment.turn() as sandbox:
                call = partial(environment.planarian.service_tools.call, sandbox, service, name, arguments)
                return text_of(await in_thread(call))
        except PlanarianError as error:
            return str(error)

    return FunctionTool(
        name=name,
        description=description_of(described),
        func=called,
        input_model=parameters_of(described),
        approval_mode="never_require",
    )


def _tool(work: Callable[..., Awaitable[str]]) -> FunctionTool:
    """A tool whose failures the model reads: the framework keeps an exception's text from it."""

    @wraps(work)
    async def told(*arguments: Any, **named: Any) -> str:
        try:
            return await work(*arguments, **named)
        except (CommandFailed, PlanarianError) as error:
            return str(error)

    description = " ".join((work.__doc__ or "").split())
    return tool(told, name=work.__name__, description=description, approval_mode="never_require")


def _described(context: FunctionInvocationContext) -> str:
    arguments = context.arguments
    given = arguments.items() if hasattr(arguments, "items") else arguments
    return one_line(f"after {context.function.name}({', '.join(f'{key}={value!r}' for key, value in given)})", 300)


def _with_notes(result: Any, notes: list[str]) -> Any:
    """A result and what must be told with it, in one of the forms that the framework keeps."""
    told = [Content.from_text(note) for note in notes]
    if isinstance(result, list):
        return [*result, *told]
    return [Content.from_text(str(result)), *told] if result is not None else told
