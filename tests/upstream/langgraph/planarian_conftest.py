"""In place of upstream's conftest: the fixtures that its tests ask for, with our saver around LangGraph's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from planarian_langgraph import StatepointSaver


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["sync", "async", "exit"])
def durability(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=["memory", "sqlite"])
def sync_checkpointer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "memory":
        yield StatepointSaver(InMemorySaver())
        return
    with SqliteSaver.from_conn_string(str(tmp_path / "checkpoints")) as saver:
        yield StatepointSaver(saver)


@pytest.fixture(params=["memory", "sqlite"])
async def async_checkpointer(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    if request.param == "memory":
        yield StatepointSaver(InMemorySaver())
        return
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "checkpoints")) as saver:
        yield StatepointSaver(saver)
