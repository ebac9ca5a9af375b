"""LangGraph's own conformance suite through the wrapper, over each saver of LangGraph, by coroutines and without."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langgraph.checkpoint.conformance", reason="needs langgraph-checkpoint-conformance")

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.memory import InMemorySaver

from planarian_langgraph import StatepointSaver

Opened = Callable[[], AbstractAsyncContextManager[BaseCheckpointSaver[Any]]]


class SyncFace(BaseCheckpointSaver[Any]):
    """Answers coroutines by the plain methods of another saver: the suite asks only coroutines."""

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        super().__init__(serde=saver.serde)
        self.saver = saver

    def get_next_version(self, current: Any, channel: None) -> Any:
        return self.saver.get_next_version(current, channel)

    async def alist(self, config: Any, **named: Any) -> AsyncIterator[Any]:
        for found in await asyncio.to_thread(lambda: list(self.saver.list(config, **named))):
            yield found


def _face(name: str) -> Any:
    async def call(self: SyncFace, *arguments: Any, **named: Any) -> Any:
        return await asyncio.to_thread(getattr(self.saver, name), *arguments, **named)

    return call


for _name in ("get_tuple", "put", "put_writes", "delete_thread", "delete_for_runs", "copy_thread", "prune"):
    setattr(SyncFace, f"a{_name}", _face(_name))  # the suite looks for them in the class


def _passes(name: str, opened: Opened) -> Any:
    """The report of the whole suite; each part of it on a fresh saver."""

    @checkpointer_test(name=name)
    async def wrapped() -> AsyncIterator[BaseCheckpointSaver[Any]]:
        async with opened() as saver:
            yield saver

    report = asyncio.run(validate(wrapped))
    assert report.passed_all_base(), report
    return report


@asynccontextmanager
async def _memory() -> AsyncIterator[BaseCheckpointSaver[Any]]:
    yield StatepointSaver(InMemorySaver())


@asynccontextmanager
async def _memory_sync() -> AsyncIterator[BaseCheckpointSaver[Any]]:
    yield SyncFace(StatepointSaver(InMemorySaver()))


@pytest.mark.parametrize("opened", [_memory, _memory_sync], ids=["async", "sync"])
def test_memory(opened: Opened) -> None:
    _passes(f"memory-{opened.__name__}", opened)


@pytest.mark.parametrize("face", ["async", "sync"])
def test_sqlite(tmp_path: Path, face: str) -> None:
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    made = iter(range(1000))

    @asynccontextmanager
    async def opened() -> AsyncIterator[BaseCheckpointSaver[Any]]:
        path = str(tmp_path / f"{next(made)}.sqlite")
        if face == "sync":
            with SqliteSaver.from_conn_string(path) as saver:
                yield SyncFace(StatepointSaver(saver))
        else:
            async with AsyncSqliteSaver.from_conn_string(path) as async_saver:
                yield StatepointSaver(async_saver)

    _passes(f"sqlite-{face}", opened)


@pytest.mark.needs("postgresql")
@pytest.mark.parametrize("face", ["async", "sync"])
def test_postgresql(postgresql: Any, face: str) -> None:
    from langgraph.checkpoint.postgres import PostgresSaver
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

    @asynccontextmanager
    async def opened() -> AsyncIterator[BaseCheckpointSaver[Any]]:
        dsn = postgresql.dsn(postgresql.create_database())
        if face == "sync":
            with PostgresSaver.from_conn_string(dsn) as saver:
                saver.setup()
                yield SyncFace(StatepointSaver(saver))
        else:
            async with AsyncPostgresSaver.from_conn_string(dsn) as async_saver:
                await async_saver.setup()
                yield StatepointSaver(async_saver)

    _passes(f"postgresql-{face}", opened)


def test_the_suite_would_notice() -> None:
    """The same suite through a wrapper that loses pending writes."""

    class Losing(StatepointSaver):
        async def aput_writes(self, *arguments: Any, **named: Any) -> None:
            return

    @asynccontextmanager
    async def opened() -> AsyncIterator[BaseCheckpointSaver[Any]]:
        yield Losing(InMemorySaver())

    with pytest.raises(AssertionError):
        _passes("losing", opened)
