"""A pytest plugin: AutoGen's tests get our workbench and code executor where they ask for AutoGen's own.

``PLANARIAN_SWAP`` names the sandbox and process backends: ``directory respawn``; ``PLANARIAN_DESELECTED`` the tests
that are left out. A sandbox ends with its test, and when
another one is made.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import autogen_core.tools
import autogen_ext.code_executors.local
import pytest
from autogen_core.tools import StaticStreamWorkbench, StaticWorkbench

from planarian_autogen import Environment, SandboxCodeExecutor, StatepointWorkbench
from planarian_autogen.code_executor import SandboxCodeExecutorConfig
from planarian_core import Planarian


class Swap:
    """What is swapped in: its runtime, its count."""

    runtime: ClassVar[Planarian]
    workspaces: ClassVar[Path]
    made: ClassVar[int] = 0

    @classmethod
    def environment(cls, workspace: Path | str | None = None) -> Environment:
        cls.end_all()
        cls.made += 1
        sandbox, process = os.environ["PLANARIAN_SWAP"].split()
        workspace = workspace or tempfile.mkdtemp(dir=cls.workspaces)
        return Environment(cls.runtime, workspace, sandbox=sandbox, process=process)

    @classmethod
    def end_all(cls) -> None:
        for record in reversed(cls.runtime.registry.sandboxes()):
            cls.runtime.remove_sandbox(cls.runtime.sandbox(record.id))


class Inner(StaticWorkbench):
    """AutoGen's own, under a name that isn't swapped: for configurations."""

    component_provider_override = "planarian_swap.Inner"


class InnerStream(StaticStreamWorkbench):
    component_provider_override = "planarian_swap.InnerStream"


class SwappedWorkbench(StatepointWorkbench):
    """Ours around the one that the test wants."""

    kind: ClassVar[type[StaticWorkbench]] = Inner

    def __init__(self, tools: Sequence[Any], tool_overrides: dict[str, Any] | None = None) -> None:
        inner = self.kind(list(tools), tool_overrides)
        super().__init__(inner, Swap.environment())
        self._override_name_to_original = inner._override_name_to_original  # which a test looks at


class SwappedStreamWorkbench(SwappedWorkbench):
    kind = InnerStream


class SwappedExecutor(SandboxCodeExecutor):
    """Ours with the arguments of AutoGen's."""

    component_provider_override = "planarian_swap.SwappedExecutor"

    def __init__(
        self,
        timeout: int = 60,
        work_dir: Path | str | None = None,
        cleanup_temp_files: bool = True,
        virtual_env_context: SimpleNamespace | None = None,
    ) -> None:
        # In a directory sandbox AutoGen's choice; elsewhere this process's interpreter may not be there.
        python = sys.executable if os.environ["PLANARIAN_SWAP"].startswith("directory") else "python3"
        if virtual_env_context:
            python = os.path.abspath(virtual_env_context.env_exe)
        environment = Swap.environment(work_dir)
        super().__init__(environment, timeout=timeout, cleanup_temp_files=cleanup_temp_files, python=python)

    @property
    def work_dir(self) -> Path:
        return Path(self.environment.sandbox.workspace)

    @classmethod
    def _from_config(cls, config: SandboxCodeExecutorConfig) -> SwappedExecutor:
        made = cls.__new__(cls)
        SandboxCodeExecutor.__init__(
            made, Environment.of(config.environment), **config.model_dump(exclude={"environment"})
        )
        return made


def pytest_configure(config: pytest.Config) -> None:
    place = tempfile.TemporaryDirectory(prefix="planarian-upstream-")
    Swap.workspaces = Path(place.name, "workspaces")
    Swap.workspaces.mkdir()
    Swap.runtime = Planarian.open(Path(place.name, "home"))
    config.add_cleanup(place.cleanup)
    config.add_cleanup(Swap.runtime.close)  # cleanups run in reverse order
    config.addinivalue_line("markers", "windows: of AutoGen's own")
    autogen_core.tools.StaticWorkbench = SwappedWorkbench  # type: ignore[misc]  # the swap is the point
    autogen_core.tools.StaticStreamWorkbench = SwappedStreamWorkbench  # type: ignore[misc]  # likewise
    autogen_ext.code_executors.local.LocalCommandLineCodeExecutor = SwappedExecutor  # type: ignore[assignment,misc]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """By the whole name: pytest's own option would take the tests along whose names begin so."""
    unwanted = os.environ["PLANARIAN_DESELECTED"].split()
    deselected = [item for item in items if getattr(item, "originalname", item.name) in unwanted]
    config.hook.pytest_deselected(items=deselected)
    items[:] = [item for item in items if item not in deselected]


@pytest.fixture(autouse=True)
def no_sandbox_stays() -> Iterator[None]:
    yield
    Swap.end_all()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A swap that didn't happen must not look like a pass."""
    if not Swap.made:
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"{Swap.made} environments were ours")
