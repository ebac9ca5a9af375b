"""The process backend ``none``: everything stands still during the instant, nothing of the processes is captured.

Each process is named as a gap; a rollback stops what runs and starts nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from planarian_core.interfaces import (
    Availability,
    Instant,
    ProcessCapabilities,
    RunningSandbox,
    SandboxCapabilities,
)
from planarian_core.model import Artefact, Domain, Gap, SandboxSpec
from planarian_process.freeze import standstill, thaw
from planarian_process.observe import observe
from planarian_process.respawn import describe, process_list
from planarian_process.sessions import own_processes, session_gaps
from planarian_process.stillness import idle


class NoneBackend:
    name = "none"
    capabilities = ProcessCapabilities(memory=False, restarts=False)

    def __init__(self, home: Path) -> None:
        self._home = home

    def probe(self) -> Availability:
        return Availability(True, "processes are not captured")

    def serves(self, spec: SandboxSpec, sandbox: SandboxCapabilities) -> Availability:
        return Availability(True)

    @contextmanager
    def instant(self, sandbox: RunningSandbox, images: Path) -> Iterator[Instant]:
        result = Instant()
        with standstill(sandbox, self._home) as pids:
            seen = observe(pids)
            yield result
        ours = own_processes(seen, sandbox) | frozenset(sandbox.in_flight)
        result.process_list = process_list(seen, ours)
        result.gaps = session_gaps(seen, sandbox) + tuple(
            Gap(Domain.PROCESSES, describe(process.pid, process.argv), "not captured; stopped by a rollback")
            for process in result.process_list
        )

    def still(self, sandbox: RunningSandbox, artefact: Artefact | None) -> bool:
        """Whether nothing runs, so that there is nothing to capture. The caller knows whether something ran then."""
        return idle(sandbox)

    def verify(self, artefact: Artefact, images: Path) -> None:
        """There is never anything to miss."""

    def discard(self, images: Path) -> None:
        """There is never anything to give up."""

    def thaw(self, sandbox: RunningSandbox) -> None:
        thaw(sandbox, self._home)
