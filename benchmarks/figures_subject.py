"""What the figures are measured on: a sandbox with the load in it, and what one way of taking snapshots does to it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from benchmarks import figures_load
from benchmarks.combinations import Combination
from benchmarks.figures_load import Load
from benchmarks.timing import Stopwatch
from planarian_core.model import Artefact
from planarian_core.runtime import Planarian
from planarian_core.sandbox import Sandbox


@dataclass(frozen=True)
class Taken:
    """A snapshot: what names it, bytes that it added to the disk, what CRIU counted, and what its maker says of it."""

    point: str
    size: int
    counted: Mapping[str, float] = field(default_factory=dict)
    said: tuple[str, ...] = ()


class Subject(Protocol):
    """What counts happens while the stopwatch runs. Forks are removed together with what they are forks of."""

    @property
    def pid(self) -> int:
        """The load's, on the host."""

    def snapshot(self, stopwatch: Stopwatch) -> Taken: ...

    def rollback(self, point: str, stopwatch: Stopwatch) -> None: ...

    def fork(self, point: str, stopwatch: Stopwatch) -> Subject: ...


class Ours:
    """A sandbox of Planarian's."""

    def __init__(self, planarian: Planarian, sandbox: Sandbox) -> None:
        self._planarian = planarian
        self._sandbox = sandbox
        self.forks: list[Ours] = []

    @property
    def pid(self) -> int:
        record = self._sandbox.record
        backend = self._planarian.plugins.sandbox(record.spec.backend)
        live = record.live
        if live is None:
            raise RuntimeError(f"{self._sandbox.id} doesn't run")
        return figures_load.find(lambda: backend.tasks(record.spec, live))

    def snapshot(self, stopwatch: Stopwatch) -> Taken:
        with stopwatch:
            point = self._planarian.snapshot(self._sandbox)
        if not point.coverage.complete or point.files is None or point.processes is None:
            raise RuntimeError(f"{point.id} isn't of everything: {point.coverage}")
        size = _files(point.files) + point.processes.stored
        return Taken(point.id, size, point.processes.details["counted"], point.coverage.captured)

    def rollback(self, point: str, stopwatch: Stopwatch) -> None:
        with stopwatch:
            self._planarian.rollback(self._sandbox, point, safety=False)

    def fork(self, point: str, stopwatch: Stopwatch) -> Ours:
        with stopwatch:
            made = self._planarian.fork(point, of=self._sandbox)
        self.forks.append(Ours(self._planarian, made))
        return self.forks[-1]

    def remove(self) -> None:
        for fork in self.forks:
            fork.remove()
        self._planarian.remove_sandbox(self._sandbox)


@contextmanager
def started(planarian: Planarian, folder: Path, combination: Combination, load: Load) -> Iterator[Subject]:
    """A sandbox with the load in it; it, its forks and its statepoints are gone in the end."""
    workspace = folder / "workspace"
    workspace.mkdir(parents=True, exist_ok=True)
    sandbox = planarian.create_sandbox(
        workspace, sandbox=combination.sandbox, filesystem=combination.filesystem, process=combination.process
    )
    subject = Ours(planarian, sandbox)
    try:
        sandbox.spawn(load.argv)
        yield subject
    finally:
        subject.remove()


def _files(artefact: Artefact) -> int:
    """Bytes that a file snapshot added to the disk; what ZFS says where the backend doesn't know."""
    if artefact.backend != "zfs":
        return artefact.stored
    command = ["zfs", "list", "-H", "-p", "-t", "snapshot", "-o", "name,written"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    rows = (line.split("\t") for line in printed.splitlines())
    return next(int(written) for name, written in rows if name.endswith(f"@{artefact.reference}"))
