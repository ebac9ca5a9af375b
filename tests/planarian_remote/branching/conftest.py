"""Fixtures of the branching kind: a real doltlite database, looked at from another process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from planarian_core import Planarian
from planarian_core.sandbox import Sandbox
from planarian_core.testing.branched_notes import Agent, Notes, Outside
from planarian_core.testing.workloads import remove_all


@pytest.fixture(scope="session")
def outside() -> Iterator[Outside]:
    made = Outside()
    yield made
    made.close()


@pytest.fixture
def notes(tmp_path: Path, outside: Outside) -> Notes:
    return Notes(tmp_path / "notes", outside)


@pytest.fixture
def planarian(notes: Notes) -> Iterator[Planarian]:
    with notes.open() as opened:
        yield opened
        remove_all(opened)


@pytest.fixture
def sandbox(notes: Notes, planarian: Planarian) -> Sandbox:
    return notes.sandbox(planarian)


@pytest.fixture
def agent(planarian: Planarian, sandbox: Sandbox) -> Iterator[Agent]:
    made = Agent(planarian, sandbox)
    yield made
    made.close()
