"""A pytest plugin: mini-swe-agent's tests get our environment where they ask for ``LocalEnvironment``.

``PLANARIAN_SWAP`` names the sandbox and process backends: ``directory respawn``. Each test ends with its sandboxes
removed; one that would be made on a workspace that is taken in place ends the earlier one first.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from minisweagent.environments import local

from planarian_core import Planarian
from planarian_miniswe import PlanarianEnvironment, PlanarianEnvironmentConfig


class Swapped(PlanarianEnvironment):
    """Ours with the whole environment forwarded, as ``LocalEnvironment`` does; one sandbox at a time, none kept."""

    runtime: ClassVar[Planarian]
    living: ClassVar[list[Swapped]] = []
    made: ClassVar[int] = 0

    def __init__(self, **settings: Any) -> None:
        self.end_all()
        sandbox, process = os.environ["PLANARIAN_SWAP"].split()
        ours = {"sandbox": sandbox, "process": process, "keep": False, "forward_env": ["*"]}
        super().__init__(planarian=self.runtime, **{**ours, **settings})
        self.living.append(self)
        Swapped.made += 1

    @classmethod
    def end_all(cls) -> None:
        while cls.living:
            cls.living.pop().close()


def pytest_configure(config: pytest.Config) -> None:
    home = tempfile.TemporaryDirectory(prefix="planarian-upstream-")
    Swapped.runtime = Planarian.open(Path(home.name))
    config.add_cleanup(home.cleanup)
    config.add_cleanup(Swapped.runtime.close)  # cleanups run in reverse order
    local.LocalEnvironment = Swapped  # type: ignore[assignment,misc]  # the swap is the point
    local.LocalEnvironmentConfig = PlanarianEnvironmentConfig  # type: ignore[assignment,misc]  # likewise


@pytest.fixture(autouse=True)
def no_sandbox_stays() -> Iterator[None]:
    yield
    Swapped.end_all()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A swap that didn't happen must not look like a pass."""
    if not Swapped.made:
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"{Swapped.made} environments were ours")
