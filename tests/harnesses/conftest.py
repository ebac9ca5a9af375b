"""Harnesses from npm, installed once, each in a home of its own; the model behind them says what a script says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from planarian_core import Planarian
from planarian_core.errors import BackendUnavailable
from planarian_core.testing.mcp_servers import npm_package
from planarian_core.testing.workloads import remove_all

pytest.importorskip("mcp.server.runner", reason="needs planarian[mcp]")


class Place:
    """Where a harness runs: its home, the project, and Planarian's home with a sandbox ``work`` on the project."""

    def __init__(self, folder: Path) -> None:
        self.home, self.project, self.planarian_home = (folder / name for name in ("home", "project", "planarian"))
        for made in (self.home, self.project):
            made.mkdir()
        self.project.joinpath("f").write_text("one\n")
        with Planarian.open(self.planarian_home) as planarian:
            planarian.create_sandbox(
                self.project, name="work", sandbox="directory", filesystem="copy", process="respawn"
            )

    @property
    def command(self) -> str:
        """The command of the MCP server."""
        return str(Path(sys.executable).with_name("planarian"))

    def run(self, command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a harness to its end, in the project, with nothing of this user's own about it."""
        temporary = self.home / "tmp"
        temporary.mkdir()
        clean = {"HOME": str(self.home), "PATH": os.environ["PATH"], "TERM": "dumb", "TMPDIR": str(temporary)}
        return subprocess.run(
            command, env={**clean, **environment}, cwd=self.project, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    with Planarian.open(made.planarian_home) as planarian:
        remove_all(planarian)


@pytest.fixture
def from_npm() -> Callable[[str, str], str]:
    """The command of a package, ``name@version``; a package that can't be installed is skipped loudly, and in CI an
    error.
    """

    def found(pinned: str, command: str) -> str:
        if not shutil.which("npm"):
            pytest.skip("NOT RUN: npm is missing")
        try:
            return str(npm_package(pinned).parents[1 + pinned.count("/")] / "node_modules" / ".bin" / command)
        except BackendUnavailable as error:
            if os.environ.get("CI") == "true":
                raise
            pytest.skip(f"NOT RUN: {error}")

    return found
