"""The combinations of backends that this host allows, and sandboxes to measure on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.comparators import FullSnapshot
from planarian_core.model import Network, SandboxSpec
from planarian_core.runtime import Planarian
from planarian_core.sandbox import Sandbox
from planarian_core.testing.workloads import COUNTER_SERVER


@dataclass(frozen=True)
class Combination:
    """Backend names."""

    sandbox: str
    filesystem: str
    process: str

    def __str__(self) -> str:
        return f"{self.sandbox}+{self.filesystem}+{self.process}"


@dataclass(frozen=True)
class Pair:
    """Two equal sandboxes: one for Planarian, one for the full snapshots, so that neither disturbs the other."""

    combination: Combination
    ours: Sandbox
    theirs: Sandbox
    full: FullSnapshot

    def both(self, command: str) -> None:
        """Run the same shell command in both; it must succeed."""
        for sandbox in (self.ours, self.theirs):
            result = sandbox.run(command, timeout=1800)
            if result.exit_code != 0:
                raise RuntimeError(f"{command}: exit code {result.exit_code}: {result.stderr}")


def available(planarian: Planarian, *, every_process: bool) -> list[Combination]:
    """What works here, preferred first; without ``every_process`` only the best process backend of each sandbox."""
    plugins = planarian.plugins
    found = []
    for sandbox in (n for n in plugins.names("sandbox") if plugins.probe("sandbox", n).available):
        spec = SandboxSpec("sb-none", "", "", str(planarian.home), sandbox, Network.NONE)
        capabilities = plugins.sandbox(sandbox).capabilities
        processes = [
            name
            for name in plugins.names("process")
            if plugins.process(name).serves(spec, capabilities).available and plugins.probe("process", name).available
        ]
        for filesystem in (n for n in plugins.names("filesystem") if plugins.probe("filesystem", n).available):
            if capabilities.in_place and not plugins.filesystem(filesystem).capabilities.in_place:
                continue
            for process in processes if every_process else processes[:1]:
                found.append(Combination(sandbox, filesystem, process))
    return found


def few(combinations: list[Combination]) -> list[Combination]:
    """As many of them as it takes to have each of their backends once."""
    seen: set[str] = set()
    found = []
    for one in combinations:
        backends = {one.sandbox, one.filesystem, one.process}
        if not backends <= seen:
            found.append(one)
            seen |= backends
    return found


@contextmanager
def pairs(planarian: Planarian, folder: Path, combinations: list[Combination]) -> Iterator[list[Pair]]:
    """A pair for each combination, each sandbox with a small server in it; all are removed in the end."""
    made: list[Sandbox] = []

    def make(combination: Combination, role: str) -> Sandbox:
        workspace = folder / f"{combination}-{role}"
        workspace.mkdir(parents=True)
        (workspace / "hello.txt").write_text("hello\n")
        sandbox = planarian.create_sandbox(
            workspace, sandbox=combination.sandbox, filesystem=combination.filesystem, process=combination.process
        )
        made.append(sandbox)
        sandbox.spawn(["python3", "-c", COUNTER_SERVER, "counter.sock"])
        return sandbox

    try:
        result = []
        for combination in combinations:
            ours, theirs = make(combination, "ours"), make(combination, "theirs")
            full = FullSnapshot(planarian, theirs, folder / f"{combination}-full")
            result.append(Pair(combination, ours, theirs, full))
        yield result
    finally:
        for sandbox in made:
            planarian.remove_sandbox(sandbox)
        shutil.rmtree(folder, ignore_errors=True)
