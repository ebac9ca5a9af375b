"""What a snapshot does between its journal entry and its commit: proof that nothing changed, or the instant.

Where it is proven that nothing moved since the head (paper, section 5.2: what didn't change isn't captured again), its
artefacts are shared: of the processes alone, or of the files too. In doubt all is captured.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from planarian_core import context, coverage
from planarian_core.artefacts import Artefacts
from planarian_core.errors import CaptureError, PlanarianError
from planarian_core.faults import reach
from planarian_core.interfaces import Instant, Prehashing, ProvesStillness, ProvesUnchanged, RunningSandbox
from planarian_core.model import (
    Artefact,
    Domain,
    Gap,
    ProcessInfo,
    RemotePosition,
    SandboxRecord,
    Statepoint,
    Status,
)
from planarian_core.plugin_manager import PluginManager
from planarian_core.registry import Registry
from planarian_core.remote_state import RemoteState
from planarian_core.sandbox_manager import SandboxManager, layer_of


@dataclass(frozen=True)
class SnapshotRequest:
    """What a caller says of a statepoint it asks for.

    ``in_flight``: inside pids of the call that asked for it from within the sandbox; they are in the image but die in a
    restore before they run, lest the rest of the call happen again. ``files_only``: leave the processes out, said so.
    ``apart_from``: a statepoint whose artefacts must not be shared, because they may turn out to be damaged.
    """

    name: str = ""
    description: str = ""
    automatic: bool = False
    in_flight: tuple[int, ...] = ()
    files_only: str = ""
    apart_from: Statepoint | None = None

    @property
    def quiet(self) -> bool:
        """Whether no plugin is asked to describe the state: that takes commands in the sandbox."""
        return self.automatic or bool(self.in_flight)


@dataclass
class _Captured:
    """What the instant gathered."""

    files: Artefact | None = None
    remote: tuple[RemotePosition, ...] = ()
    timings: dict[str, float] = field(default_factory=dict)


class Capturer:
    """Captures sandboxes whose exclusive lock the caller holds."""

    def __init__(
        self,
        registry: Registry,
        plugins: PluginManager,
        sandboxes: SandboxManager,
        remote: RemoteState,
        artefacts: Artefacts,
    ) -> None:
        self._registry = registry
        self._plugins = plugins
        self._sandboxes = sandboxes
        self._remote = remote
        self._artefacts = artefacts

    # --- what did not change ---

    def head(self, record: SandboxRecord) -> Statepoint | None:
        """The statepoint that the sandbox's live state grew from, if all of it can be shared."""
        head_id = self._registry.branch(record.id).head
        head = self._registry.find(head_id) if head_id else None
        if head is None or head.status is not Status.COMMITTED or head.files is None or head.in_flight:
            return None
        return head if head.files.backend == record.filesystem and head.base == record.base else None

    def still(self, record: SandboxRecord, head: Statepoint) -> bool:
        """Whether it is proven that no process moved since the head's image was taken of these very processes."""
        backend = self._plugins.process(record.process)
        artefact = head.processes
        if not isinstance(backend, ProvesStillness) or artefact is None or artefact.backend != record.process:
            return False
        if not self._sandboxes.running(record):
            return False
        if backend.capabilities.memory and self._changed_base(record, record.base):
            return False
        return backend.still(self.running(record), artefact)

    def same_files(self, record: SandboxRecord, head: Statepoint) -> bool:
        """Whether it is proven, without a capture, that the files are the head's."""
        filesystem = self._plugins.filesystem(record.filesystem)
        if not isinstance(filesystem, ProvesUnchanged) or head.files is None:
            return False
        return filesystem.unchanged(layer_of(record.spec), head.files)

    def unchanged(self, record: SandboxRecord) -> bool:
        """Whether it is proven that files, processes and remote positions are the head's."""
        head = self.head(record)
        if head is None or self._positions(record) != head.remote:
            return False
        return self.still(record, head) and self.same_files(record, head)

    def _positions(self, record: SandboxRecord) -> tuple[RemotePosition, ...]:
        services = self._remote.services(record)
        self._remote.settle(record, services)
        return self._remote.capture(record, services)

    def shared(self, record: SandboxRecord, statepoint: Statepoint, request: SnapshotRequest) -> Statepoint | None:
        """The statepoint, whole, when it is proven that it holds what the head holds; nothing is written for it."""
        started = time.perf_counter()
        head = self._proven(record, request)
        if head is None:
            return None
        described: list[Mapping[str, str]] = [head.facts]
        if not request.quiet and not head.facts:
            described, _ = self._sandboxes.describe(record)
            head = self._proven(record, request)  # describing runs commands
            if head is None:
                return None
        # Both proofs reach back to the head's capture, so both hold at the moment of the first one.
        statepoint = self._of_head(record, statepoint, head, request, head.files)
        timings = {"frozen": 0.0, "total": round(time.perf_counter() - started, 6)}
        description, facts = context.record_state(request.description, described)
        return replace(statepoint, status=Status.COMMITTED, description=description, facts=facts, timings=timings)

    def _proven(self, record: SandboxRecord, request: SnapshotRequest) -> Statepoint | None:
        """The head, if it is proven that processes and files are its own."""
        head = self._sharable(record, request)
        return head if head is not None and self.same_files(record, head) else None

    def _sharable(self, record: SandboxRecord, request: SnapshotRequest) -> Statepoint | None:
        if request.in_flight or request.files_only:
            return None
        head = self.head(record)
        if head is None or _share_something(head, request.apart_from):
            return None
        return head if self.still(record, head) else None

    def _of_head(
        self,
        record: SandboxRecord,
        statepoint: Statepoint,
        head: Statepoint,
        request: SnapshotRequest,
        files: Artefact | None,
    ) -> Statepoint:
        """The statepoint with the head's processes and what else was found."""
        remote = self._positions(record)
        assert head.files is not None
        return replace(
            statepoint,
            files=shared(head, files) if files is head.files else files,
            processes=shared(head, head.processes),
            process_list=head.process_list,
            remote=remote,
            coverage=coverage.shared(head, files, remote, self._sandboxes.standing_gaps(record)),
            base=record.base,
        )

    # --- capturing ---

    def capture(self, record: SandboxRecord, statepoint: Statepoint, request: SnapshotRequest) -> Statepoint:
        """The statepoint with all that it holds, durable.

        Raises:
            CaptureError: the sandbox runs on; the caller drops what was begun.
        """
        started = time.perf_counter()
        described, gaps = ([], []) if request.quiet else self._sandboxes.describe(record)
        description, facts = context.record_state(request.description, described)
        found = self._beside_still_processes(record, statepoint, request)
        if found is None:
            found = self._in_the_instant(record, statepoint, request, gaps)
        total = {"total": time.perf_counter() - started}
        timings = {key: round(value, 6) for key, value in {**found.timings, **total}.items()}
        return replace(found, description=description, facts=facts, timings=timings)

    def _beside_still_processes(
        self, record: SandboxRecord, statepoint: Statepoint, request: SnapshotRequest
    ) -> Statepoint | None:
        """The files alone, without stopping anything, where nothing moves: proven before and after."""
        head = self._sharable(record, request)
        if head is None or head.files is None:
            return None
        filesystem = self._plugins.filesystem(record.filesystem)
        files = filesystem.capture(layer_of(record.spec), statepoint.id)
        reach("snapshot.files")
        captured = self._of_head(record, statepoint, head, request, files)
        if not self.still(record, head):
            filesystem.discard(statepoint.id)
            return None
        return replace(captured, timings={"frozen": 0.0})

    def _in_the_instant(
        self, record: SandboxRecord, statepoint: Statepoint, request: SnapshotRequest, gaps: list[Gap]
    ) -> Statepoint:
        captured = _Captured()
        filesystem = self._plugins.filesystem(record.filesystem)
        images = self._artefacts.images(statepoint)
        images.mkdir(mode=0o700, parents=True)
        if isinstance(filesystem, Prehashing):
            filesystem.prepare(layer_of(record.spec))
        reach("snapshot.prepared")
        services = self._remote.services(record)
        self._remote.settle(record, services)
        frozen = time.perf_counter()
        with self._instant(record, statepoint, request) as instant:
            captured.timings["until_instant"] = time.perf_counter() - frozen
            captured.files = filesystem.capture(layer_of(record.spec), statepoint.id)
            reach("snapshot.files")
            captured.remote = self._remote.capture(record, services)
            reach("snapshot.remote")
            captured.timings["in_instant"] = time.perf_counter() - frozen - captured.timings["until_instant"]
        captured.timings["durable"] = time.perf_counter() - frozen
        captured.timings["frozen"] = captured.timings["durable"] if instant.frozen is None else instant.frozen
        reach("snapshot.captured")
        if request.files_only:
            gaps.append(Gap(Domain.PROCESSES, "all processes", f"left out: {request.files_only}"))
        processes = self._visible(record, instant.process_list, request.in_flight)
        known = [*gaps, *self._sandboxes.standing_gaps(record)]
        return replace(
            statepoint,
            files=captured.files,
            processes=instant.artefact,
            process_list=processes,
            remote=captured.remote,
            coverage=coverage.coverage(captured.files, instant, processes, captured.remote, known),
            base=record.base,
            timings=captured.timings,
        )

    def _visible(
        self, record: SandboxRecord, processes: Sequence[ProcessInfo], in_flight: Sequence[int]
    ) -> tuple[ProcessInfo, ...]:
        """Without the call that asked, and without the init of a process tree, which is Planarian's own."""
        tree = self._plugins.sandbox(record.spec.backend).capabilities.process_tree
        hidden = {*in_flight, 1} if tree else {*in_flight}
        return tuple(process for process in processes if process.pid not in hidden)

    @contextmanager
    def _instant(self, record: SandboxRecord, statepoint: Statepoint, request: SnapshotRequest) -> Iterator[Instant]:
        """The process backend's instant, or stillness where nothing runs."""
        if not self._sandboxes.running(record):
            yield Instant(gaps=(Gap(Domain.PROCESSES, "all processes", "the sandbox did not run"),))
            return
        backend = self._plugins.process("none" if request.files_only else record.process)
        if backend.capabilities.memory:
            self.check_base(record, record.base, CaptureError)
        with backend.instant(self.running(record, request.in_flight), self._artefacts.images(statepoint)) as instant:
            yield instant

    def running(self, record: SandboxRecord, in_flight: tuple[int, ...] = ()) -> RunningSandbox:
        """What a process backend is given of a sandbox that runs."""
        assert record.live is not None
        return RunningSandbox.of(self._plugins.sandbox(record.spec.backend), record.spec, record.live, in_flight)

    def _changed_base(self, record: SandboxRecord, base: str) -> bool:
        return base != self._plugins.sandbox(record.spec.backend).fingerprint(record.spec)

    def check_base(self, record: SandboxRecord, base: str, error: type[PlanarianError]) -> None:
        """Memory images map the host's libraries: name an upgrade instead of letting the image fail."""
        if self._changed_base(record, base):
            raise error(
                "the host's packages changed below the sandbox since its processes started: their memory can't be "
                "captured or restored",
                code="base-changed",
                state="nothing was changed",
                remedy="use --files-only: processes then start anew",
            )


def _share_something(one: Statepoint, other: Statepoint | None) -> bool:
    """Whether two statepoints have an artefact in common."""

    def owners(point: Statepoint) -> set[tuple[str, str]]:
        return {(a.domain.value, point.owner(a)) for a in (point.files, point.processes) if a is not None}

    return other is not None and not owners(one).isdisjoint(owners(other))


def shared(source: Statepoint, artefact: Artefact | None) -> Artefact | None:
    """An artefact of ``source`` as another statepoint has it that shares it."""
    return replace(artefact, owner=source.owner(artefact), stored=0) if artefact else None
