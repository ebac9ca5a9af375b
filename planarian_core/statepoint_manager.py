"""The statepoint manager: the only code that orders the steps of snapshot, rollback and fork (paper, section 6.2).

Snapshot: freeze, process image, file snapshot, remote position, thaw, registry commit. Rollback: check, safety
statepoint, stage, stop, compensate, switch the files, restore the processes, registry commit. Fork: stage, switch,
restore, registry commit, on a new sandbox. Each step that can't be repeated blindly is journaled before it is taken;
:mod:`planarian_core.recovery` finishes what a killed runtime left.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from planarian_core import context, lineage
from planarian_core.errors import CaptureError, CompensationError, PlanarianError, RestoreError
from planarian_core.faults import reach
from planarian_core.interfaces import (
    Instant,
    Prehashing,
    RemoteService,
    RestartsCommands,
    RestoresTree,
    RunningSandbox,
    StagedFiles,
    TreeHost,
)
from planarian_core.model import (
    Artefact,
    Branch,
    Command,
    CommandResult,
    Coverage,
    Domain,
    Gap,
    LiveSandbox,
    ProcessInfo,
    RemoteEffect,
    RemotePosition,
    RestoreContext,
    RollbackPreview,
    SandboxRecord,
    Statepoint,
    Status,
    new_id,
    utc_now,
)
from planarian_core.plugin_manager import PluginManager
from planarian_core.registry import Operation, Registry
from planarian_core.sandbox_manager import SandboxManager, layer_of

_DESCRIBE_SECONDS = 5.0


@dataclass(frozen=True)
class SnapshotRequest:
    """What a caller says of a statepoint it asks for.

    ``in_flight``: inside pids of the call that asked for it from within the sandbox; they are in the image but die in a
    restore before they run, lest the rest of the call happen again. ``files_only``: leave the processes out, said so.
    """

    name: str = ""
    description: str = ""
    automatic: bool = False
    in_flight: tuple[int, ...] = ()
    files_only: str = ""


@dataclass
class _Captured:
    """What the instant gathered."""

    files: Artefact | None = None
    remote: list[RemotePosition] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    timings: dict[str, float] = field(default_factory=dict)


class StatepointManager:
    """Orders the steps. The caller holds the sandbox's lock: exclusive for snapshot and rollback."""

    def __init__(self, home: Path, registry: Registry, plugins: PluginManager, sandboxes: SandboxManager) -> None:
        self.home = home
        self.registry = registry
        self.plugins = plugins
        self.sandboxes = sandboxes

    def images(self, statepoint_id: str) -> Path:
        """The directory of a statepoint's process images."""
        return self.home / "statepoints" / statepoint_id / "images"

    # --- snapshot ---

    def snapshot(self, record: SandboxRecord, request: SnapshotRequest) -> Statepoint:
        """Take a statepoint of a sandbox, running or stopped.

        Raises:
            CaptureError: nothing was committed; the sandbox runs on.
        """
        if request.name:
            lineage.check_name(request.name, self.registry.statepoints(record.id))
        statepoint = Statepoint(
            id=new_id("sp"),
            sandbox_id=record.id,
            branch_id=record.branch_id,
            parent_id=self.registry.branch(record.id).head,
            created_at=utc_now(),
            name=request.name,
            automatic=request.automatic,
            in_flight=request.in_flight,
        )
        operation = self.registry.begin(Operation(new_id("op"), "snapshot", record.id, statepoint.id))
        self.registry.add_pending(statepoint)
        try:
            reach("snapshot.begun")
            statepoint = self._capture(record, statepoint, request)
            reach("snapshot.durable")
        except BaseException as error:
            self._abandon(record, statepoint, operation, error)
        committed = self.registry.commit(statepoint, operation)
        reach("snapshot.committed")
        self.plugins.notify("planarian_statepoint_committed", sandbox=record, statepoint=committed)
        return committed

    def _capture(self, record: SandboxRecord, statepoint: Statepoint, request: SnapshotRequest) -> Statepoint:
        captured = _Captured()
        started = time.perf_counter()
        described, fact_gaps = self._describe(record, request)
        filesystem = self.plugins.filesystem(record.filesystem)
        images = self.images(statepoint.id)
        images.mkdir(mode=0o700, parents=True)
        if isinstance(filesystem, Prehashing):
            filesystem.prepare(layer_of(record.spec))
        reach("snapshot.prepared")
        services = self.services(record)
        frozen = time.perf_counter()
        with self._instant(record, images, request) as instant:
            captured.timings["until_instant"] = time.perf_counter() - frozen
            captured.files = filesystem.capture(layer_of(record.spec), statepoint.id)
            reach("snapshot.files")
            for service in services:
                position = self.plugins.hook.planarian_capture(sandbox=record, service=service)
                captured.remote.append(position)
            reach("snapshot.remote")
            captured.timings["in_instant"] = time.perf_counter() - frozen - captured.timings["until_instant"]
        captured.timings["frozen"] = time.perf_counter() - frozen
        reach("snapshot.captured")
        captured.timings["total"] = time.perf_counter() - started
        description, facts = context.record_state(request.description, described)
        gaps = [*fact_gaps, *_file_gaps(captured.files), *instant.gaps, *self._standing_gaps(record)]
        return replace(
            statepoint,
            description=description,
            facts=facts,
            files=captured.files,
            processes=instant.artefact,
            process_list=instant.process_list,
            remote=tuple(captured.remote),
            coverage=Coverage(_captured_words(captured, instant), tuple(gaps)),
            base=record.base,
            timings={key: round(value, 6) for key, value in captured.timings.items()},
        )

    @contextmanager
    def _instant(self, record: SandboxRecord, images: Path, request: SnapshotRequest) -> Iterator[Instant]:
        """The process backend's instant, or stillness where nothing runs."""
        if not self.sandboxes.running(record):
            yield _Stillness("the sandbox did not run")
            return
        assert record.live is not None
        backend = self.plugins.process("none" if request.files_only else record.process)
        sandbox = self.plugins.sandbox(record.spec.backend)
        if backend.capabilities.memory:
            self._check_base(record, record.base, CaptureError)
        spec, live = record.spec, record.live
        running = RunningSandbox(spec, live, lambda: sandbox.tasks(spec, live))
        with backend.instant(running, images) as instant:
            yield instant

    def _check_base(self, record: SandboxRecord, base: str, error: type[PlanarianError]) -> None:
        """Memory images map the host's libraries: name an upgrade instead of letting the image fail."""
        if base != self.plugins.sandbox(record.spec.backend).fingerprint(record.spec):
            raise error(
                "the host's packages changed below the sandbox since its processes started: their memory can't be "
                "captured or restored",
                code="base-changed",
                state="nothing was changed",
                remedy="use --files-only: processes then start anew",
            )

    def _describe(self, record: SandboxRecord, request: SnapshotRequest) -> tuple[list[dict[str, str]], list[Gap]]:
        if request.automatic or request.in_flight or not self.sandboxes.running(record):
            return [], []

        def run(argv: Sequence[str]) -> CommandResult:
            return self.sandboxes.execute(record, Command(tuple(argv), timeout=_DESCRIBE_SECONDS, output_limit=65536))

        try:
            return list(self.plugins.hook.planarian_describe_state(sandbox=record, run=run)), []
        except Exception as error:  # a plugin is foreign code; a description isn't worth a snapshot
            return [], [Gap(Domain.FILES, "description", f"{type(error).__name__}: {error}")]

    def _standing_gaps(self, record: SandboxRecord) -> list[Gap]:
        """What this sandbox can never capture."""
        gaps = list(self.registry.fences(record.id))
        if self.plugins.sandbox(record.spec.backend).capabilities.in_place:
            gaps.append(
                Gap(Domain.FILES, "files outside the workspace", "a directory sandbox captures its workspace only")
            )
        return gaps

    def _abandon(
        self, record: SandboxRecord, statepoint: Statepoint, operation: Operation, error: BaseException
    ) -> NoReturn:
        self.drop_artefacts(record, statepoint)
        self.registry.discard(statepoint, str(error) or type(error).__name__, operation)
        if isinstance(error, PlanarianError) or not isinstance(error, Exception):
            raise error
        raise CaptureError(
            f"the snapshot failed: {error}",
            state=f"{statepoint.id} was discarded; the sandbox goes on running",
            remedy="free disk space" if "space" in str(error) else "see the cause above; planarian doctor",
        ) from error

    def drop_artefacts(self, record: SandboxRecord, statepoint: Statepoint) -> None:
        """Remove what a statepoint that isn't committed left on the disk."""
        self.plugins.filesystem(record.filesystem).discard(statepoint.id)
        backend = statepoint.processes.backend if statepoint.processes else record.process
        self.plugins.process(backend).discard(self.images(statepoint.id))
        shutil.rmtree(self.images(statepoint.id).parent, ignore_errors=True)

    # --- remote ---

    def services(self, record: SandboxRecord) -> list[RemoteService]:
        """The remote services that a sandbox may use."""
        fenced = {gap.subject for gap in self.registry.fences(record.id)}
        offered = self.plugins.hook.planarian_services(sandbox=record)
        return [service for group in offered for service in group if service.name not in fenced]

    def plan_compensation(
        self, record: SandboxRecord, statepoint: Statepoint
    ) -> tuple[list[tuple[RemoteService, RemotePosition]], list[RemoteEffect], list[Gap]]:
        """Which services go back where, and what that undoes; CompensationError when it can't be done."""
        fenced = {gap.subject for gap in self.registry.fences(record.id)}
        positions = {position.service: position for position in statepoint.remote if position.service not in fenced}
        services = {service.name: service for service in self.services(record)}
        moves: list[tuple[RemoteService, RemotePosition]] = []
        effects: list[RemoteEffect] = []
        gaps: list[Gap] = []
        for name, position in positions.items():
            if name not in services:
                raise CompensationError(
                    f"{statepoint.id} holds a position of the remote service {name!r}, which isn't configured now",
                    code="service-missing",
                    state="nothing was changed",
                    remedy="configure the service again",
                )
            moves.append((services[name], position))
            effects += services[name].plan(position, record.id)
        for name in services.keys() - positions.keys():
            gaps.append(Gap(Domain.REMOTE, name, f"came into use after {statepoint.id}: its effects stay"))
        return moves, effects, gaps

    def _consent(self, record: SandboxRecord, effects: Sequence[RemoteEffect], given: bool) -> list[Gap]:
        pivots = [effect for effect in effects if effect.pivot]
        if not pivots:
            return []
        if not given and not self.plugins.hook.planarian_approve(sandbox=record, effects=pivots):
            names = "; ".join(f"{e.service}: {e.summary}" for e in pivots[:5])
            raise CompensationError(
                f"the rollback passes effects that can't be undone: {names}",
                code="pivot-needs-consent",
                state="nothing was changed",
                remedy="agree with --accept-pivots, or choose a later statepoint",
            )
        return [Gap(Domain.REMOTE, f"{e.service}: {e.summary}", "declared irreversible; it stays") for e in pivots]

    # --- rollback ---

    def check_restorable(self, record: SandboxRecord, statepoint: Statepoint, *, files_only: bool) -> None:
        """Every artefact is there, before anything is touched (guarantee 3)."""
        if statepoint.status is not Status.COMMITTED or statepoint.files is None:
            raise RestoreError(
                f"{statepoint.id} is {statepoint.status}, not committed", code="statepoint-not-committed"
            )
        self.plugins.filesystem(statepoint.files.backend).verify(statepoint.files)
        if statepoint.processes and not files_only:
            backend = self.plugins.process(statepoint.processes.backend)
            if backend.capabilities.memory:
                self.plugins.require("process", backend.name)
                self._check_base(record, statepoint.base, RestoreError)
            backend.verify(statepoint.processes, self.images(statepoint.id))

    def preview(self, record: SandboxRecord, statepoint: Statepoint) -> RollbackPreview:
        """What a rollback would do; nothing but the staging area is touched, and that is cleared."""
        self.check_restorable(record, statepoint, files_only=False)
        _, effects, _ = self.plan_compensation(record, statepoint)
        assert statepoint.files is not None
        staged = self.plugins.filesystem(statepoint.files.backend).stage(statepoint.files, layer_of(record.spec))
        staged.discard()
        processes = tuple(_words(p) for p in statepoint.process_list)
        return RollbackPreview(statepoint, staged.changed_count, tuple(staged.changed), processes, tuple(effects))

    def rollback(
        self,
        record: SandboxRecord,
        statepoint: Statepoint,
        *,
        safety: bool = True,
        files_only: bool = False,
        accept_pivots: bool = False,
    ) -> RestoreContext:
        """Bring a sandbox and its remote services to ``statepoint``.

        Raises:
            RestoreError, CompensationError: ``state`` says where the sandbox is now.
        """
        self.check_restorable(record, statepoint, files_only=files_only)
        _, effects, gaps = self.plan_compensation(record, statepoint)
        gaps += self._consent(record, effects, accept_pivots)
        operation = Operation(new_id("op"), "rollback", record.id, statepoint.id, files_only=files_only)
        operation = self.registry.begin(operation)
        try:
            reach("rollback.begun")
            before = self._safety(record, statepoint) if safety else None
            operation = self.registry.advance(operation, "safe", safety_id=before.id if before else None)
            assert statepoint.files is not None
            staged = self.plugins.filesystem(statepoint.files.backend).stage(statepoint.files, layer_of(record.spec))
        except BaseException:
            self.registry.end(operation)
            raise
        try:
            reach("rollback.staged")
        except BaseException:
            staged.discard()
            self.registry.end(operation)
            raise
        undone = self.go_back(operation, record, statepoint, staged)
        self.plugins.notify("planarian_rolled_back", sandbox=record, statepoint=statepoint, safety=before)
        stopped = before.process_list if before else ()
        return self._context("rollback", record.id, statepoint, staged, gaps, before, undone, stopped)

    def _safety(self, record: SandboxRecord, target: Statepoint) -> Statepoint:
        """The state before the rollback. Where its processes can't be captured, its files alone, said so."""
        description = f"before the rollback to {target.name or target.id}"
        request = SnapshotRequest(description=description, automatic=True)
        try:
            return self.snapshot(record, request)
        except CaptureError as error:
            if self.plugins.process(record.process).capabilities.memory:
                return self.snapshot(record, replace(request, files_only=error.message))
            raise

    def go_back(
        self, operation: Operation, record: SandboxRecord, statepoint: Statepoint, staged: StagedFiles
    ) -> tuple[RemoteEffect, ...]:
        """The part of a rollback that changes things; journaled, and safe to repeat from its beginning."""
        undone: list[RemoteEffect] = []
        try:
            operation = self.registry.advance(operation, "stopping")
            self.plugins.sandbox(record.spec.backend).stop(record.spec, record.live)
            record = replace(record, live=None)
            reach("rollback.stopped")
            for service, position in self.plan_compensation(record, statepoint)[0]:
                effects = self.plugins.hook.planarian_compensate(position=position, sandbox=record, service=service)
                undone += effects or ()
            operation = self.registry.advance(operation, "compensated")
            reach("rollback.compensated")
            staged.switch()
            reach("rollback.switched")
            live = self.bring_up(record, statepoint, files_only=operation.files_only)
            reach("rollback.restored")
        except Exception as error:
            self._turn_back(operation, record, statepoint, error, undone)
        record = replace(record, live=live, closed=False, base=self._fingerprint(record))
        self.registry.end(operation, record=record, head=statepoint.id)
        reach("rollback.committed")
        return tuple(undone)

    def _fingerprint(self, record: SandboxRecord) -> str:
        return self.plugins.sandbox(record.spec.backend).fingerprint(record.spec)

    def bring_up(self, record: SandboxRecord, statepoint: Statepoint, *, files_only: bool = False) -> LiveSandbox:
        """Bring processes to life on files that are in place already."""
        spec = record.spec
        sandbox = self.plugins.sandbox(spec.backend)
        artefact = None if files_only else statepoint.processes
        backend = self.plugins.process(artefact.backend) if artefact else None
        if artefact and isinstance(backend, RestoresTree) and isinstance(sandbox, TreeHost):
            environment = sandbox.restore_environment(spec)
            init = backend.restore(artefact, self.images(statepoint.id), environment, kill=statepoint.in_flight)
            return sandbox.adopt(spec, init)
        live = sandbox.start(spec)
        if artefact and isinstance(backend, RestartsCommands):
            origin = self.registry.sandbox(statepoint.sandbox_id).spec.workspace
            for command in backend.commands(artefact, skip=statepoint.in_flight):
                moved = relocated(command, origin, spec.workspace)
                if moved is not None:
                    sandbox.execute(spec, live, moved)
        return live

    def _turn_back(
        self,
        operation: Operation,
        record: SandboxRecord,
        statepoint: Statepoint,
        error: Exception,
        undone: Sequence[RemoteEffect],
    ) -> NoReturn:
        """A rollback failed half-way: return to the safety statepoint, or leave the journal entry to ``recover``."""
        cause = f"the rollback to {statepoint.id} failed: {error}"
        if operation.safety_id is None or undone:
            raise RestoreError(
                cause,
                code="rollback-unfinished",
                state=f"{record.id} is stopped half-way; nothing is lost",
                remedy="mend the cause, then: planarian recover",
            ) from error
        try:
            self.return_to_safety(operation, record)
        except Exception as second:
            raise RestoreError(
                f"{cause}; and so did the way back: {second}",
                code="rollback-unfinished",
                state=f"{record.id} is stopped half-way; nothing is lost",
                remedy="mend the cause, then: planarian recover",
            ) from error
        if isinstance(error, CompensationError):
            raise error
        raise RestoreError(
            cause,
            code="rollback-failed",
            state=f"{record.id} is back where it was before ({operation.safety_id})",
            remedy="mend the cause and try again, or choose another statepoint; --files-only leaves processes out",
        ) from error

    def return_to_safety(self, operation: Operation, record: SandboxRecord) -> None:
        """Bring the sandbox back to the operation's safety statepoint and end the operation."""
        assert operation.safety_id is not None
        safety = self.registry.statepoint(operation.safety_id)
        assert safety.files is not None
        self.plugins.sandbox(record.spec.backend).stop(record.spec, record.live)
        record = replace(record, live=None)
        self.plugins.filesystem(safety.files.backend).stage(safety.files, layer_of(record.spec)).switch()
        record = replace(record, live=self.bring_up(record, safety), base=self._fingerprint(record))
        self.registry.end(operation, record=record, head=safety.id)

    def _context(
        self,
        action: str,
        sandbox_id: str,
        statepoint: Statepoint,
        staged: StagedFiles,
        gaps: Sequence[Gap],
        safety: Statepoint | None = None,
        undone: Sequence[RemoteEffect] = (),
        stopped: Sequence[ProcessInfo] = (),
    ) -> RestoreContext:
        kept = {(p.pid, p.argv) for p in statepoint.process_list}
        return RestoreContext(
            action=action,
            statepoint=statepoint,
            sandbox_id=sandbox_id,
            safety_id=safety.id if safety else None,
            files_changed=staged.changed_count if action == "rollback" else 0,
            files_sample=tuple(staged.changed[:50]) if action == "rollback" else (),
            processes_stopped=tuple(_words(p) for p in stopped if (p.pid, p.argv) not in kept),
            processes_running=tuple(_words(p) for p in statepoint.process_list if p.pid not in statepoint.in_flight),
            remote_undone=tuple(e for e in undone if not e.pivot),
            not_undone=(*gaps, *statepoint.coverage.missing),
            outcomes=self.registry.outcomes(statepoint.id),
        )

    # --- fork ---

    def fork(
        self, source: SandboxRecord, statepoint: Statepoint, name: str = ""
    ) -> tuple[SandboxRecord, RestoreContext]:
        """Make a new sandbox from a statepoint. The caller holds the source's lock, shared.

        Raises:
            RestoreError, SandboxError: nothing remains of the fork.
        """
        self.check_restorable(source, statepoint, files_only=False)
        assert statepoint.files is not None
        sandbox_id = new_id("sb")
        folder = self.sandboxes.folder(sandbox_id)
        in_place = self.plugins.sandbox(source.spec.backend).capabilities.in_place
        layer = folder / ("workspace" if in_place else "layer")
        spec = replace(
            source.spec, id=sandbox_id, layer=str(layer), workspace=str(layer) if in_place else source.spec.workspace
        )
        record = replace(
            source, spec=spec, branch_id=new_id("br"), created_at=utc_now(), name=name, live=None, closed=False
        )
        with self.sandboxes.lock(sandbox_id).acquire(exclusive=True):
            operation = self.registry.begin(Operation(new_id("op"), "fork", sandbox_id, statepoint.id))
            branch = Branch(record.branch_id, sandbox_id, head=statepoint.id, forked_from=statepoint.id)
            try:
                self.registry.add_sandbox(record, branch)
                reach("fork.begun")
                folder.mkdir(mode=0o700, parents=True)
                filesystem = self.plugins.filesystem(statepoint.files.backend)
                staged = filesystem.stage(statepoint.files, layer_of(spec))
                reach("fork.staged")
                staged.switch()
                reach("fork.switched")
                gaps = [*self._fence(source, record, statepoint), *self._left_behind(record, statepoint)]
                record = replace(record, live=self.bring_up(record, statepoint), base=self._fingerprint(record))
                reach("fork.restored")
            except BaseException:
                self.sandboxes.destroy(record, operation)
                raise
            self.registry.end(operation, record=record)
            reach("fork.committed")
        self.plugins.notify("planarian_forked", source=source, sandbox=record, statepoint=statepoint)
        return record, self._context("fork", record.id, statepoint, staged, gaps)

    def _left_behind(self, fork: SandboxRecord, statepoint: Statepoint) -> list[Gap]:
        """Commands that can't be started again in a fork, because they name the source's workspace."""
        artefact = statepoint.processes
        backend = self.plugins.process(artefact.backend) if artefact else None
        if artefact is None or not isinstance(backend, RestartsCommands):
            return []
        origin = self.registry.sandbox(statepoint.sandbox_id).spec.workspace
        commands = backend.commands(artefact, skip=statepoint.in_flight)
        left = [c for c in commands if relocated(c, origin, fork.spec.workspace) is None]
        reason = f"names the source's workspace {origin}; not started in the fork"
        return [Gap(Domain.PROCESSES, context.one_line(" ".join(c.argv), 200), reason) for c in left]

    def _fence(self, source: SandboxRecord, fork: SandboxRecord, statepoint: Statepoint) -> list[Gap]:
        """Keep the fork away from services that can't branch (guarantee 5)."""
        positions = {position.service: position for position in statepoint.remote}
        gaps = list(self.registry.fences(source.id))
        for service in self.services(source):
            position = positions.get(service.name)
            if position is None:
                gap: Gap | None = Gap(Domain.REMOTE, service.name, "not part of the statepoint")
            else:
                gap = service.fence(fork.id, source.id, position)
            if gap is not None:
                gaps.append(gap)
        for gap in gaps:
            self.registry.fence(fork.id, gap)
        return gaps


def relocated(command: Command, origin: str, workspace: str) -> Command | None:
    """A command of the workspace ``origin`` for a fork that lives in ``workspace``, a directory of its own.

    None when its arguments name the origin: started again it would write into the source (guarantee 5).
    """
    if origin == workspace:
        return command

    def move(path: str) -> str:
        inside = path == origin or path.startswith(f"{origin}/")
        return workspace + path[len(origin) :] if inside else path

    if any(origin in argument for argument in command.argv):
        return None
    env = {key: move(value) for key, value in command.env.items()}
    return replace(
        command,
        cwd=move(command.cwd),
        env=env,
        stdout_path=move(command.stdout_path),
        stderr_path=move(command.stderr_path),
    )


class _Stillness:
    """The instant of a sandbox in which nothing runs."""

    def __init__(self, reason: str) -> None:
        self.artefact: Artefact | None = None
        self.process_list: tuple[ProcessInfo, ...] = ()
        self.gaps: tuple[Gap, ...] = (Gap(Domain.PROCESSES, "all processes", reason),)


def _words(process: ProcessInfo) -> str:
    return context.one_line(f"{process.pid} {' '.join(process.argv)}", 200)


def _file_gaps(files: Artefact | None) -> list[Gap]:
    listed = files.details.get("gaps", []) if files else []
    return [Gap(Domain.FILES, str(path), str(reason)) for path, reason in listed]


def _captured_words(captured: _Captured, instant: Instant) -> tuple[str, ...]:
    words = []
    if captured.files:
        words.append(f"files by {captured.files.backend}")
    if instant.artefact:
        words.append(f"{len(instant.process_list)} processes by {instant.artefact.backend}")
    words += [f"position {p.position} of {p.service}" for p in captured.remote]
    return tuple(words)
