"""A checkpointer around any other: it stores what the other stores, and says in each checkpoint's metadata where the
environment was. It never moves an environment: reading history must not, and LangGraph reads much.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)

from planarian_core.coroutines import in_thread
from planarian_langgraph.environments import Environments
from planarian_langgraph.marks import CHANNEL, mark_of

STATEPOINT, SANDBOX = "planarian_statepoint", "planarian_sandbox"
"""Keys of a checkpoint's metadata: ``graph.get_state_history(config, filter={"planarian_statepoint": "sp-…"})``."""


class StatepointSaver(BaseCheckpointSaver[Any]):
    """Wraps a saver; every capability is the wrapped one's.

    Args:
        inner: any ``BaseCheckpointSaver``.
        environments: None only mirrors ids; else ``copy_thread`` forks the environment, ``delete_thread`` (and
            ``prune`` with ``strategy="delete"``) removes it, and ``prune`` gives up the statepoints that no checkpoint
            names any more (those with names of their own stay).
    """

    def __init__(self, inner: BaseCheckpointSaver[Any], environments: Environments | None = None) -> None:
        super().__init__(serde=inner.serde)
        self.inner = inner
        self.environments = environments

    @property
    def config_specs(self) -> list[Any]:
        return self.inner.config_specs

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> StatepointSaver:
        return StatepointSaver(self.inner.with_allowlist(extra_allowlist), self.environments)

    def get_next_version(self, current: Any, channel: None) -> Any:
        return self.inner.get_next_version(current, channel)

    # --- reading ---

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self.inner.get_tuple(config)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await self.inner.aget_tuple(config)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        return self.inner.list(config, filter=filter, before=before, limit=limit)

    def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        return self.inner.alist(config, filter=filter, before=before, limit=limit)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return self.inner.get_delta_channel_history(config=config, channels=channels)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return await self.inner.aget_delta_channel_history(config=config, channels=channels)

    # --- writing ---

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self.inner.put(config, checkpoint, _with_place(checkpoint, metadata), new_versions)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await self.inner.aput(config, checkpoint, _with_place(checkpoint, metadata), new_versions)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self.inner.put_writes(config, writes, task_id, task_path)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await self.inner.aput_writes(config, writes, task_id, task_path)

    # --- threads ---

    def delete_thread(self, thread_id: str) -> None:
        self.inner.delete_thread(thread_id)
        self._with_environments(lambda environments: environments.remove(thread_id))

    async def adelete_thread(self, thread_id: str) -> None:
        await self.inner.adelete_thread(thread_id)
        await self._awith_environments(lambda environments: environments.remove(thread_id))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self.inner.copy_thread(source_thread_id, target_thread_id)
        self._with_environments(lambda environments: environments.copy(source_thread_id, target_thread_id))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await self.inner.acopy_thread(source_thread_id, target_thread_id)
        await self._awith_environments(lambda environments: environments.copy(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        self.inner.prune(thread_ids, strategy=strategy)
        for thread_id in thread_ids:
            left = [] if strategy == "delete" else list(self.inner.list(_config(thread_id)))
            self._with_environments(partial(_pruned, strategy, thread_id, left))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await self.inner.aprune(thread_ids, strategy=strategy)
        for thread_id in thread_ids:
            left = [] if strategy == "delete" else [found async for found in self.inner.alist(_config(thread_id))]
            await self._awith_environments(partial(_pruned, strategy, thread_id, left))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        self.inner.delete_for_runs(run_ids)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await self.inner.adelete_for_runs(run_ids)

    def _with_environments(self, act: Callable[[Environments], None]) -> None:
        if self.environments is not None:
            act(self.environments)

    async def _awith_environments(self, act: Callable[[Environments], None]) -> None:
        if self.environments is not None:
            await in_thread(partial(act, self.environments))


def _config(thread_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id}}


def _pruned(strategy: str, thread_id: str, left: Sequence[CheckpointTuple], environments: Environments) -> None:
    """What goes with a thread's checkpoints; ``left``: those that stay."""
    if strategy == "delete":
        environments.remove(thread_id)
    else:
        named = [str(dict(found.metadata).get(STATEPOINT, "")) for found in left]
        environments.prune(thread_id, [statepoint for statepoint in named if statepoint])


def _with_place(checkpoint: Checkpoint, metadata: CheckpointMetadata) -> CheckpointMetadata:
    """The metadata, with where the environment was, if the state says so."""
    mark = mark_of({CHANNEL: checkpoint["channel_values"].get(CHANNEL)})
    if mark is None:
        return metadata
    return cast(CheckpointMetadata, {**metadata, STATEPOINT: mark["statepoint"], SANDBOX: mark["sandbox"]})
